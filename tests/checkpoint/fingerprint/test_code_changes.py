"""Ways to change what code does: each is another map, whether a script's text or a cell made the change.

Where a way says V, there is 1 in the first run and 2 in the second.
"""

import pytest
from checkpoint.fingerprint.fingerprints import cases, fingerprint_of_cell, fingerprint_of_script, text_of

from himach.checkpoint.map_fingerprint import differences

#: What is never the same, so that a second run maps again and says so.
NEVER = {"frompyfunc"}
CODE = cases(r"""
a property | map: yield 0, self.part
  class:  @property
          def part(self): return V
__init__ | map: yield 0, self.a
  class:  def __init__(self):
              super().__init__()
              self.a = V
setup | setup: self.a = V * len(u.atoms) | map: yield 0, self.a
combine | class: def combine(self, key, series): return V | map: yield 0, 1
combine that calls reduce | map: yield 0, 1
  class:  def combine(self, key, series): return self.reduce(key, series)
          def reduce(self, k, s): return V
another library's function | before: f = (np.sin, np.cos)[V - 1] | map: yield 0, f(1)
a class within a function | map: yield 0, made().x
  before: def part(): return V
          def made():
              class Inner: x = part()
              return Inner
a descriptor's value | class: part = D(V) | map: yield 0, self.part
  before: class D:
              def __init__(self, x): self.x = x
              def __get__(self, one, cls): return self.x
frompyfunc | map: yield 0, u(1)
  before: def f(x): return V
          u = np.frompyfunc(f, 1, 1)
by globals | before: def part_1(): return V | map: yield 0, globals()["part_%d" % 1]()
by methodcaller | class: def part(self): return V | map: yield 0, operator.methodcaller("pa" + "rt")(self)
a dispatching method | map: yield 0, self.part(1)
  class:  @functools.singledispatchmethod
          def part(self, x): return 0
          @part.register
          def _(self, x: int): return V
a keyword's default | before: def part(*, n=V): return n | map: yield 0, part()
a signed zero | map: yield 0, 0.0 if V == 1 else -0.0
a number's type | before: n = [None, 1, 1.0][V] | map: yield 0, n
a name that is read | map: yield 0, part.__name__
  before: def part_V(): pass
          part = part_V
a wrapped function | map: yield 0, g()
  before: def f(): return V
          @functools.wraps(f)
          def g(): return g.__wrapped__()
reduce of another class | map: yield 0, Other().reduce()
  before: class Other(himach.Analysis):
              def map(self, frame): yield 0, 1
              def reduce(self, key=0, series=0): return V
reduce that is called as the script is loaded | map: yield 0, N
  before: class Other(himach.Analysis):
              def reduce(self, key=0, series=0): return V
          N = Other().reduce()
a stage after | class: then = Later() | map: yield 0, self.then.n
  before: class Later(himach.Analysis):
              n = V
""")
#: What another cell of a notebook does not tell, as docs/tutorial.md says; of a script the text counts.
CELLS_UNSEEN = cases(r"""
a method of a library's class | before: MDAnalysis.AtomGroup.part = lambda self: V | map: yield 0, self.ca.part()
a function of a library's module | before: MDAnalysis.lib.distances.part = lambda: V
  map:    yield 0, MDAnalysis.lib.distances.part()
a function of a library that is replaced | map: yield 0, rms.rmsd(1, 2)
  before: import MDAnalysis.analysis.rms as rms
          rms.rmsd = lambda a, b: V
a registered selection | map: yield 0, len(frame.universe.select_atoms("own"))
  before: from MDAnalysis.core.selection import Selection
          class Own(Selection):
              token = "own"
              def __init__(self, parser, tokens): pass
              def apply(self, group): return group[:V]
an annotation of a class | before: class Part: n: V | map: yield 0, Part.__annotations__["n"]
a docstring that is read | map: yield 0, part.__doc__
  before: def part():
              "V"
setup that comes to the same | setup: self.a = len(" V") | map: yield 0, self.a
""")


@pytest.mark.parametrize("name", CODE)
def test_another_text_is_another_map(place, name):
    texts = [text_of(CODE[name], value) for value in "112"]
    first, again, second = (fingerprint_of_script(place / str(i), text) for i, text in enumerate(texts))
    assert differences(first, again) == [] or name in NEVER
    assert "the script was changed" in differences(first, second)
    first, again, second = map(fingerprint_of_cell, texts)
    assert differences(first, again) == [] or name in NEVER
    assert differences(first, second)


@pytest.mark.parametrize("name", CELLS_UNSEEN)
def test_what_a_cell_does_not_tell_a_script_tells(place, name):
    texts = [text_of(CELLS_UNSEEN[name], value) for value in "12"]
    first, second = (fingerprint_of_script(place / str(i), text) for i, text in enumerate(texts))
    assert "the script was changed" in differences(first, second)
    first, second = map(fingerprint_of_cell, texts)
    assert differences(first, second) == []
