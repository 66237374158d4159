"""Ways to keep state in map(): those that are refused by name, those that come to the same, those that nobody sees.

They are written as scripts are: what stands before the class, in setup() and in map(), which gives `n`.
"""

import copy
import decimal
import re
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from checkpoint.fingerprint.fingerprints import cases, text_of

import himach
from himach.engine import RankFrames, run_pass
from himach.examples import sample
from himach.io.trajectories.origin import open_origin
from himach.io.universe.topology import copy_topology, load_topology
from himach.io.universe.view import View
from himach.ranks.communicator import alone
from himach.runner.scripts import load_script

FRAMES = range(12)
TRAJECTORY, TOPOLOGY = sample("villin")
ORIGIN = open_origin([Path(TRAJECTORY)], Path(TOPOLOGY), {})
PARSED = load_topology(TOPOLOGY, ORIGIN)
RAWS = {raw.number: copy.deepcopy(raw) for raw in ORIGIN.read([*FRAMES])}

#: What stands before the class, and in it.
COUNT = ["def count(to):", "    to.append(1)", "    return len(to)"]
REDUCE = ["def reduce(self, key, series): return np.asarray(series.values).tolist()"]


def map_frames(file, steps):
    """Return what map() gives of some frames, in a process that just loaded the script."""
    for name in ("beside", f"himach_script_{file.stem}"):
        sys.modules.pop(name, None)
    analysis = next(cls for name, cls in load_script(file).items() if name == "Mine")()
    view = View(copy_topology(PARSED), ORIGIN, FRAMES, RAWS[0], name="Mine")
    analysis.__dict__.update(frames=FRAMES, dt=1.0)
    analysis.setup(view.universe)
    view.detach()
    task = iter([np.array(steps)])
    work = RankFrames(
        FRAMES,
        lambda: next(task, None),
        lambda numbers: (RAWS[number] for number in numbers.tolist()),
        [partial(view.bind, copy=True)],
        lambda done: None,
        universes=[view.universe],
    )
    return dict(run_pass(alone(), [[analysis]], work).results[0].items())


def run(folder, way):
    """Return what map() gives by frame: on one rank, and on three together."""
    file = folder / "script.py"
    more = {"before": [*COUNT, *way["before"]], "class": [*REDUCE, *way["class"]]}
    file.write_text(text_of({**way, **more, "map": [*way["map"], "yield frame.number, n"]}))
    (folder / "beside.py").write_text("N = 0\nseen = []\ndef note(x):\n    seen.append(x)\n    return len(seen)\n")
    with pytest.MonkeyPatch.context() as patch, np.errstate(), decimal.localcontext():
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path])
        patch.setenv("MINE", "0")  # one of the ways sets it
        one_rank = map_frames(file, [*FRAMES])
        three_ranks = {}
        for rank in range(3):
            three_ranks.update(map_frames(file, [*FRAMES[rank::3]]))
    return one_rank, three_ranks


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
a pool of threads | map: n = POOL.submit(int).result()
  before: from concurrent.futures import ThreadPoolExecutor
          POOL = ThreadPoolExecutor(1)
a library in C | map: n = abs_(-1) + LIB.labs(-2)
  before: LIB = ctypes.CDLL(None)
          abs_ = LIB.abs
another Universe, frame by frame | setup: self.other = MDAnalysis.Universe({topology!r}, {trajectory!r})
  map:    self.other.trajectory[frame.number]; n = self.other.atoms.positions[0, 0]
a reference | before: from MDAnalysis.analysis import align, rms | setup: self.ref = u.copy().select_atoms('name CA')
  map:    align.alignto(frame.universe, self.ref, select='name CA')
          n = rms.rmsd(self.ca.positions, self.ref.positions)
positions that are written | map: self.ca.positions += 1; n = self.ca.positions[0, 0]
a box that is set | map: frame.universe.dimensions = [9 + frame.number] * 3 + [90] * 3; n = frame.universe.dimensions[0]
an updating group | setup: self.near = u.select_atoms('around 5 index 10', updating=True) | map: n = len(self.near)
what converts a group, which MDAnalysis leaves on it | map: n = int(callable(self.ca.convert_to))
a library imported late | map: import fractions; n = float(fractions.Fraction(1, 3))
an own module imported late | map: import beside; n = beside.N
errors of numpy for a while | map: with np.errstate(all='ignore'): n = float(np.float64(1) / 3)
a local context
  map:    with decimal.localcontext() as c: c.prec = 5
          n = float(decimal.Decimal(1) / 3)
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


REFUSED = cases(r"""
an array: self.rg, an array.*script\.py, line \d+, in map | setup: self.rg = np.zeros(12)
  map:    self.rg[frame.step] = n = 1 + frame.time
behind a read-only view: self.h, an array
  setup:  self.h = np.zeros(4)[:]; self.h.setflags(write=False) | map: self.h.base[1] += 1; n = self.h[1]
a list: self.seen, a list | setup: self.seen = [] | map: n = count(self.seen)
new on self: self.z | map: n = vars(self)["z"] = vars(self).get("z", 0) + 1
a table: self.t, a DataFrame | before: import pandas | setup: self.t = pandas.DataFrame({"x": [1.0]})
  map:    self.t.loc[frame.number] = 2.0; n = len(self.t)
an inner analysis: self.inner, an Inner | setup: self.inner = Inner(); self.inner.x = []
  map:    n = next(self.inner.map(frame))[1]
  before: class Inner(himach.Analysis):
              def map(self, frame): yield 0, count(self.x)
a generator: self.r, a random generator.*default_rng.*frame\.number | setup: self.r = np.random.default_rng(1)
  map:    n = self.r.random()
what setup() put on the Universe is deleted: deletes universe.mine | setup: u.mine = 1
  map:    n = len(vars(frame.universe)); vars(frame.universe).pop("mine", None)
a module's list: SEEN, a list | before: SEEN = [] | map: n = count(SEEN)
a module's number: N, an | map: n = step()
  before: N = 0
          def step():
              global N
              N += 1
              return N
a new global: N, an int | map: n = globals()['N'] = globals().get('N', 0) + 1
another module's number: N in beside | before: import beside | map: beside.N += 1; n = beside.N
a module's count: COUNT | before: COUNT = itertools.count() | map: n = next(COUNT)
a module's file: F, an? | before: F = open(os.open(__file__, 0), closefd=False) | map: n = len(F.readline())
a context variable: V, a ContextVar | before: V = contextvars.ContextVar('V') | map: n = V.get(0) + 1; V.set(n)
a thread's own: T, a | before: T = threading.local() | setup: T.n = 0 | map: T.n += 1; n = T.n
a class's attribute: H, a type | map: H.n += 1; n = H.n
  before: class H:
              n = 0
a metaclass's attribute: M.seen|H | map: n = count(H.seen)
  before: class M(type):
              seen = []
          class H(metaclass=M): pass
an enum's member: Way | map: Way.A.n += 1; n = Way.A.n
  before: class Way(enum.Enum):
              A = 1
          Way.A.n = 0
an object that hides it from pickle: h, an? H | map: h.n += 1; n = h.n
  before: class H:
              n = 0
              def __reduce__(self): return H, ()
          h = H()
a weak dict: W, a | map: W[h] += 1; n = W[h]
  before: class H: pass
          h = H()
          W = weakref.WeakKeyDictionary({h: 0})
behind a proxy: D, a dict | map: D['n'] += 1; n = P['n']
  before: D = {'n': 0}
          P = types.MappingProxyType(D)
an array of ctypes: C, a | before: C = (ctypes.c_int * 2)() | map: C[0] += 1; n = C[0]
a deep list: L, a list | map: L[1] += 1; n = L[1]
  before: D = []
          for _ in range(9999): D = [D]
          L = [D, 0]
a default argument: f, a function | map: n = f()
  before: def f(seen=[]):
              return count(seen)
a function's attribute: f, a function | map: f.n += 1; n = f.n
  before: def f(): pass
          f.n = 0
a closure: f, a function | map: n = f()
  before: def make():
              n = 0
              def f():
                  nonlocal n
                  n += 1
                  return n
              return f
          f = make()
a partial: f, a partial | before: f = functools.partial(count, []) | map: n = f()
a bound method: L, a list|push | map: push(1); n = len(L)
  before: L = [0]
          push = L.append
the class's attribute: Mine.total | class: total = 0 | map: type(self).total += 1; n = self.total
a slot: mine | class: __slots__ = ('mine',) | setup: self.mine = [] | map: n = count(self.mine)
past setattr: self.n | setup: self.n = 0 | map: object.__setattr__(self, 'n', self.n + 1); n = self.n
a parameter's list: names | class: names: list[str] = ['CA'] | map: self.names.append('x'); n = len(self.names)
a later stage's list: then | class: then = Later() | setup: self.then.__dict__['seen'] = []
  map:    n = count(self.then.seen)
  before: class Later(himach.Analysis):
              seen = None
              def map(self, frame): pass
a copied Universe's positions: self.other | setup: self.other = u.copy()
  map:    self.other.atoms.positions += 1; n = self.other.atoms.positions[0, 0]
a copied timestep: self.ts | setup: self.ts = u.trajectory.ts.copy()
  map:    self.ts.positions[0] += 1; n = self.ts.positions[0, 0]
a cached property that map changes: self.lazy | map: n = count(self.lazy)
  class:  @functools.cached_property
          def lazy(self): return []
a cached property of the frame: self.lazy | map: n = self.lazy[0, 0]
  class:  @functools.cached_property
          def lazy(self): return self.ca.positions
what combine changes: Mine.seen | map: n = 1
  class:  seen = []
          def combine(self, key, series):
              return count(self.seen)
a transformation that counts: trajectory | setup: u.trajectory.add_transformations(Drift())
  map:    n = frame.positions[0, 0]
  before: class Drift:
              n = 0
              def __call__(self, ts):
                  self.n += 1
                  ts.positions += self.n
                  return ts
a transformation with a global: SEEN | setup: u.trajectory.add_transformations(shift) | map: n = frame.positions[0, 0]
  before: SEEN = []
          def shift(ts):
              ts.positions += count(SEEN)
              return ts
another transformation: trajectory
  before: def shift(ts):
              ts.positions += 1
              return ts
  map:    n = frame.positions[0, 0]; t = frame.universe.trajectory
          t._transformations = [*t._transformations, shift]
on the Universe: universe.mine | setup: u.mine = [] | map: n = count(frame.universe.mine)
new on the Universe: universe.n | map: n = frame.universe.n = getattr(frame.universe, 'n', 0) + 1
on the trajectory: trajectory | setup: u.trajectory.mine = [] | map: n = count(frame.universe.trajectory.mine)
masses: masses | map: self.ca.masses += 1; n = float(self.ca.masses[0])
a new attribute of the topology: universe.atoms.add_TopologyAttr
  map:    u = frame.universe; n = hasattr(u.atoms, 'gbscreens'); u.add_TopologyAttr('gbscreens')
bonds: bonds | setup: u.add_bonds([(0, 1)])
  map:    frame.universe.add_bonds([(0, 2 + frame.number)]); n = len(frame.universe.bonds)
a residue's atoms: resid
  map:    u = frame.universe; n = len(u.residues[0].atoms); u.atoms[n + 20].residue = u.residues[0]
random: random | setup: random.seed(1) | map: n = random.random()
numpy.random: numpy\.random | setup: np.random.seed(1) | map: n = np.random.rand()
random, imported by name: random|draw | before: from random import random as draw | map: n = draw()
the environment: environ | setup: os.environ['MINE'] = '0'
  map:    n = int(os.environ['MINE']) + 1; os.environ['MINE'] = str(n)
a decimal context: decimal | map: c = decimal.getcontext(); n = c.prec; c.prec += 1
numpy's errors: numpy | map: n = np.geterr()['under'] == 'warn'; np.seterr(under='warn')
the working directory: getcwd | map: n = len(os.getcwd()); os.chdir('..')
a logger's handler: handler | map: LOG.error('x'); n = handler.n
  before: LOG = logging.getLogger('y')
          class H(logging.Handler):
              n = 0
              def emit(self, record): self.n += 1
          handler = H()
          LOG.addHandler(handler)
""")


@pytest.mark.parametrize("name", REFUSED)
def test_what_differs_by_rank_is_refused_by_name(tmp_path, name):
    with pytest.raises(himach.AnalysisError) as error:
        run(tmp_path, REFUSED[name])
    text = str(error.value)
    assert re.match(r"Mine\.map\(\) failed ((at|after) frame 0\b.*)?on rank 0: ", text)
    assert re.search(r"(keeps nothing, because each rank sees some|cannot be compared).*caches = \(|it deletes", text)
    assert re.search(f"(?s){REFUSED[name]['expected']}", text)
