"""Ways to change what setup() or a module's own code comes to: each is another map, by the same text.

Where a way says V, there is 1 in the first run and 2 in the second, taken from outside.
"""

import re

import MDAnalysis
import pytest
from checkpoint.fingerprint.fingerprints import TOPOLOGY, TRAJECTORY, cases, fingerprint_of_script, text_of

from himach.checkpoint.map_fingerprint import differences

#: What setup() or a module's own code comes to: another value, by the same text; and what is said of some.
VALUES = cases(r"""
a function of exec's globals' function | map: yield 0, f()
  before: space = {"n": V}
          exec("def g(): return n\ndef f(): return g()", space)
          f = space["f"]
on self: ^self\.n is another after setup\(\)$ | setup: self.n = V | map: yield 0, self.n
a cached property of setup | setup: self.n = V; self.lazy; del self.n | map: yield 0, self.lazy
  class:  @functools.cached_property
          def lazy(self): return self.n
a search by FastNS, of other points | before: from MDAnalysis.lib.nsgrid import FastNS
  setup:  self.ns = FastNS(5, self.ca.positions + np.float32(V), u.dimensions)
  map:    yield 0, self.ns.search(self.ca.positions).get_pairs()
a pattern | setup: self.p = re.compile("[a-V]".replace("V", "mn"[V - 1])) | map: yield 0, len(self.p.findall("man"))
a set's order aside | setup: self.s = {"a", "b", str(V)} | map: yield 0, len(self.s & {"1"})
a group | setup: self.g = u.atoms[V:] | map: yield 0, len(self.g)
an updating group's radius | setup: self.g = u.select_atoms(f"around {2 + V} index 10", updating=True)
  map:    yield 0, len(self.g)
an updating group's reference
  setup:  self.g = u.select_atoms("around 3 group one", one=u.atoms[V:V + 1], updating=True) | map: yield 0, len(self.g)
another Universe's present frame
  setup:  self.o = MDAnalysis.Universe({topology!r}, {trajectory!r}); self.o.trajectory[V]
  map:    yield 0, self.o.atoms.positions[0, 0]
another Universe's other frames | setup: self.o = MDAnalysis.Universe({topology!r}, "other-V.xtc".replace("V", str(V)))
  map:    self.o.trajectory[3]; yield 0, self.o.atoms.positions[0, 0]
a transformation's vector | before: from MDAnalysis.transformations import translate
  setup:  u.trajectory.add_transformations(translate([0, 0, V])) | map: yield 0, frame.positions[0, 2]
a transformation that is a method | setup: self.hidden = V; u.trajectory.add_transformations(self.shift)
  map:    yield 0, frame.positions[0, 2]
  class:  def shift(self, ts):
              ts.positions += self.hidden
              return ts
on the Universe | setup: u.mine = [V] | map: yield 0, frame.universe.mine
bonds | setup: u.add_bonds([(0, V)]) | map: yield 0, len(frame.universe.bonds)
an inner analysis | setup: self.inner = Inner(n=V) | map: yield from self.inner.map(frame)
  before: class Inner(himach.Analysis):
              n: int = 0
              def map(self, frame): yield 0, self.n
a decimal context | setup: decimal.getcontext().prec = 3 + V | map: yield 0, float(decimal.Decimal(1) / 3)
globals of which one is not used: ^Mine\.LEAST is now 2; N is now 2$ | class: LEAST = N | map: yield 0, N + self.LEAST
  before: N = V
          UNUSED = N
an atom, or its residue | setup: self.g = [u.atoms[[3]], u.atoms[3].residue][V - 1] | map: yield 0, self.g
what an updating group is chosen from
  setup:  self.g = [u.atoms, u.select_atoms("resid 1:9")][V - 1].select_atoms("around 4 name CA", updating=True)
  map:    yield 0, len(self.g)
whether there is a transformation: universe.trajectory | before: from MDAnalysis.transformations import translate
  setup:  u.trajectory.add_transformations(*[translate([1, 2, 3])][:V - 1]) | map: yield 0, frame.positions[0, 0]
""")
#: What another value does not matter of; and, last, what docs/tutorial.md says is not seen.
UNSEEN = cases(r"""
on self, where map() does not read it | setup: self.n = V | map: yield 0, 1
a file that nothing uses | before: F, N = open(__file__), V | map: yield 0, 1
a cache that is named | class: caches = ("n",) | setup: self.n = V | map: yield 0, len(self.n)
a logger's attribute | map: yield 0, LOG.n
  before: LOG = logging.getLogger("changes")
          LOG.n = V
on a library | before: np.n1 = V | map: yield 0, np.n1
a registered selection's | map: yield 0, len(frame.universe.select_atoms("own2"))
  before: from MDAnalysis.core.selection import Selection
          class Own(Selection):
              token = "own2"
              n = V
              def __init__(self, parser, tokens): pass
              def apply(self, group): return group[:self.n]
""")
#: What is never the same, and what is said of it.
UNSTABLE = cases(r"""
a context variable: C cannot .* \(.*ContextVar\) | map: yield 0, C.get()
  before: C = contextvars.ContextVar("C")
          C.set(V)
frompyfunc: f cannot .* \(numpy\.ufunc\) | map: yield 0, f(1)
  before: def make(n): return np.frompyfunc(lambda x: n, 1, 1)
          f = make(V)
a file: F cannot be compared with that of another run \(_io\.TextIOWrapper\) | before: F = open(__file__)
  map:    yield 0, F.name
deep in a dict: self\.d cannot .* \(builtins\.dict\)
  setup:  self.d = {"deep": [io.StringIO("x"), (i for i in range(3))]} | map: yield 0, self.d
""")
OUTSIDE = "int(os.environ['V'])"


def sentences(place, monkeypatch, way):
    """Return what is said of a second run with the same value, and of one with another."""
    text = text_of(way, OUTSIDE)
    if "other-" in text:
        write_trajectories(place)
    fingerprints = []
    for value in "112":
        monkeypatch.setenv("V", value)
        fingerprints.append(fingerprint_of_script(place, text))
    return [differences(fingerprints[0], later) for later in fingerprints[1:]]


@pytest.mark.parametrize("name", VALUES)
def test_another_value_is_another_map(place, monkeypatch, name):
    same, other = sentences(place, monkeypatch, VALUES[name])
    assert same == [] and other
    assert re.search(VALUES[name]["expected"], "; ".join(other))


@pytest.mark.parametrize("name", UNSEEN)
def test_a_value_that_map_does_not_read_is_not_seen(place, monkeypatch, name):
    assert sentences(place, monkeypatch, UNSEEN[name]) == [[], []]


@pytest.mark.parametrize("name", UNSTABLE)
def test_what_cannot_be_compared_is_never_the_same_and_named(place, monkeypatch, name):
    for (sentence,) in sentences(place, monkeypatch, UNSTABLE[name]):
        assert re.fullmatch(UNSTABLE[name]["expected"], sentence)


def write_trajectories(place):
    universe = MDAnalysis.Universe(TOPOLOGY, TRAJECTORY)
    for moved in (1, 2):
        with MDAnalysis.Writer(str(place / f"other-{moved}.xtc"), universe.atoms.n_atoms) as writer:
            for ts in universe.trajectory[:5]:
                ts.positions = ts.positions + (moved if ts.frame == 3 else 0)
                writer.write(universe.atoms)
