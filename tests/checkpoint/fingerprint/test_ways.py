"""Ways of changing a map by its code: each is seen, in a script and in a notebook; what must not matter does not."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoint.fingerprint.fingerprints import fingerprint_of, fingerprint_of_script

from himach.checkpoint.map_fingerprint import MapFingerprint, differences

HEAD = "import functools, operator, himach\nimport numpy as np\n"
#: What stands in a class before its map(), what map() yields, a text that an edit replaces, and what takes its place.
IN_CLASS = {
    "map": ("", "1", "yield 1, 1", "yield 1, 2"),
    "a property": ("    @property\n    def part(self): return 1\n", "self.part", "return 1", "return 2"),
    "a cached property": (
        "    @functools.cached_property\n    def part(self): return 1\n",
        "self.part",
        "return 1",
        "return 2",
    ),
    "a static method": ("    @staticmethod\n    def part(): return 1\n", "self.part()", "return 1", "return 2"),
    "a class method": ("    @classmethod\n    def part(cls): return 1\n", "Mine.part()", "return 1", "return 2"),
    "a cached method": (
        "    @functools.lru_cache\n    def part(self): return 1\n",
        "self.part()",
        "return 1",
        "return 2",
    ),
    "getattr": ("    def part_1(self): return 1\n", "getattr(self, f'part_{1}')()", "return 1", "return 2"),
    "__getattr__": ("    def __getattr__(self, name): return 1\n", "self.whatever", "return 1", "return 2"),
    "__init__": (
        "    def __init__(self):\n        super().__init__()\n        self.a = 1\n",
        "self.a",
        "self.a = 1",
        "self.a = 2",
    ),
    "setup": ("    def setup(self, u): self.a = len(u.atoms)\n", "self.a", "len(u.atoms)", "len(u.residues)"),
    "setup that comes to the same": ("    def setup(self, u): self.a = 1\n", "self.a", "= 1", "= len('x')"),
    "an attribute": ("    FACTOR = 1\n", "self.FACTOR", "FACTOR = 1", "FACTOR = 2"),
    "a default": ("    def part(self, x=1): return x\n", "self.part()", "x=1", "x=2"),
    "combine": ("    def combine(self, key, series): return 1\n", "1", "return 1", "return 2"),
    "combine that calls reduce": (
        "    def combine(self, key, series): return self.reduce(key, series)\n    def reduce(self, k, s): return 1\n",
        "1",
        "return 1",
        "return 2",
    ),
}
#: The same of what stands before the class.
BEFORE = {
    "a function": ("def part(): return 1\n", "part()", "return 1", "return 2"),
    "a constant": ("LIMIT = 1\n", "LIMIT", "= 1", "= 2"),
    "a large array": ("BIG = np.arange(100_000)\n", "BIG[-1]", "100_000", "100_001"),
    "a cached function": ("@functools.lru_cache\ndef part(): return 1\n", "part()", "return 1", "return 2"),
    "what a decorator does": (
        "def twice(f):\n    @functools.wraps(f)\n    def g(*a): return 2 * f(*a)\n    return g\n"
        "@twice\ndef part(): return 1\n",
        "part()",
        "2 * f",
        "3 * f",
    ),
    "two closures": ("def make(n): return lambda x: n * x\nf, g = make(2), make(3)\n", "f(1) - g(1)", "f, g", "g, f"),
    "two lambdas": ("f, g = lambda x: x, lambda x: 2 * x\n", "f(1) - g(1)", "f, g", "g, f"),
    "a partial": ("f = functools.partial(pow, 2)\n", "f(1)", "pow, 2", "pow, 3"),
    "a dict of functions": ("def a(): return 1\nWAYS = {'a': a}\n", "WAYS['a']()", "return 1", "return 2"),
    "a class": ("class Part:\n    def value(self): return 1\n", "Part().value()", "return 1", "return 2"),
    "a class's base": (
        "class Root:\n    def value(self): return 1\nclass Part(Root): pass\n",
        "Part().value()",
        "return 1",
        "return 2",
    ),
    "recursion": ("def part(n): return n and part(n - 1) + 1\n", "part(3)", "+ 1", "+ 2"),
    "an enum": ("import enum\nclass Way(enum.Enum):\n    A = 1\n", "Way.A.value", "A = 1", "A = 2"),
    "a list's subclass": ("class Several(list): pass\nTHEM = Several([1, 2])\n", "THEM[0]", "[1, 2]", "[2, 2]"),
    "a callable object": (
        "class Way:\n    def __call__(self): return 1\nway = Way()\n",
        "way()",
        "return 1",
        "return 2",
    ),
    "a library's function that is patched": ("np.mine = lambda: 1\n", "np.mine()", "lambda: 1", "lambda: 2"),
    "another library's function": ("from numpy import sin as f\n", "f(1)", "import sin", "import cos"),
    "vectorize": ("def part(x): return 3\nparts = np.vectorize(part)\n", "parts([1])", "return 3", "return 2"),
    "a class within a function": (
        "def part(): return 1\ndef made():\n    class Inner:\n        x = part()\n    return Inner\n",
        "made().x",
        "return 1",
        "return 3",
    ),
    "a metaclass": (
        "class Meta(type):\n    def __getitem__(cls, i): return 1\nclass Part(metaclass=Meta): pass\n",
        "Part[0]",
        "return 1",
        "return 2",
    ),
    "a namedtuple's default": (
        "from collections import namedtuple\nPair = namedtuple('Pair', 'a b', defaults=[1])\n",
        "Pair(1).b",
        "defaults=[1]",
        "defaults=[2]",
    ),
    "a frozenset among constants": ("def part(x): return x in {1, 2}\n", "part(1)", "{1, 2}", "{1, 3}"),
    "eval": ("def part(): return 1\n", "eval('part' + '()')", "return 1", "return 2"),
    "globals": ("def part_1(): return 1\n", "globals()[f'part_{1}']()", "return 1", "return 2"),
}
#: What other processes cannot import counts by what names lead to: not where names are made up, nor in libraries.
UNSEEN_IN_CELLS = {"eval", "globals", "a library's function that is patched"}
MINE = "class Mine(himach.Analysis):\n"


def script_of(before, inside, yielded):
    return f"{HEAD}{before}{MINE}{inside}    def map(self, frame):\n        yield 1, {yielded}\n"


WAYS = {name: (script_of("", inside, *rest[:1]), *rest[1:]) for name, (inside, *rest) in IN_CLASS.items()}
WAYS |= {name: (script_of(before, "", *rest[:1]), *rest[1:]) for name, (before, *rest) in BEFORE.items()}

SAME = '''
import himach
import numpy as np
from functools import reduce

def helper(x, power=2):
    """Raise."""
    return x ** power

class Mine(himach.Analysis):
    "Doc."
    def map(self, frame):
        yield "far", helper(frame.number)  # enough
        yield 'sum', reduce(int.__add__, (1_000, 2)) + np.add.reduce([3, 4]) if frame.number > 2 else 0
    def reduce(self, key, series):
        part = self.part(key)
        return np.sum(series.values)
    def finish(self, results):
        return {"n": [len(results)]}
    def plot(self, outcome, axes):
        axes.plot(outcome["n"])

class Later(himach.Analysis):
    def reduce_many(self, keys, series):
        return 1
'''
REDUCING = "reduce(int.__add__, (1_000, 2)) + np.add.reduce([3, 4])"
#: What must not matter.
EDITS = {
    "a comment": ("# enough", "# quite enough"),
    "lines": ("class Mine(", "# more\n\n\nclass Mine("),
    "formatting": ('yield "far", helper(frame.number)', "yield ( 'far' ,\n            helper(\n frame.number), )"),
    "a docstring": ('"""Raise."""', '"""Raise to a power."""'),
    "no docstring": ('    """Raise."""\n', ""),
    "the class's docstring": ('"Doc."', '"Other."'),
    "reduce": ("np.sum", "np.mean"),
    "finish": ("[len(results)]", "[0]"),
    "plot": ('axes.plot(outcome["n"])', "axes.plot([1])"),
    "another analysis's reduce_many": ("return 1", "return 2"),
    "a word in a comment": ("# enough", "# finish() and plot() use it"),
    "no comment": ("  # enough", ""),
    "blank lines": ("\n    def finish", "\n\n\n    def finish"),
    "quotes": ("yield 'sum'", 'yield "sum"'),
    "parentheses": ("return x ** power", "return ((x) ** (power))"),
    "digits": ("1_000", "1000"),
    "text in two pieces": ('"far"', '"f" "ar"'),
    "an escape": ('"far"', '"f\\x61r"'),
    "a line that goes on": ("x ** power", "x \\\n        ** power"),
    "a longer docstring": ('"""Raise."""', '"""Raise.\n\n    Parameters\n    ----------\n    x\n        It.\n    """'),
    "the module's docstring": ("\nimport himach\n", '"""Mine."""\nimport himach\n'),
    "a name in reduce": ("part = self.part(key)", "piece = self.part(key)"),
    "more in reduce": ("part = self.part(key)", "import math\n        part = math.sqrt(2)"),
    "less in reduce": ("        part = self.part(key)\n", ""),
    "a docstring of reduce": ("        part = self.part(key)\n", '        "Doc."\n'),
    "plot on other axes": ("axes.plot(", "axes.figure.gca().plot("),
    "no end of the last line": ("        return 1\n", "        return 1"),
    "ends of lines as on Windows": ("\n", "\r\n"),
}


def script(folder, text, name="script.py"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(text.encode())
    importlib.invalidate_caches()
    return fingerprint_of_script(folder, cls="Mine", name=name)


def cell(text):
    """Return the fingerprint of an analysis that no other process can import."""
    names = {"__name__": "nowhere"}
    exec(compile(text, "<cell>", "exec"), names)
    return fingerprint_of(names["Mine"]())


@pytest.mark.parametrize("name", WAYS)
def test_a_change_is_seen(tmp_path, name):
    text, old, new = WAYS[name]
    assert text.count(old) == 1
    before = script(tmp_path / "a", text)
    assert not before.unstable
    assert differences(before, script(tmp_path / "c", text)) == []  # moved elsewhere
    assert "the script was changed" in differences(before, script(tmp_path / "b", text.replace(old, new)))


@pytest.mark.parametrize("name", [name for name in WAYS if name not in UNSEEN_IN_CELLS])
def test_a_change_is_seen_in_a_cell(name):
    text, old, new = WAYS[name]
    before = cell(text)
    assert not before.unstable
    assert differences(before, cell(text)) == []
    assert differences(before, cell(text.replace(old, new)))


@pytest.mark.parametrize("name", EDITS)
def test_what_does_not_matter_is_not_seen(tmp_path, name):
    old, new = EDITS[name]
    assert SAME.count(old) == 1 or old == "\n"
    assert differences(script(tmp_path / "a", SAME), script(tmp_path / "b", SAME.replace(old, new))) == []
    plain = SAME.replace(REDUCING, "1_000")  # in a cell, reduce() counts where another function of that name is called
    assert differences(cell(plain), cell(plain.replace(old, new))) == []
    assert differences(script(tmp_path / "a", SAME), script(tmp_path / "c", SAME.replace(old, new), "other.py")) == []


USES = {
    "from": ("from beside import f\n", "f()"),
    "import": ("import beside\n", "beside.f()"),
    "handed on": ("import beside\ndef use(m): return m.f()\n", "use(beside)"),
    "in a package": ("import inside.deep\n", "inside.deep.f()"),
    "from a package": ("from inside import deep\n", "deep.f()"),
    "passed on by a package": ("from inside import f\n", "f()"),
}


@pytest.mark.parametrize("name", USES)
def test_own_modules_count(tmp_path, name):
    before, use = USES[name]

    def found(folder, value):
        (tmp_path / folder / "inside").mkdir(parents=True)
        for file in ("beside.py", "inside/deep.py"):
            (tmp_path / folder / file).write_text(f"def f():\n    return {value}\n")
        (tmp_path / folder / "inside" / "__init__.py").write_text("from inside.deep import f\n")
        return script(tmp_path / folder, script_of(before, "", use))

    first = found("a", 1)
    assert differences(first, found("b", 1)) == []
    (told,) = differences(first, found("c", 2))
    assert told in ("beside.py was changed", "deep.py was changed")


C = """
#include <Python.h>
static PyObject *f(PyObject *self, PyObject *none) { return PyLong_FromLong(VALUE); }
static PyMethodDef methods[] = {{"f", f, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "fast", "", -1, methods, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit_fast(void) { return PyModule_Create(&module); }
"""


def test_a_compiled_module_counts_by_its_bytes(tmp_path):
    found = []
    for folder, value in (("a", 1), ("b", 2), ("c", 1)):
        (tmp_path / folder).mkdir()
        source = tmp_path / "fast.c"
        source.write_text(C.replace("VALUE", str(value)))
        target = tmp_path / folder / f"fast{sysconfig.get_config_var('EXT_SUFFIX')}"
        include = f"-I{sysconfig.get_path('include')}"
        subprocess.run(["cc", "-shared", "-fPIC", include, str(source), "-o", str(target)], check=True)
        found.append(script(tmp_path / folder, script_of("from fast import f\n", "", "f()")))
        sys.modules.pop("fast")
    (told,) = differences(found[0], found[1])
    assert told.startswith("fast.")
    assert differences(found[0], found[2]) == []


def test_values_that_a_module_computes_count(tmp_path, monkeypatch):
    text = script_of(
        "import os\nLIMIT = int(os.environ['LIMIT'])\nUNUSED = LIMIT\n", "    LEAST = LIMIT\n", "LIMIT + self.LEAST"
    )
    monkeypatch.setenv("LIMIT", "3")
    before = script(tmp_path, text)
    monkeypatch.setenv("LIMIT", "4")
    assert differences(before, script(tmp_path, text)) == ["LIMIT is now 4", "Mine.LEAST is now 4"]


def test_what_cannot_be_compared_is_never_the_same_and_named(tmp_path):
    text = script_of("LOG = open(__file__)\n", "", "LOG.name")
    before = script(tmp_path, text)
    assert before.unstable == {"LOG": "_io.TextIOWrapper"}
    assert differences(before, before) == ["LOG cannot be compared with that of another run (_io.TextIOWrapper)"]
    assert not script(tmp_path, text.replace("LOG.name", "1")).unstable


PROCESS = """
import json, sys
sys.path.insert(0, sys.argv[2])
from checkpoint.fingerprint.fingerprints import fingerprint_of_script
print(json.dumps(fingerprint_of_script(sys.argv[1], cls="Mine").to_json()))
"""
HASHED = """
import himach
import pandas
NAMES = {"a", "b", "c", "d", ("e", 1)}
TABLE = {name: i for i, name in enumerate("abc")}
class Part:
    def __init__(self): self.names = frozenset("xyz")
class Mine(himach.Analysis):
    def setup(self, universe):
        self.part, self.ca, self.all = Part(), universe.select_atoms("name CA"), {*universe.residues}
        self.near = universe.select_atoms("around 5 name CA", updating=True)
        self.frame = pandas.DataFrame({"name": ["x", None], "value": [1.0, float("nan")]}, index=["u", "v"])
        self.way = lambda x: x in {"p", "q", "r"}
    def map(self, frame):
        yield 1, len(NAMES) + len(TABLE) + len(self.part.names) + len(self.ca) + len(self.all) + len(self.near)
        yield 2, frame.number in {1, 2, 3} or "x" in {"a", "b"}
"""


def test_processes_agree(tmp_path):
    (tmp_path / "script.py").write_text(HASHED)
    tests = str(Path(__file__).parents[2])
    found = []
    for seed in ("0", "1", "2"):
        command = [sys.executable, "-c", PROCESS, str(tmp_path), tests]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.append(MapFingerprint.from_json(json.loads(done.stdout)))
    assert not found[0].unstable
    assert differences(found[0], found[1]) == differences(found[0], found[2]) == []


@pytest.mark.parametrize(
    ("yielded", "seen"), [("self.kept", True), ("getattr(self, ''.join(['ke', 'pt']))", True), ("1", False)]
)
def test_what_setup_left_counts_where_map_may_read_it(tmp_path, monkeypatch, yielded, seen):
    setup = "    def setup(self, u): import os; self.kept = os.environ['KEPT']\n"
    monkeypatch.setenv("KEPT", "1")
    before = script(tmp_path, script_of("", setup, yielded))
    monkeypatch.setenv("KEPT", "2")
    now = script(tmp_path, script_of("", setup, yielded))
    assert differences(before, now) == ["self.kept is another after setup()"] * seen


def test_versions_count_of_packages_that_both_have_loaded(tmp_path):
    before = script(tmp_path, SAME)
    versions = before.parts["versions"]
    for changed, told in (
        ({**versions, "numpy": ("1", "1")}, [f"numpy {versions['numpy'][0]} is now 1"]),
        ({**versions, "another": ("1", "1")}, []),
        ({name: version for name, version in versions.items() if name != "numpy"}, []),
    ):
        assert differences(before, replace(before, parts={**before.parts, "versions": changed})) == told
