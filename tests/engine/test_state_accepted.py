"""Ways to keep state in map() that are not refused: what comes to the same on three ranks, and what nobody sees."""

import pytest
from checkpoint.fingerprint.script_cases import cases
from engine.state_ways import FRAMES, run

#: What looks like state and comes to the same.
HARMLESS = cases(r"""
an auxiliary | before: from MDAnalysisTests.datafiles import AUX_XVG
  setup:  u.trajectory.add_auxiliary("force", AUX_XVG) | map: n = len(frame.universe.trajectory.ts.aux.force)
a cache of a function | map: n = f(frame.number % 3)
  before: @functools.lru_cache
          def f(x): return 2 * x
a cached property | map: n = self.lazy[0]
  class:  @functools.cached_property
          def lazy(self): return [1]
single dispatch | map: n = f(1) + f('')
  before: @functools.singledispatch
          def f(x): return 1
          @f.register
          def _(x: int): return 2
a lock | before: LOCK = threading.Lock() | map: with LOCK: n = 1
a logger | before: LOG = logging.getLogger('z') | map: LOG.debug('x'); n = 1
a match | map: n = M.end()
  before: import re
          M = re.match('x', 'x')
sys.stderr | before: OUT = sys.stderr | map: print('', end='', file=OUT); n = 1
a pool of threads | map: n = POOL.submit(int).result()
  before: from concurrent.futures import ThreadPoolExecutor
          POOL = ThreadPoolExecutor(1)
a library in C | map: n = abs_(-1) + LIB.labs(-2)
  before: LIB = ctypes.CDLL(None)
          abs_ = LIB.abs
a generator of the frame | map: n = np.random.default_rng((1, frame.number)).random()
random of the frame | map: n = random.Random(frame.number).random()
another Universe, frame by frame | setup: self.other = MDAnalysis.Universe({topology!r}, {trajectory!r})
  map:    self.other.trajectory[frame.number]; n = self.other.atoms.positions[0, 0]
a reference | before: from MDAnalysis.analysis import align, rms | setup: self.ref = u.copy().select_atoms('name CA')
  map:    align.alignto(frame.universe, self.ref, select='name CA')
          n = rms.rmsd(self.ca.positions, self.ref.positions)
positions that are written | map: self.ca.positions += 1; n = self.ca.positions[0, 0]
a box that is set | map: frame.universe.dimensions = [9 + frame.number] * 3 + [90] * 3; n = frame.universe.dimensions[0]
an updating group | setup: self.near = u.select_atoms('around 5 index 10', updating=True) | map: n = len(self.near)
a library imported late | map: import fractions; n = float(fractions.Fraction(1, 3))
an own module imported late | map: import beside; n = beside.N
errors of numpy for a while | map: with np.errstate(all='ignore'): n = float(np.float64(1) / 3)
a local context
  map:    with decimal.localcontext() as c: c.prec = 5
          n = float(decimal.Decimal(1) / 3)
a list of its own | map: seen = []; n = count(seen)
caches that are named | setup: self.memo, self.tree, self.buffer = {}, None, np.zeros(3)
  class:  caches = ('memo', 'tree', 'buffer', 'known')
          known = {}
  map:    n = self.memo[frame.number % 3] = self.known[frame.number] = 1
          self.tree = self.tree or [1]; self.buffer[:] = frame.number
a universal function | map: n = erf(1.0) + f(1)
  before: from scipy.special import erf
          f = np.frompyfunc(lambda x: 2 * x, 1, 1)
a search by FastNS | before: from MDAnalysis.lib.nsgrid import FastNS
  setup:  self.ns = FastNS(5, self.ca.positions, u.dimensions) | map: n = len(self.ns.self_search().get_pairs())
a generator, where map() does not draw | setup: self.r = np.random.default_rng(1) | map: n = 1
the Universe, and what is of its frame
  setup:  self.u, self.ts, self.box, self.first = u, u.trajectory.ts, u.dimensions, u.trajectory.ts.positions
  map:    n = self.ts.frame + self.u.atoms.positions[0, 0] + self.box[0] + self.first[0, 0]
groups of residues | setup: self.residues = {residue.resid: [residue.atoms] for residue in u.residues[:20]}
  map:    n = len(self.residues[3]) + frame.universe.residues[0].atoms.positions[0, 0]
an inner analysis | before: from himach.examples import load
  setup:  self.inner = load('rmsd')(selection='name CA'); self.inner.setup(u) | map: n = len([*self.inner.map(frame)])
a sparse matrix that is multiplied | before: import scipy.sparse
  setup:  self.m = scipy.sparse.random(20, 20, 0.2, format='csr', rng=1)
  map:    n = float((self.m @ np.ones(20)).sum()) + self.m.has_canonical_format
what is not equal to itself | setup: self.nothing = [float('nan'), np.array([np.nan]), None]
  map:    n = len(self.nothing)
itself, and a list in itself | class: def helper(self): return 1 | map: n = self.me.bound() + len(self.round)
  setup:  self.me, self.bound, self.round = self, self.helper, []
          self.round.append(self.round)
a cache of a function of setup | setup: self.double = functools.lru_cache(lambda n: 2 * n)
  map:    n = self.double(frame.number % 3)
""")
#: What docs/tutorial.md says that nobody sees.
UNSEEN = cases(r"""
what a cached function returned | map: n = count(store())
  before: @functools.lru_cache
          def store(): return []
where another Universe stands | setup: self.other = MDAnalysis.Universe({topology!r}, {trajectory!r})
  map:    n = self.other.trajectory.next().frame
a note of a library's object | before: from MDAnalysis.analysis.rms import RMSD | setup: self.r = RMSD(u)
  map:    self.r._n = getattr(self.r, "_n", 0) + 1; n = self.r._n
a file | setup: open('note', 'w').close() | map: open('note', 'a').write('x'); n = os.path.getsize('note')
a helper's cached property that map changes | setup: self.h = H() | map: n = count(self.h.lazy)
  before: class H:
              @functools.cached_property
              def lazy(self): return []
on a library | before: np.mine3 = [] | map: n = count(np.mine3)
new on a library | map: n = np.mine4 = getattr(np, 'mine4', 0) + 1
on sys | before: sys.mine = 0 | map: sys.mine += 1; n = sys.mine
on builtins | map: n = count(mine2)
  before: import builtins
          builtins.mine2 = []
on a class of a library | before: MDAnalysis.AtomGroup.mine = [] | map: n = count(MDAnalysis.AtomGroup.mine)
a logger's attribute | map: LOG.n += 1; n = LOG.n
  before: LOG = logging.getLogger('x')
          LOG.n = 0
""")


@pytest.mark.parametrize("name", HARMLESS)
def test_what_comes_to_the_same_runs(tmp_path, name):
    one_rank, three_ranks = run(tmp_path, HARMLESS[name])
    assert one_rank == three_ranks and len(one_rank) == len(FRAMES)


@pytest.mark.parametrize("name", UNSEEN)
def test_what_nobody_sees_is_on_the_page(tmp_path, name):
    one_rank, three_ranks = run(tmp_path, UNSEEN[name])
    assert one_rank != three_ranks  # else it needs no mention
