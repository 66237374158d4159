"""What makes one map: each edit of a script, and what is said of it."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import MDAnalysis
import pytest
from keeping.maps.identities import TOPOLOGY, TRAJECTORY, identity_of, identity_of_script

from himach import Analysis, examples
from himach.keeping.maps.identity import MapIdentity, differences

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


# -- the data ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """The first 20 frames, 30, and 20 of which one is another."""
    folder = tmp_path_factory.mktemp("grown")
    universe = MDAnalysis.Universe(TOPOLOGY, TRAJECTORY)
    for name, n_frames, moved in (("short", 20, -1), ("long", 30, -1), ("other", 20, 7)):
        with MDAnalysis.Writer(str(folder / f"{name}.xtc"), universe.atoms.n_atoms) as writer:
            for ts in universe.trajectory[:n_frames]:
                ts.positions = ts.positions + (ts.frame == moved)
                writer.write(universe.atoms)
    return folder


PARAMETERS = {
    "rmsd": {},
    "rdf": {"a": "name CA", "b": "name CA"},
    "msd": {"selection": "name CA", "tau_max": 5},
    "water-residence": {"water": "name OH2 OW O", "solute": "name CA", "tau_max": 5},
    "hydrogen-bonds": {"tau_max": 5},
    "ion-permeation": {"ions": "name N", "top": "resid 1:5", "bottom": "resid 20:30", "radius": 3.0},
}


def built_in(name, **parameters):
    return examples.load(name)(**{**PARAMETERS[name], **parameters})


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_built_in_keeps_its_pairs_as_the_trajectory_grows_and_for_other_selections(name, grown):
    def found(file="short", **options):
        return identity_of(built_in(name), [grown / f"{file}.xtc"], **options)

    try:
        short = found()
    except Exception as error:
        if "top is not above" not in str(error):
            raise
        PARAMETERS[name] |= {"top": PARAMETERS[name]["bottom"], "bottom": PARAMETERS[name]["top"]}
        short = found()
    assert differences(short, found("long")) == []
    assert differences(short, found("long", step=3)) == []
    assert differences(short, found(stop=9)) == []
    assert differences(short, found("other")) == ["the trajectory has another content"]
    assert differences(found("long"), short) == ["the trajectory has another content"]  # it lost frames
    shifted = differences(short, found(start=5))
    assert shifted == (["self.reference is another after setup()"] if name == "rmsd" else [])
    other = examples.load(name)(**{**PARAMETERS[name], **({"tau_max": 6} if "tau_max" in PARAMETERS[name] else {})})
    told = differences(short, identity_of(other, [grown / "short.xtc"]))
    assert told == (["tau_max 5 is now 6"] if "tau_max" in PARAMETERS[name] else [])


class Steps(Analysis):
    def map(self, frame):
        yield 1, frame.step


class Length(Analysis):
    def map(self, frame):
        yield 1, frame.number / len(self.frames)


class Between(Analysis):
    def map(self, frame):
        yield 1, frame.number * self.dt


class Whole(Analysis):
    def map(self, frame):
        yield 1, len(frame.universe.trajectory)


class ByName(Analysis):
    def map(self, frame):
        yield 1, getattr(frame, "step")  # noqa: B009


class FromSetup(Analysis):
    def setup(self, universe):
        self.many = len(self.frames)

    def map(self, frame):
        yield 1, self.many


@pytest.mark.parametrize(
    ("cls", "longer", "shifted", "denser"),
    [
        (Steps, [], ["frame.step"], ["frame.step"]),
        (ByName, [], ["frame.step"], ["frame.step"]),
        (Length, ["self.frames"], ["self.frames"], ["self.frames"]),
        (Between, [], [], ["dt"]),
        (Whole, ["n_frames"], [], []),
    ],
)
def test_the_selection_counts_where_map_reads_it(cls, longer, shifted, denser, grown):
    def told(file, **options):
        now = identity_of(cls(), [grown / f"{file}.xtc"], **options)
        return [sentence.split()[2].rstrip(",") for sentence in differences(before, now)]

    before = identity_of(cls(), [grown / "short.xtc"])
    assert told("long") == longer
    assert told("short", start=2) == shifted
    assert told("short", step=2) == denser


def test_what_setup_took_from_the_selection_counts_as_state(grown):
    before = identity_of(FromSetup(), [grown / "short.xtc"])
    assert differences(before, identity_of(FromSetup(), [grown / "long.xtc"])) == ["self.many is another after setup()"]


def test_files_of_a_trajectory(grown, tmp_path):
    for name in ("short", "long"):
        shutil.copy(grown / f"{name}.xtc", tmp_path / f"{name}.xtc")
    later = tmp_path / "later.xtc"
    universe = MDAnalysis.Universe(TOPOLOGY, TRAJECTORY)
    with MDAnalysis.Writer(str(later), universe.atoms.n_atoms) as writer:
        for _ in universe.trajectory[20:30]:
            writer.write(universe.atoms)
    short = identity_of(Steps(), [grown / "short.xtc"])
    assert differences(short, identity_of(Steps(), [tmp_path / "short.xtc"])) == []  # a copy of it
    assert differences(short, identity_of(Steps(), [grown / "short.xtc", later])) == []  # one more file
    assert differences(short, identity_of(Steps(), [tmp_path / "short.xtc", later])) == []
    both = identity_of(Steps(), [grown / "short.xtc", later])
    assert differences(both, short) == ["the trajectory has another content"]


def test_keywords_topology_and_versions_are_told(grown, tmp_path):
    before = identity_of(Steps(), [grown / "short.xtc"])
    dt = identity_of(Steps(), [grown / "short.xtc"], keywords={"dt": 2.0})
    assert differences(before, dt) == ["the universe keyword dt None is now 2.0"]
    other = identity_of(Steps(), [grown / "short.xtc"], keywords={"dt": 1.5})
    assert differences(dt, other) == ["the universe keyword dt 2.0 is now 1.5"]
    assert differences(before, identity_of(Steps(), [grown / "short.xtc"], keywords={"format": "XTC"})) == []
    renamed = tmp_path / "moved.pdb"
    renamed.write_text(TOPOLOGY.read_text())
    assert differences(before, identity_of(Steps(), [grown / "short.xtc"], topology=renamed)) == []
    renamed.write_text(TOPOLOGY.read_text().replace(" CA ", " CX ", 1))
    assert differences(before, identity_of(Steps(), [grown / "short.xtc"], topology=renamed)) == [
        "the topology is another"
    ]
    guessed = identity_of(Steps(), [grown / "short.xtc"], keywords={"to_guess": ["types", "masses", "elements"]})
    assert differences(before, guessed) in ([], ["the topology is another"])
    versions = {**before.parts, "versions": {**before.parts["versions"], "MDAnalysis": ("x", "3")}}
    assert differences(before, replace(before, parts=versions)) == ["MDAnalysis 2 is now 3"]


class Reads(Analysis):
    reference: str = ""
    several: list[str] = []  # noqa: RUF012

    def map(self, frame):
        yield 1, self.reference


def test_files_that_parameters_name_count_by_their_content(tmp_path):
    file = tmp_path / "a.dat"
    file.write_text("1")
    one, many = Reads(reference=str(file)), Reads(several=[str(file)])
    before, listed = identity_of(one), identity_of(many)
    os.utime(file, (1, 1))
    assert differences(before, identity_of(one)) == []
    file.write_text("2")
    assert differences(before, identity_of(one)) == [f"{file} (parameter reference) has another content"]
    assert differences(listed, identity_of(many)) == [f"{file} (parameter several) has another content"]


def test_a_damaged_identity_is_refused():
    found = identity_of(Steps()).to_json()
    assert MapIdentity.from_json(found) == identity_of_again(found)
    for wrong in (None, 3, {}, [], {"parts": {}}, {"parts": 3, "dataset": found["dataset"]}, {**found, "dataset": "x"}):
        with pytest.raises(ValueError):
            MapIdentity.from_json(wrong)
    for kind in found["parts"]:
        with pytest.raises(ValueError):
            MapIdentity.from_json({**found, "parts": {**found["parts"], kind: {"a": 3}}})


def identity_of_again(found):
    return MapIdentity.from_json(json.loads(json.dumps(found)))


PROCESS = """
import json, sys
sys.path.insert(0, sys.argv[2])
from keeping.maps.identities import identity_of_script
print(json.dumps(identity_of_script(sys.argv[1], cls="Mine").to_json()["parts"], sort_keys=True))
"""
HASHED = """
import himach
NAMES = {"a", "b", "c", "d", ("e", 1)}
TABLE = {name: i for i, name in enumerate("abc")}
class Part:
    def __init__(self): self.names = frozenset("xyz")
class Mine(himach.Analysis):
    def setup(self, universe):
        self.part, self.ca, self.all = Part(), universe.select_atoms("name CA"), {*universe.residues}
        self.near = universe.select_atoms("around 5 name CA", updating=True)
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
        found.append(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert found[0] == found[1] == found[2]
    assert "first" not in json.loads(found[0])
