"""What a map's code reaches, by whatever way: an edit there counts, and one beside it does not."""

from __future__ import annotations

import importlib
import subprocess
import sys
import sysconfig

import pytest
from keeping.maps.identities import identity_of, identity_of_script

from himach.keeping.maps.identity import differences

HEAD = """
import functools
import operator
import himach
import numpy as np
"""

#: Name: a script, a text in it, what takes its place, what is said.
SCRIPTS = {
    "a mixin": (
        "class Mixin:\n    def part(self):\n        return 1\n"
        "class Mine(Mixin, himach.Analysis):\n    def map(self, frame):\n        yield 1, self.part()\n",
        "return 1",
        "return 2",
        ["part() was changed"],
    ),
    "super": (
        "class Base(himach.Analysis):\n    def map(self, frame):\n        yield 1, 1\n"
        "class Mine(Base):\n    def map(self, frame):\n        yield from super().map(frame)\n",
        "yield 1, 1",
        "yield 1, 2",
        ["Base.map() was changed"],
    ),
    "a base's map that is not used": (
        "class Base(himach.Analysis):\n    def map(self, frame):\n        yield 1, 1\n"
        "class Mine(Base):\n    def map(self, frame):\n        yield 1, 3\n",
        "yield 1, 1",
        "yield 1, 2",
        [],
    ),
    "an inherited map": (
        "class Base(himach.Analysis):\n    def map(self, frame):\n        yield 1, 1\nclass Mine(Base):\n    pass\n",
        "yield 1, 1",
        "yield 1, 2",
        ["map() was changed"],
    ),
    "a map that is defined anew": (
        "class Base(himach.Analysis):\n    def map(self, frame):\n        yield 1, 1\nclass Mine(Base):\n    pass\n",
        "Mine(Base):\n    pass",
        "Mine(Base):\n    def map(self, frame):\n        yield 1, 5",
        ["map() was changed"],
    ),
    "a property": (
        "class Mine(himach.Analysis):\n    @property\n    def part(self):\n        return 1\n"
        "    def map(self, frame):\n        yield 1, self.part\n",
        "return 1",
        "return 2",
        ["part() was changed"],
    ),
    "a cached property": (
        "class Mine(himach.Analysis):\n    @functools.cached_property\n    def part(self):\n        return 1\n"
        "    def map(self, frame):\n        yield 1, self.part\n",
        "return 1",
        "return 2",
        ["part() was changed"],
    ),
    "a static method": (
        "class Mine(himach.Analysis):\n    @staticmethod\n    def part():\n        return 1\n"
        "    def map(self, frame):\n        yield 1, self.part()\n",
        "return 1",
        "return 2",
        ["part() was changed"],
    ),
    "a class method by the class's name": (
        "class Mine(himach.Analysis):\n    @classmethod\n    def part(cls):\n        return 1\n"
        "    def map(self, frame):\n        yield 1, Mine.part()\n",
        "return 1",
        "return 2",
        ["part() was changed"],
    ),
    "lru_cache": (
        "@functools.lru_cache\ndef part():\n    return 1\n"
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, part()\n",
        "return 1",
        "return 2",
        ["part() was changed"],
    ),
    "lru_cache on a method": (
        "class Mine(himach.Analysis):\n    @functools.lru_cache\n    def part(self):\n        return 1\n"
        "    def map(self, frame):\n        yield 1, self.part()\n",
        "return 1",
        "return 2",
        ["part() was changed"],
    ),
    "a decorator of one's own": (
        "def twice(f):\n    @functools.wraps(f)\n    def g(*a):\n        return 2 * f(*a)\n    return g\n"
        "@twice\ndef part():\n    return 1\n"
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, part()\n",
        "return 1\n",
        "return 3\n",
        ["part() was changed"],
    ),
    "what a decorator does": (
        "def twice(f):\n    @functools.wraps(f)\n    def g(*a):\n        return 2 * f(*a)\n    return g\n"
        "@twice\ndef part():\n    return 1\n"
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, part()\n",
        "return 2 * f",
        "return 3 * f",
        ["part() was changed"],
    ),
    "a decorated map": (
        "def twice(f):\n    def g(*a):\n        return f(*a)\n    return g\n"
        "class Mine(himach.Analysis):\n    @twice\n    def map(self, frame):\n        yield 1, 1\n",
        "yield 1, 1",
        "yield 1, 2",
        None,
    ),
    "a closure": (
        "def make(n):\n    def f(x):\n        return n * x\n    return f\nf = make(2)\n"
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, f(1)\n",
        "make(2)",
        "make(3)",
        None,
    ),
    "two closures, the other way round": (
        "def make(n):\n    def f(x):\n        return n * x\n    return f\nf, g = make(2), make(3)\n"
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, f(1) - g(1)\n",
        "f, g =",
        "g, f =",
        None,
    ),
    "two lambdas, the other way round": (
        "f, g = lambda x: x, lambda x: 2 * x\n"
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, f(1) - g(1)\n",
        "f, g =",
        "g, f =",
        None,
    ),
    "two functions, the other way round": (
        "def a(x):\n    return x\ndef b(x):\n    return 2 * x\nf, g = a, b\n"
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, f(1) - g(1)\n",
        "f, g =",
        "g, f =",
        ["f is another", "g is another"],
    ),
    "a partial": (
        "f = functools.partial(pow, 2)\n"
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, f(1)\n",
        "pow, 2",
        "pow, 3",
        ["f() was changed"],
    ),
    "a dict of functions": (
        "def a(x):\n    return 1\nWAYS = {'a': a}\n"
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, WAYS['a'](1)\n",
        "return 1",
        "return 2",
        ["a() was changed"],
    ),
    "a default that is a function": (
        "def a(x):\n    return 1\n"
        "class Mine(himach.Analysis):\n    def map(self, frame, way=a):\n        yield 1, way(1)\n",
        "return 1",
        "return 2",
        ["a() was changed"],
    ),
    "a class": (
        "class Part:\n    def value(self):\n        return 1\n"
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, Part().value()\n",
        "return 1",
        "return 2",
        ["Part.value() was changed"],
    ),
    "a class's base": (
        "class Root:\n    def value(self):\n        return 1\nclass Part(Root):\n    pass\n"
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, Part().value()\n",
        "return 1",
        "return 2",
        ["Root.value() was changed"],
    ),
    "an object that setup made": (
        "class Part:\n    def value(self):\n        return 1\n"
        "class Mine(himach.Analysis):\n    def setup(self, u):\n        self.part = Part()\n"
        "    def map(self, frame):\n        yield 1, self.part.value()\n",
        "return 1",
        "return 2",
        ["Part.value() was changed"],
    ),
    "an object that asks the analysis": (
        "class Part:\n    def __init__(self, a):\n        self.a = a\n"
        "    def value(self):\n        return self.a.seen\n"
        "class Mine(himach.Analysis):\n    def setup(self, u):\n        self.seen = 1\n        self.part = Part(self)\n"
        "    def map(self, frame):\n        yield 1, self.part.value()\n",
        "self.seen = 1",
        "self.seen = 2",
        ["setup() was changed"],
    ),
    "a function that setup chose": (
        "def a():\n    return 1\ndef b():\n    return 2\n"
        "class Mine(himach.Analysis):\n    def setup(self, u):\n        self.way = a if len(u.atoms) else b\n"
        "    def map(self, frame):\n        yield 1, self.way()\n",
        "return 1",
        "return 3",
        ["a() was changed"],
    ),
    "getattr": (
        "class Mine(himach.Analysis):\n    def part(self):\n        return 1\n"
        "    def map(self, frame):\n        yield 1, getattr(self, 'part')()\n",
        "return 1",
        "return 2",
        ["part() was changed"],
    ),
    "getattr with a name that is made up": (
        "class Mine(himach.Analysis):\n    def part_1(self):\n        return 1\n"
        "    def map(self, frame):\n        yield 1, getattr(self, f'part_{1}')()\n",
        "return 1\n",
        "return 2\n",
        ["part_1() was changed"],
    ),
    "methodcaller": (
        "class Mine(himach.Analysis):\n    def part(self):\n        return 1\n"
        "    def map(self, frame):\n        yield 1, operator.methodcaller('part')(self)\n",
        "return 1",
        "return 2",
        ["part() was changed"],
    ),
    "globals": (
        "def part_1():\n    return 1\n"
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, globals()[f'part_{1}']()\n",
        "return 1\n",
        "return 2\n",
        ["part_1() was changed"],
    ),
    "a global that setup sets": (
        "SIZE = None\nclass Mine(himach.Analysis):\n    def setup(self, u):\n        global SIZE\n"
        "        SIZE = len(u.atoms) + OFFSET\n    def map(self, frame):\n        yield 1, SIZE\nOFFSET = 1\n",
        "OFFSET = 1",
        "OFFSET = 2",
        ["OFFSET is now 2", "SIZE is now 584"],
    ),
    "a nested function": (
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        def inner():\n            return part()\n"
        "        yield 1, [inner() for _ in range(2)]\ndef part():\n    return 1\n",
        "return 1",
        "return 2",
        ["part() was changed"],
    ),
    "a comprehension": (
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, [part() for _ in range(2)]\n"
        "def part():\n    return 1\n",
        "return 1",
        "return 2",
        ["part() was changed"],
    ),
    "recursion": (
        "def part(n):\n    return n and part(n - 1) + 1\n"
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, part(3)\n",
        "+ 1",
        "+ 2",
        ["part() was changed"],
    ),
    "np.add.reduce is not reduce()": (
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, np.add.reduce([1, 2])\n"
        "    def reduce(self, key, series):\n        return 1\n",
        "return 1",
        "return 2",
        [],
    ),
    "combine that calls reduce": (
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, 1\n"
        "    def combine(self, key, series):\n        return self.reduce(key, series)\n"
        "    def reduce(self, key, series):\n        return 1\n",
        "return 1",
        "return 2",
        ["reduce() was changed"],
    ),
    "a combine that is new": (
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, 1\n    # more\n",
        "# more",
        "def combine(self, key, series):\n        return 1",
        ["combine() is new"],
    ),
    "a later stage": (
        "class Later(himach.Analysis):\n    def reduce(self, key, series):\n        return 1\n"
        "class Mine(himach.Analysis):\n    then = Later\n    def map(self, frame):\n        yield 1, 1\n"
        "    def reduce(self, key, series):\n        yield 1, 1\n",
        "return 1",
        "return 2",
        [],
    ),
    "a dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass Options:\n    size: int = 3\nOPTIONS = Options()\n"
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, OPTIONS.size\n",
        "size: int = 3",
        "size: int = 4",
        None,
    ),
    "an enum": (
        "import enum\nclass Way(enum.Enum):\n    A = 1\n"
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, Way.A.value\n",
        "A = 1",
        "A = 2",
        None,
    ),
    "a list's subclass": (
        "class Several(list):\n    pass\nTHEM = Several([1, 2])\n"
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, THEM[0]\n",
        "[1, 2]",
        "[2, 2]",
        None,
    ),
    "a callable object": (
        "class Way:\n    def __call__(self):\n        return 1\nway = Way()\n"
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, way()\n",
        "return 1",
        "return 2",
        ["Way.__call__() was changed"],
    ),
    "__getattr__": (
        "class Mine(himach.Analysis):\n    def __getattr__(self, name):\n        return 1\n"
        "    def map(self, frame):\n        yield 1, self.whatever\n",
        "return 1",
        "return 2",
        ["__getattr__() was changed"],
    ),
    "a monkeypatched method": (
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, 1\n"
        "def other(self, frame):\n    yield 1, 2\nMine.map = other\n",
        "yield 1, 2",
        "yield 1, 3",
        None,
    ),
    "what was patched over": (
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, 1\n"
        "def other(self, frame):\n    yield 1, 2\nMine.map = other\n",
        "yield 1, 1",
        "yield 1, 3",
        [],
    ),
    "a library's function that is patched": (
        "np.mine = lambda: 1\nclass Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, np.mine()\n",
        "lambda: 1",
        "lambda: 2",
        None,
    ),
    "another library's function of the name": (
        "from numpy import sin as f\nclass Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, f(1)\n",
        "import sin",
        "import cos",
        None,
    ),
    "__init__": (
        "class Mine(himach.Analysis):\n    def __init__(self):\n        super().__init__()\n        self.a = 1\n"
        "    def map(self, frame):\n        yield 1, self.a\n",
        "self.a = 1",
        "self.a = 2",
        ["__init__() was changed"],
    ),
    "singledispatch": (
        "@functools.singledispatch\ndef part(x):\n    return 1\n@part.register\ndef _(x: int):\n    return 3\n"
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, part(1)\n",
        "return 3",
        "return 2",
        None,
    ),
    "vectorize": (
        "def part(x):\n    return 3\nparts = np.vectorize(part)\n"
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, parts([1])\n",
        "return 3",
        "return 2",
        ["part() was changed"],
    ),
    "the class's name": (
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield type(self).__qualname__, 1\n"
        "Mine.__qualname__ = 'Mine'\n",
        "'Mine'",
        "'Other'",
        ["the class's name is another"],
    ),
    "a function's name and the module's": (
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield __name__, __file__  # here\n",
        "# here",
        "",
        [],
    ),
    "a function that hangs on another": (
        "def part():\n    return 1\ndef more():\n    return 2\npart.more = more\n"
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, part.more()\n",
        "return 2",
        "return 3",
        ["more() was changed"],
    ),
    "eval": (
        "def part():\n    return 1\n"
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, eval('part' + '()')\n",
        "return 1",
        "return 3",
        ["part() was changed"],
    ),
    "a class within a function": (
        "def part():\n    return 1\n"
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        class Inner:\n            x = part()\n"
        "        yield 1, Inner.x\n",
        "return 1",
        "return 3",
        ["part() was changed"],
    ),
    "a descriptor": (
        "class Lazy:\n    def __get__(self, thing, cls):\n        return 1\n"
        "class Mine(himach.Analysis):\n    part = Lazy()\n    def map(self, frame):\n        yield 1, self.part\n",
        "return 1",
        "return 3",
        ["Lazy.__get__() was changed"],
    ),
    "match": (
        "class Part:\n    __match_args__ = ('a',)\n    a = 1\n"
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        match Part():\n            case Part(x):\n"
        "                yield 1, x\n",
        "a = 1",
        "a = 2",
        ["Part.a is now 2"],
    ),
    "a metaclass": (
        "class Meta(type):\n    def __getitem__(cls, i):\n        return 1\nclass Part(metaclass=Meta):\n    pass\n"
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, Part[0]\n",
        "return 1",
        "return 2",
        ["Meta.__getitem__() was changed"],
    ),
    "a namedtuple's default": (
        "from collections import namedtuple\nPair = namedtuple('Pair', 'a b', defaults=[1])\n"
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, Pair(1).b\n",
        "defaults=[1]",
        "defaults=[2]",
        None,
    ),
    "a set": (
        "NAMES = {'a', 'b', 'c'}\n"
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, len(NAMES)\n",
        "'a', 'b', 'c'",
        "'c', 'b', 'a'",
        [],
    ),
    "a logger": (
        "import logging\nlog = logging.getLogger('a')\n"
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        log.debug('x')\n        yield 1, 1\n",
        "getLogger('a')",
        "getLogger('b')",
        [],
    ),
    "a frozenset among constants": (
        "class Mine(himach.Analysis):\n    def map(self, frame):\n        if frame.number in {1, 2}:\n"
        "            yield 1, 1\n",
        "{1, 2}",
        "{1, 3}",
        ["map() was changed"],
    ),
}
#: The same with a module beside the script.
MODULES = {
    "from": ("from beside import f\n", "f()", ["f() in beside.py was changed"]),
    "as": ("from beside import f as g\n", "g()", ["f() in beside.py was changed"]),
    "import": ("import beside\n", "beside.f()", ["f() in beside.py was changed"]),
    "within": ("", "__import__('beside').f()", ["f() in beside.py was changed"]),
    "importlib": ("import importlib\n", "importlib.import_module('beside').f()", ["f() in beside.py was changed"]),
    "by getattr": ("import beside\n", "getattr(beside, 'f')()", ["f() in beside.py was changed"]),
    "handed on": ("import beside\ndef use(m):\n    return m.f()\n", "use(beside)", ["f() in beside.py was changed"]),
    "in a package": ("import inside.deep\n", "inside.deep.f()", ["f() in deep.py was changed"]),
    "from a package": ("from inside import deep\n", "deep.f()", ["f() in deep.py was changed"]),
    "passed on by a package": ("from inside import f\n", "f()", ["f() in deep.py was changed"]),
}
LAZY = {
    "from": ("from beside import f", "f()"),
    "import": ("import beside", "beside.f()"),
    "of a package": ("from inside import deep", "deep.f()"),
    "deep": ("import inside.deep as d", "d.f()"),
}


def folder_of(folder, script, value=1, other=1):
    (folder / "inside").mkdir(parents=True, exist_ok=True)
    (folder / "script.py").write_text(HEAD + script)
    text = f"def f():\n    return {value}\ndef other():\n    return {other}\n"
    (folder / "beside.py").write_text(text)
    (folder / "inside" / "deep.py").write_text(text)
    (folder / "inside" / "__init__.py").write_text("from inside.deep import f\n")
    importlib.invalidate_caches()
    return identity_of_script(folder, cls="Mine")


@pytest.mark.parametrize("name", SCRIPTS)
def test_code_is_found_however_it_is_reached(tmp_path, name):
    script, old, new, told = SCRIPTS[name]
    assert script.count(old) == 1
    before, again = folder_of(tmp_path / "a", script), folder_of(tmp_path / "c", script)
    assert differences(before, again) == []  # moved elsewhere
    found = differences(before, folder_of(tmp_path / "b", script.replace(old, new)))
    assert found if told is None else found == told, found


@pytest.mark.parametrize("name", MODULES)
def test_modules_of_the_folder_count(tmp_path, name):
    first, use, told = MODULES[name]
    script = f"{first}class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, {use}\n"
    before = folder_of(tmp_path / "a", script)
    assert differences(before, folder_of(tmp_path / "b", script, value=2)) == told
    if name in ("from", "as", "import", "in a package", "from a package", "passed on by a package"):
        assert differences(before, folder_of(tmp_path / "c", script, other=2)) == []


@pytest.mark.parametrize("name", LAZY)
def test_what_map_imports_itself_counts(tmp_path, name):
    first, use = LAZY[name]
    script = f"class Mine(himach.Analysis):\n    def map(self, frame):\n        {first}\n        yield 1, {use}\n"
    before = folder_of(tmp_path / "a", script)
    (told,) = differences(before, folder_of(tmp_path / "b", script, value=2))
    assert told.startswith("f() in ") and told.endswith(" was changed")


C = """
#include <Python.h>
static PyObject *f(PyObject *self, PyObject *none) { return PyLong_FromLong(VALUE); }
static PyMethodDef methods[] = {{"f", f, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "fastNAME", "", -1, methods, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit_fastNAME(void) { return PyModule_Create(&module); }
"""


@pytest.mark.parametrize(("first", "use"), [("from fastNAME import f", "f()"), ("import fastNAME", "fastNAME.f()")])
def test_a_compiled_module_counts_by_its_bytes(tmp_path, first, use):
    script = f"{first}\nclass Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, {use}\n"
    found = []
    name = "one" if "from" in first else "two"  # a process keeps a compiled module for ever
    for folder, value in (("a", 1), ("b", 2), ("c", 1)):
        (tmp_path / folder).mkdir()
        source = tmp_path / f"fast{name}.c"
        source.write_text(C.replace("NAME", name).replace("VALUE", str(value)))
        target = tmp_path / folder / f"fast{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
        include = f"-I{sysconfig.get_path('include')}"
        subprocess.run(["cc", "-shared", "-fPIC", include, str(source), "-o", str(target)], check=True)
        found.append(folder_of(tmp_path / folder, script.replace("NAME", name)))
        sys.modules.pop(f"fast{name}")
    assert differences(found[0], found[1]) == [f"fast{name} was changed"]
    assert differences(found[0], found[2]) == []


def test_code_whose_source_is_gone_or_edited_counts_as_it_runs(tmp_path):
    script = "class Mine(himach.Analysis):\n    def map(self, frame):\n        yield 1, 2  # two\n"
    folder_of(tmp_path / "a", script)
    cls = sys.modules["himach_script_script"].Mine
    file = tmp_path / "a" / "script.py"
    text = file.read_text()
    loaded = identity_of(cls())
    file.write_text("# one more line\n\n" + text.replace("# two", "# 2"))
    assert differences(loaded, identity_of(cls())) == []  # what runs is still what is written there
    file.write_text(text.replace("yield 1, 2", "yield 1, 3"))
    edited = identity_of(cls())
    assert differences(loaded, edited) == ["map() was changed"]  # which cannot be told any more
    file.unlink()
    gone = identity_of(cls())
    assert differences(edited, gone) == []
    assert differences(gone, folder_of(tmp_path / "b", script.replace("yield 1, 2", "yield 1, 3"))) != []
