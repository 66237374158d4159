"""Identities of maps of scripts that are written, loaded and set up as a run does it, and tables of such scripts."""

import functools
import importlib
import json
import re
import sys
import types
from pathlib import Path

import pytest

from himach import user_code
from himach.checkpoint.map_fingerprint import MapFingerprint, map_fingerprint
from himach.examples import sample
from himach.io.datasets.origin_stamp import OriginStamp
from himach.io.trajectories.origin import open_origin
from himach.io.universe.topology import copy_topology, load_topology
from himach.io.universe.view import View
from himach.runner.scripts import load_script

TRAJECTORY, TOPOLOGY = sample("villin")
TESTS = str(Path(__file__).parents[2])
FIELD = re.compile(r" \| (before|class|setup|map): ")
SCRIPT = """
import collections, contextvars, copy, csv, ctypes, dataclasses, decimal, enum, functools, inspect, io, itertools
import logging, operator, os, pickle, queue, random, re, sqlite3, sys, threading, types, weakref
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


def cases(text):
    """Return cases by name: the expectation, and lines before the class, in it, in setup() and in map().

    A case is ``NAME: EXPECTATION | before: CODE | class: CODE | setup: CODE | map: CODE``; indented lines continue it.
    """
    table, case, part = {}, {}, ""
    for line in text.strip().splitlines():
        if line.startswith(" "):
            part = line[:10].strip(" :") or part
            code, *fields = FIELD.split(line[10:])
            case[part].append(code)
        else:
            title, *fields = FIELD.split(line)
            name, _, expected = title.partition(": ")
            assert name not in table, name
            case = table[name] = {"expected": expected, "before": [], "class": [], "setup": [], "map": []}
        for part, code in zip(fields[::2], fields[1::2], strict=True):
            case[part].append(code)
    return table


def own_modules():
    """Return the modules of a user's own without those of the tests, which take a while and change meanwhile."""
    return {name: file for name, file in user_code.own_modules().items() if not file.startswith(TESTS)}


def fingerprint_of(
    analysis, trajectories=(TRAJECTORY,), topology=TOPOLOGY, start=None, stop=None, step=None, keywords=None
):
    """Return the identity of an analysis's map, as the first rank of a run finds it."""
    keywords = keywords or {}
    origin, parsed = _sample()
    if keywords or (*trajectories, topology) != (TRAJECTORY, TOPOLOGY):
        origin = open_origin([Path(path) for path in trajectories], Path(topology), keywords)
    if keywords or topology != TOPOLOGY:
        parsed = load_topology(Path(topology), origin, keywords)
    frames = range(origin.n_frames)[slice(start, stop, step)]
    first = next(origin.read([frames[0]]))
    view = View(copy_topology(parsed), origin, frames, first, name=analysis.label())
    analysis.__dict__.update(frames=frames, dt=origin.dt(frames))
    analysis.setup(view.universe)
    if analysis.defines("atoms"):
        view.ask(analysis.atoms(view.universe))
    view.detach()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("himach.checkpoint.sources.own_modules", own_modules)
        stamp = OriginStamp.from_origin(origin, keywords)
        fingerprint = map_fingerprint(analysis, view.universe, dataset=stamp, frames=frames)
    return MapFingerprint.from_json(json.loads(json.dumps(fingerprint.to_json())))


@functools.cache
def _sample():
    origin = open_origin([TRAJECTORY], TOPOLOGY, {})
    return origin, load_topology(TOPOLOGY, origin)


def loaded(folder, name="script.py"):
    """Return the analyses of a script, loaded as if for the first time."""
    for file in Path(folder).rglob("*.py"):
        module = ".".join(file.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
        for known in (module, f"himach_script_{module}"):
            sys.modules.pop(known, None)
    importlib.invalidate_caches()
    return load_script(Path(folder, name))


def fingerprint_of_script(folder, text=None, name="script.py", **options):
    """Return the identity of the analysis `Mine` of a script, which is written if there is a text."""
    folder.mkdir(parents=True, exist_ok=True)
    if text is not None:
        (folder / name).write_bytes(text.encode())
    path = [*sys.path]
    try:
        return fingerprint_of(loaded(folder, name)["Mine"](), **options)
    finally:
        sys.path[:] = path


def fingerprint_of_cell(text):
    """Return the identity of an analysis `Mine` that no other process can import."""
    module = types.ModuleType("nowhere")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "nowhere", module)
        exec(compile(text, "<cell>", "exec"), vars(module))
        return fingerprint_of(module.Mine())


def text_of(case, value="V"):
    """Return the script of a case, with a value where it says V."""
    parts = {
        "before": "\n".join(case["before"]),
        "class": "\n    ".join(case["class"] or ["pass"]),
        **{name: "\n        ".join(case[name] or ["pass"]) for name in ("setup", "map")},
    }
    text = SCRIPT.format(**parts)
    text = text.replace("{topology!r}", repr(str(TOPOLOGY))).replace("{trajectory!r}", repr(str(TRAJECTORY)))
    return re.sub(r"(?<![a-zA-Z])V(?![a-zA-Z])", value, text)
