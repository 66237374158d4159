"""Values of classes of the user's own: a later run has them of the very classes that it itself has, or maps again."""

import importlib
import re
import sys
import types
import warnings

import pytest

import himach
from himach.runner.scripts import find_class

from .sample import write_topology, write_trajectory

SCRIPT = """
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
NAMES = ("points", "himach_script_points", "__main__")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    write_trajectory(tmp_path / "run.xtc", 6)
    write_topology(tmp_path / "top.gro")
    (tmp_path / "points.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in NAMES:
        monkeypatch.setitem(sys.modules, name, sys.modules.get(name))  # which it is again after the test


def points(name):
    """Return the analysis as a process has it that knows the script by this name alone."""
    for known in NAMES[:2]:
        sys.modules.pop(known, None)
    if name == "points":
        return importlib.import_module("points").Points()
    if name == "himach_script_points":
        return find_class("points.py")()
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(SCRIPT, "program.py", "exec"), vars(module))
    return module.Points()


OTHER = "it has values of classes of {}, which this run has under another name"
OWN = "values of type Point are not kept.*put it in a module"


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize(
    "runs",
    [
        [("himach_script_points", 4, 0, ""), ("points", 6, 0, OTHER.format(NAMES[1])), ("points", 6, 6, "")],
        [("points", 4, 0, ""), ("himach_script_points", 4, 0, OTHER.format("points")), ("points", 6, 4, "")],
        [("__main__", 4, 0, OWN), ("__main__", 6, 0, OWN)],
    ],
    ids=["a script and a module", "a module and a script", "a program"],
)
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
