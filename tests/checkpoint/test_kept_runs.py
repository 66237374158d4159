"""Runs that keep their pairs, and take over those of earlier ones: the outcome is that of a run in one go."""

import importlib
import importlib.util
import re
import sys
import time
import types
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
from checkpoint.fingerprint.fingerprints import own_modules
from support.cache_data import make

import himach
from himach.checkpoint.part import write_part
from himach.errors import TimeUpError
from himach.runner.scripts import find_class

from .sample import SCRIPT

N_FRAMES = 80
NAMES = ("Columns", "Presence", "Chain")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr("himach.checkpoint.sources.own_modules", own_modules)
    make(tmp_path, N_FRAMES, "run.xtc")
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def module_of(path: Path):
    spec = importlib.util.spec_from_file_location(f"kept_{path.stem}_{abs(hash(path.read_text()))}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run(place: Path, names=NAMES, **keywords):
    module = module_of(place / keywords.pop("script", "script.py"))
    analyses = [getattr(module, name)() for name in names]
    keywords.setdefault("cache", "off")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return himach.run(analyses, place / "run.xtc", place / "top.gro", **keywords)


def text(result) -> str:
    return result.text()


def test_a_slow_disk_keeps_what_is_asked_for(place, monkeypatch):
    late = 0.0  # seconds that the disk took

    def write_slowly(*part, **how):
        nonlocal late
        write_part(*part, **how)
        late += 2.5

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + late)
    monkeypatch.setattr("himach.checkpoint.checkpoint_writer.write_part", write_slowly)
    monkeypatch.setattr("himach.checkpoint.checkpoint_writer.time", clock)
    with pytest.raises(TimeUpError, match=r"they are kept in .*, and the same command goes on"):
        run(place, ["Columns"], max_time=0.001, out=place / "out")


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(
    ("kept", "selection"),
    [
        ({"start": 10, "stop": 50}, {"start": 20}),
        ({"start": 10, "stop": 50}, {"step": 3}),
        ({"step": 2}, {"start": 70, "stop": 10, "step": -7}),
        ({"start": 60, "stop": 3, "step": -1}, {"stop": 33}),
    ],
)
def test_any_selection_takes_what_is_there(place, selection, kept, ranks):
    run(place, pairs=place / "pairs", **kept)
    slices = [slice(*map(choice.get, ("start", "stop", "step"))) for choice in (selection, kept)]
    expected, there = (set(range(N_FRAMES)[chosen]) for chosen in slices)
    obtained = run(place, pairs=place / "pairs", ranks=ranks, **selection)
    assert text(obtained) == text(run(place, **selection))
    assert obtained.record["reused"]["frames"] in (len(expected & there), 0)
    only = run(place, ["Columns", "Presence"], pairs=place / "pairs", **selection)
    assert only.record["reused"]["frames"] == len(expected)


def test_a_grown_trajectory_keeps_its_pairs(place):
    run(place, pairs=place / "pairs")
    make(place, N_FRAMES + 7, "run.xtc")
    obtained = run(place, pairs=place / "pairs")
    assert text(obtained) == text(run(place))
    assert obtained.record["reused"]["frames"] == N_FRAMES
    assert run(place, pairs=place / "pairs").record["reused"]["frames"] == N_FRAMES + 7


OPEN = """
import ctypes
LOG = ctypes.CDLL(None)
class Open(Columns):
    def map(self, frame):
        yield LOG.abs(-1), 1
"""


def test_what_can_never_be_the_same_is_warned_of(place):
    (place / "script.py").write_text(SCRIPT + OPEN)
    analysis = module_of(place / "script.py").Open()
    with pytest.warns(UserWarning, match=r"Open: LOG \(ctypes.CDLL\) cannot be compared with that of another run"):
        himach.run(analysis, place / "run.xtc", place / "top.gro", pairs=place / "pairs", cache="off")


#: Values of classes of the user's own: a later run has them of the very classes that it itself has, or maps again.
POINTS = """
import himach

class Point:
    def __init__(self, x):
        self.x = x

class Points(himach.Analysis):
    def map(self, frame):
        yield frame.number % 2, Point(frame.number)
    def reduce(self, key, series):
        return sum(value.x for value in series.values if isinstance(value, Point))
"""
KNOWN_AS = ("points", "himach_script_points", "__main__")


@pytest.fixture
def points_place(tmp_path, monkeypatch):
    make(tmp_path, 6, "run.xtc")
    (tmp_path / "points.py").write_text(POINTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in KNOWN_AS:
        monkeypatch.setitem(sys.modules, name, sys.modules.get(name))  # which it is again after the test


def points(name):
    """Return the analysis as a process has it that knows the script by this name alone."""
    for known in KNOWN_AS[:2]:
        sys.modules.pop(known, None)
    if name == "points":
        return importlib.import_module("points").Points()
    if name == "himach_script_points":
        return find_class("points.py")()
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(POINTS, "program.py", "exec"), vars(module))
    return module.Points()


OTHER = "it has pickles of {}, and this run has its classes under another name"
OWN = "values of type Point are not kept.*put it in a module"


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize(
    "runs",
    [
        [("himach_script_points", 4, 0, ""), ("points", 6, 0, OTHER.format(KNOWN_AS[1])), ("points", 6, 6, "")],
        [("points", 4, 0, ""), ("himach_script_points", 4, 0, OTHER.format("points")), ("points", 6, 4, "")],
        [("__main__", 4, 0, OWN), ("__main__", 6, 0, OWN)],
    ],
    ids=["a script and a module", "a module and a script", "a program"],
)
@pytest.mark.usefixtures("points_place")
def test_classes_under_another_name_are_others(runs):
    for name, stop, reused, text in runs:
        with warnings.catch_warnings(record=True) as messages:
            warnings.simplefilter("always")
            result = himach.run(
                points(name), "run.xtc", "top.gro", cache="off", pairs="pairs", stop=stop, progress=False
            )
        assert result.record["reused"]["frames"] == reused
        assert result["Points"]["result"].tolist() == {4: [2, 4], 6: [6, 9]}[stop]
        assert re.search(text, " ".join(str(each.message) for each in messages))
