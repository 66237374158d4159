"""What makes one map: each edit of a script, and what is said of it."""

from __future__ import annotations

import importlib

import pytest
from keeping.identities import identity_of_script

from himach.keeping.identity import differences

SCRIPT = '''
import numpy as np
import himach
import tools
from himach import kernels
from tools import scaled as s

LIMIT = 3
TABLE = {"a": 1, "b": (2, 3)}
BIG = np.arange(100_000)
UNUSED = 1

def helper(x, power=2):
    """Raise."""
    return x ** power

def unrelated(x):
    return x

class Base(himach.Analysis):
    def offset(self):
        return 1.0

class Mine(Base):
    "Doc."
    cutoff: float = 3.5
    reference: str = ""
    FACTOR = 2.0

    def setup(self, universe):
        self.indices = universe.select_atoms("name CA").indices
        self.label_text = "x"
        self.tau = len(self.frames) * (self.dt or 1)

    def atoms(self, universe):
        return universe.atoms[self.indices]

    def map(self, frame):
        positions = frame.positions[self.indices]
        if len(positions) > LIMIT:  # enough
            yield "far", helper(positions[0, 0]) * self.FACTOR + self.offset() + s(1) + tools.deep.value() + TABLE["a"]
        yield "big", int(BIG[-1])
        yield from self.more(frame)

    def more(self, frame):
        yield "more", [int(x) for x in range(3)]

    def combine(self, key, series):
        return series.values[0]

    def reduce(self, key, series):
        return self.shown(series)

    def shown(self, series):
        return unrelated(series.values[-1])

    def finish(self, results):
        return {"results": {"tau": [self.tau], "n": [len(results)]}}
'''
TOOLS = """
import deep

def scaled(x):
    return x * WEIGHT

WEIGHT = 3

def other():
    return 1
"""
DEEP = "def value():\n    return 1\n"


def write(folder, script=SCRIPT, tools=TOOLS, deep=DEEP):
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(script)
    (folder / "tools.py").write_text(tools)
    (folder / "deep.py").write_text(deep)
    importlib.invalidate_caches()
    return folder


def identity(folder, edit=("", ""), parameters=None, **options):
    old, new = edit
    texts = {"script": SCRIPT, "tools": TOOLS, "deep": DEEP}
    if old:
        (name,) = [name for name, text in texts.items() if old in text]
        assert texts[name].count(old) == 1, old
        texts[name] = texts[name].replace(old, new)
    write(folder, **texts)
    return identity_of_script(folder, parameters, cls="Mine", **options)


EDITS = {
    "a comment": ("# enough", "# quite enough", []),
    "a comment line above": ("class Base(", "# more\n\n\nclass Base(", []),
    "formatting": ('yield "big", int(BIG[-1])', 'yield (\n            "big",\n            int(\n BIG[-1]),\n )', []),
    "if on one line": ("        return 1.0", "        return (\n            1.0\n        )", []),
    "a docstring": ('"""Raise."""', '"""Raise to a power."""', []),
    "no docstring": ('    """Raise."""\n', "", []),
    "the class's docstring": ('"Doc."', '"Other."', []),
    "map": ('yield "big", int(BIG[-1])', 'yield "big", int(BIG[-2])', ["map() was changed"]),
    "setup": ('"name CA"', '"name CB or name CA"', ["setup() was changed"]),
    "atoms": ("universe.atoms[self.indices]", "universe.atoms[self.indices[:]]", ["atoms() was changed"]),
    "combine": ("series.values[0]", "series.values[1]", ["combine() was changed"]),
    "a method": ("range(3)]", "range(4)]", ["more() was changed"]),
    "an inherited method": ("return 1.0", "return 1.5", ["offset() was changed"]),
    "a function": ("x ** power", "x * power", ["helper() was changed"]),
    "a default": ("power=2", "power=3", ["helper() was changed"]),
    "an unrelated function": ("def unrelated(x):\n    return x", "def unrelated(x):\n    return 2 * x", []),
    "reduce": ("self.shown(series)", "self.shown(series) * 2", []),
    "what only reduce calls": ("unrelated(series.values[-1])", "unrelated(series.values[0])", []),
    "finish": ('"n": [len(results)]', '"n": [0]', []),
    "a constant": ("LIMIT = 3", "LIMIT = 4", ["LIMIT is now 4"]),
    "a constant, said otherwise": ("LIMIT = 3", "LIMIT = 2 + 1", []),
    "a table": ("(2, 3)", "(2, 4)", ["TABLE is now {'a': 1, 'b': (2, 4)}"]),
    "a large array": ("np.arange(100_000)", "np.arange(100_001)", ["BIG is another"]),
    "an unused constant": ("UNUSED = 1", "UNUSED = 2", []),
    "an attribute of the class": ("FACTOR = 2.0", "FACTOR = 2.5", ["FACTOR is now 2.5"]),
    "an attribute that only finish reads": ("(self.dt or 1)", "(self.dt or 2)", ["setup() was changed"]),
    "a parameter's default": ("cutoff: float = 3.5", "cutoff: float = 3.2", ["cutoff 3.5 is now 3.2"]),
    "a function of another module": ("x * WEIGHT", "WEIGHT * x", ["scaled() in tools.py was changed"]),
    "a constant of another module": ("WEIGHT = 3", "WEIGHT = 5", ["WEIGHT in tools.py is now 5"]),
    "unrelated in another module": ("return 1\n\n", "", [])
    if False
    else ("def other():\n    return 1", "def other():\n    return 2", []),
    "a module of a module": (
        "def value():\n    return 1",
        "def value():\n    return 2",
        ["value() in deep.py was changed"],
    ),
    "a constant that another takes the place of": (
        "LIMIT:  #",
        "UNUSED:  #",
        ["map() was changed", "LIMIT is gone", "UNUSED is new"],
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_told_by_name(tmp_path, name):
    old, new, told = EDITS[name]
    before = identity(tmp_path / "a")
    assert differences(before, identity(tmp_path / "b", (old, new))) == told
