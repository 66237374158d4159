"""Scripts and cells that are written for ways to change what map() gives."""

from __future__ import annotations

import builtins
import contextlib
import decimal
import importlib
import re
import sys
import types

import MDAnalysis
import numpy as np
from checkpoint.fingerprint.fingerprints import TOPOLOGY, TRAJECTORY, fingerprint_of, fingerprint_of_script
from MDAnalysis.analysis import rms
from MDAnalysis.core import selection

SCRIPT = """
import collections, contextvars, copy, ctypes, dataclasses, decimal, enum, functools, inspect, io, itertools, logging
import operator, os, pickle, random, re, sqlite3, sys, threading, types, weakref
import numpy as np
import MDAnalysis
import himach
{before}
class Mine(himach.Analysis):
    {class}
    def setup(self, u):
        self.ca = u.select_atoms("name CA")
        {setup}
    def map(self, frame):
        {map}
"""

#: What is never the same, so that a second run maps again and says so.
NEVER = {"a database", "a deep list", "frompyfunc"}


def text_of(case, value):
    text = SCRIPT.format(
        before="\n".join(case["before"]),
        map="\n        ".join(case["map"]),
        setup="\n        ".join(case["setup"] or ["pass"]),
        **{"class": "\n    ".join(case["class"] or ["pass"])},
    )
    text = text.replace("{topology!r}", repr(str(TOPOLOGY))).replace("{trajectory!r}", repr(str(TRAJECTORY)))
    return re.sub(r"(?<![a-zA-Z])V(?![a-zA-Z])", value, text)


def script(folder, text):
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(text)
    importlib.invalidate_caches()
    return fingerprint_of_script(folder, cls="Mine")


def cell(text):
    """Return the fingerprint of an analysis that no other process can import."""
    module = sys.modules["nowhere"] = types.ModuleType("nowhere")
    exec(compile(text, "<cell>", "exec"), vars(module))
    return fingerprint_of(module.Mine())


@contextlib.contextmanager
def restored(monkeypatch):
    """Leave libraries as they were."""
    monkeypatch.setattr(rms, "rmsd", rms.rmsd)
    monkeypatch.setattr(selection, "_SELECTIONDICT", {**selection._SELECTIONDICT})
    with np.errstate(), decimal.localcontext():
        yield
    MDAnalysis._READERS.pop("OWN", None)
    for thing in (MDAnalysis.AtomGroup, MDAnalysis.lib.distances, np, builtins):
        for name in ("part", "n1"):
            if name in vars(thing):
                delattr(thing, name)
