"""Scripts that keep state in map(), run by one rank and by three."""

from __future__ import annotations

import contextlib
import copy
import sys
from pathlib import Path

import numpy as np

from himach.engine import Work, run_pass
from himach.examples import sample
from himach.io.trajectory.origin import open_origin
from himach.io.universe.topology import load_topology
from himach.io.universe.view import View
from himach.parallel.communicator import alone
from himach.runner.scripts import load_script

FRAMES = range(12)
TRAJECTORY, TOPOLOGY = sample("villin")
ORIGIN = open_origin([Path(TRAJECTORY)], Path(TOPOLOGY), {})
PARSED = load_topology(TOPOLOGY, ORIGIN)
RAWS = {raw.number: copy.deepcopy(raw) for raw in ORIGIN.read([*FRAMES])}

SCRIPT = """
import collections, contextvars, copy, csv, ctypes, dataclasses, decimal, enum, functools, io, itertools, logging, os
import queue, random, sqlite3, sys, threading, types, weakref
import numpy as np
import MDAnalysis
import himach
{before}
class Mine(himach.Analysis):
    {inside}
    def setup(self, u):
        self.ca = u.select_atoms("name CA")
        {setup}
    def map(self, frame):
        {map}
        yield frame.number, n
    def reduce(self, key, series):
        return np.asarray(series.values).tolist()
"""
HELPERS = """
def count(to):
    to.append(1)
    return len(to)
"""


def script_of(case):
    setup, mapping = ("\n        ".join(case[part] or ["pass"]) for part in ("setup", "map"))
    inside, before = "\n    ".join(case["class"] or ["pass"]), "\n".join([HELPERS, *case["before"]])
    script = SCRIPT.format(before=before, inside=inside, setup=setup, map=mapping)
    return script.replace("{topology!r}", repr(str(TOPOLOGY))).replace("{trajectory!r}", repr(str(TRAJECTORY)))


def mapped(file, steps):
    """Return what map() gives of some frames, in a process that just loaded the script."""
    for name in ("beside", f"himach_script_{file.stem}"):
        sys.modules.pop(name, None)
    analysis = next(cls for name, cls in load_script(file).items() if name == "Mine")()
    view = View(PARSED, ORIGIN, FRAMES, RAWS[0], name="Mine", copy=True)
    analysis.__dict__.update(frames=FRAMES, dt=1.0)
    analysis.setup(view.universe)
    view.settle()
    task = iter([np.array(steps)])
    work = Work(
        FRAMES,
        lambda: next(task, None),
        lambda numbers: (RAWS[number] for number in numbers.tolist()),
        [view.bind],
        lambda done: None,
        universes=[view.universe],
    )
    return dict(run_pass(alone(), [[analysis]], work).results[0].items())


@contextlib.contextmanager
def beside(folder, monkeypatch):
    """Work in a folder that has a module beside the script."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("MINE", "0")  # one of the ways sets it
    (folder / "beside.py").write_text("N = 0\nseen = []\ndef note(x):\n    seen.append(x)\n    return len(seen)\n")
    yield folder


def ran(place, case):
    file = place / "script.py"
    file.write_text(script_of(case))
    alone_ = mapped(file, [*FRAMES])
    three = {}
    for rank in range(3):
        three.update(mapped(file, [*FRAMES[rank::3]]))
    return alone_, three
