"""Ways to change what code does: each is another map, whether a script's text or a cell made the change.

Where a way says V, there is 1 in the first run and 2 in the second.
"""

from __future__ import annotations

import pytest
from checkpoint.fingerprint.fingerprints import fingerprint_of_cell, fingerprint_of_script
from checkpoint.fingerprint.ways import cases, text_of

from himach.checkpoint.map_fingerprint import differences

#: What is never the same, so that a second run maps again and says so.
NEVER = {"frompyfunc"}
CODE = cases(r"""
map
  map:    yield 0, V
a property
  class:  @property
          def part(self): return V
  map:    yield 0, self.part
a static method
  class:  @staticmethod
          def part(): return V
  map:    yield 0, self.part()
a method by a made-up name
  class:  def part_1(self): return V
  map:    yield 0, getattr(self, f"part_{1}")()
__getattr__
  class:  def __getattr__(self, name): return V
  map:    yield 0, self.whatever
__init__
  class:  def __init__(self):
              super().__init__()
              self.a = V
  map:    yield 0, self.a
setup
  setup:  self.a = V * len(u.atoms)
  map:    yield 0, self.a
an attribute
  class:  FACTOR = V
  map:    yield 0, self.FACTOR
a default
  class:  def part(self, x=V): return x
  map:    yield 0, self.part()
combine
  class:  def combine(self, key, series): return V
  map:    yield 0, 1
combine that calls reduce
  class:  def combine(self, key, series): return self.reduce(key, series)
          def reduce(self, k, s): return V
  map:    yield 0, 1
a function
  before: def part(): return V
  map:    yield 0, part()
a constant
  before: LIMIT = V
  map:    yield 0, LIMIT
what a decorator does
  before: def more(f):
              @functools.wraps(f)
              def g(*a): return V * f(*a)
              return g
          @more
          def part(): return 1
  map:    yield 0, part()
two closures
  before: def make(n): return lambda x: n * x
          f, g = (make(2), make(3))[:: 2 * V - 3]
  map:    yield 0, f(1) - g(1)
a partial
  before: f = functools.partial(pow, V)
  map:    yield 0, f(2)
a class
  before: class Part:
              def value(self): return V
  map:    yield 0, Part().value()
a class's base
  before: class Root:
              def value(self): return V
          class Part(Root): pass
  map:    yield 0, Part().value()
recursion
  before: def part(n): return n and part(n - 1) + V
  map:    yield 0, part(3)
an enum
  before: class Way(enum.Enum):
              A = V
  map:    yield 0, Way.A.value
a callable object
  before: class Way:
              def __call__(self): return V
          way = Way()
  map:    yield 0, way()
another library's function
  before: f = (np.sin, np.cos)[V - 1]
  map:    yield 0, f(1)
a class within a function
  before: def part(): return V
          def made():
              class Inner: x = part()
              return Inner
  map:    yield 0, made().x
a metaclass
  before: class Meta(type):
              def __getitem__(cls, i): return V
          class Part(metaclass=Meta): pass
  map:    yield 0, Part[0]
a namedtuple's default
  before: Pair = collections.namedtuple("Pair", "a b", defaults=[V])
  map:    yield 0, Pair(1).b
a frozenset among constants
  before: def part(x): return x in {3, V}
  map:    yield 0, part(1)
a class decorator
  before: def more(cls):
              cls.part = lambda self: V
              return cls
          @more
          class Part: pass
  map:    yield 0, Part().part()
the class's own decorator
  before: def more(cls):
              cls.part = lambda self: V
              return cls
          class Base(himach.Analysis): pass
          more(Base)
          Part = Base
  map:    yield 0, Part.part(self)
a partial method
  class:  def part(self, x): return x
          two = functools.partialmethod(part, V)
  map:    yield 0, self.two()
a property's subclass
  before: class mine(property): pass
  class:  @mine
          def part(self): return V
  map:    yield 0, self.part
a descriptor's value
  before: class D:
              def __init__(self, x): self.x = x
              def __get__(self, one, cls): return self.x
  class:  part = D(V)
  map:    yield 0, self.part
__getattribute__
  class:  def __getattribute__(self, name): return V if name == "part" else super().__getattribute__(name)
  map:    yield 0, self.part
__set_name__
  before: class D:
              def __set_name__(self, cls, name): cls.other = V
  class:  part = D()
  map:    yield 0, self.other
__class_getitem__
  before: class Part:
              def __class_getitem__(cls, x): return V
  map:    yield 0, Part[0]
an operator
  before: class Part:
              def __add__(self, x): return V
  map:    yield 0, Part() + 1
map of another function
  before: def own(self, frame): yield 0, V
  class:  part = own
  map:    yield from self.part(frame)
frompyfunc
  before: def f(x): return V
          u = np.frompyfunc(f, 1, 1)
  map:    yield 0, u(1)
vectorize
  before: f = np.vectorize(lambda x: V)
  map:    yield 0, f(1)
by sys.modules
  before: def part(): return V
  map:    yield 0, getattr(sys.modules[__name__], "pa" + "rt")()
by format of another name
  before: class Part: n = V
          HOW = "{0.%s}" % "n"
  map:    yield 0, HOW.format(Part)
by eval
  before: def part(): return V
  map:    yield 0, eval("pa" + "rt()")
by globals
  before: def part_1(): return V
  map:    yield 0, globals()["part_%d" % 1]()
by methodcaller
  class:  def part(self): return V
  map:    yield 0, operator.methodcaller("pa" + "rt")(self)
by dir
  class:  def part_a(self): return V
  map:    yield 0, [getattr(self, name)() for name in dir(self) if name.startswith("pa" + "rt")][0]
a function made by types
  before: def a(): return V
          part = types.FunctionType(a.__code__, {})
  map:    yield 0, part()
a function whose code is replaced
  before: def a(): return 0
          def b(): return V
          a.__code__ = b.__code__
  map:    yield 0, a()
a loop that sets methods
  before: class Part: pass
          for i in range(2): setattr(Part, f"n{i}", lambda self, i=i: V * i)
  map:    yield 0, Part().n1()
a dispatching method
  class:  @functools.singledispatchmethod
          def part(self, x): return 0
          @part.register
          def _(self, x: int): return V
  map:    yield 0, self.part(1)
a dataclass's factory
  before: @dataclasses.dataclass
          class D: n: list = dataclasses.field(default_factory=lambda: [V])
  map:    yield 0, D().n
a keyword's default
  before: def part(*, n=V): return n
  map:    yield 0, part()
a signed zero
  map:    yield 0, 0.0 if V == 1 else -0.0
a number's type
  before: n = [None, 1, 1.0][V]
  map:    yield 0, n
a name that is read
  before: def part_V(): pass
          part = part_V
  map:    yield 0, part.__name__
a local class
  map:    class Part: n = V
          yield 0, Part.n
a wrapped function
  before: def f(): return V
          @functools.wraps(f)
          def g(): return g.__wrapped__()
  map:    yield 0, g()
combine is reduce
  class:  def reduce(self, key, series): return V
          combine = reduce
  map:    yield 0, 1
combine calls plot
  class:  def plot(self, outcome, axes): return V
          def combine(self, key, series): return self.plot(1, 2)
  map:    yield 0, 1
reduce by a property
  class:  def reduce(self, key=0, series=0): return V
          part = property(reduce)
  map:    yield 0, self.part
reduce by a made-up name
  class:  def reduce(self, key=0, series=0): return V
  map:    yield 0, getattr(self, "red" + "uce")()
finish by its text
  class:  def finish(self, results=0): return V
  map:    yield 0, "{0.finish.__defaults__}".format(self); yield 1, operator.methodcaller("fin" + "ish")(self)
reduce of a decorator
  before: KNOWN = []
          def known(f):
              KNOWN.append(f)
              return f
  class:  @known
          def reduce(self, key=0, series=0): return V
  map:    yield 0, KNOWN[0](self)
reduce of another class
  before: class Other(himach.Analysis):
              def map(self, frame): yield 0, 1
              def reduce(self, key=0, series=0): return V
  map:    yield 0, Other().reduce()
the script's reduce that is no analysis's
  before: class Part:
              def reduce(self): return V
  map:    yield 0, Part().reduce()
a local reduce
  before: def reduce(): return V
  map:    yield 0, reduce()
reduce that is called as the script is loaded
  before: class Other(himach.Analysis):
              def reduce(self, key=0, series=0): return V
          N = Other().reduce()
  map:    yield 0, N
a stage after
  before: class Later(himach.Analysis):
              n = V
  class:  then = Later()
  map:    yield 0, self.then.n
""")
#: What another cell of a notebook does not tell, as docs/tutorial.md says; of a script the text counts.
CELLS_UNSEEN = cases(r"""
a method of a library's class
  before: MDAnalysis.AtomGroup.part = lambda self: V
  map:    yield 0, self.ca.part()
a function of a library's module
  before: MDAnalysis.lib.distances.part = lambda: V
  map:    yield 0, MDAnalysis.lib.distances.part()
a function of a library that is replaced
  before: import MDAnalysis.analysis.rms as rms
          rms.rmsd = lambda a, b: V
  map:    yield 0, rms.rmsd(1, 2)
a registered selection
  before: from MDAnalysis.core.selection import Selection
          class Own(Selection):
              token = "own"
              def __init__(self, parser, tokens): pass
              def apply(self, group): return group[:V]
  map:    yield 0, len(frame.universe.select_atoms("own"))
an annotation of a class
  before: class Part: n: V
  map:    yield 0, Part.__annotations__["n"]
a docstring that is read
  before: def part():
              "V"
  map:    yield 0, part.__doc__
setup that comes to the same
  setup:  self.a = len(" V")
  map:    yield 0, self.a
""")


@pytest.mark.nightly(but=20)
@pytest.mark.parametrize("name", CODE)
def test_another_text_is_another_map(place, name):
    texts = [text_of(CODE[name], value) for value in "112"]
    first, again, second = (fingerprint_of_script(place / str(i), text) for i, text in enumerate(texts))
    assert differences(first, again) == [] or name in NEVER
    assert "the script was changed" in differences(first, second)
    first, again, second = map(fingerprint_of_cell, texts)
    assert differences(first, again) == [] or name in NEVER
    assert differences(first, second)


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize("name", CELLS_UNSEEN)
def test_what_a_cell_does_not_tell_a_script_tells(place, name):
    texts = [text_of(CELLS_UNSEEN[name], value) for value in "12"]
    first, second = (fingerprint_of_script(place / str(i), text) for i, text in enumerate(texts))
    assert "the script was changed" in differences(first, second)
    first, second = map(fingerprint_of_cell, texts)
    assert differences(first, second) == []
