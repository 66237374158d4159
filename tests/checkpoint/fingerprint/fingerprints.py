"""Identities of maps of scripts that are written, loaded and set up as a run does it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from himach.checkpoint.map_fingerprint import MapFingerprint, map_fingerprint
from himach.examples import sample
from himach.io.dataset.origin_stamp import OriginStamp
from himach.io.trajectory.origin import open_origin
from himach.io.universe.topology import load_topology
from himach.io.universe.view import View
from himach.runner.scripts import load_script

TRAJECTORY, TOPOLOGY = sample("villin")
_SAMPLE = []


def fingerprint_of(
    analysis, trajectories=(TRAJECTORY,), topology=TOPOLOGY, start=None, stop=None, step=None, keywords=None
):
    """Return the identity of an analysis's map, as the first rank of a run finds it."""
    keywords = keywords or {}
    origin = open_origin([Path(path) for path in trajectories], Path(topology), keywords)
    frames = range(origin.n_frames)[slice(start, stop, step)]
    first = next(origin.read([frames[0]]))
    view = View(_parsed(topology, keywords, origin), origin, frames, first, name=analysis.label())
    analysis.__dict__.update(frames=frames, dt=origin.dt(frames))
    analysis.setup(view.universe)
    if analysis.defines("atoms"):
        view.ask(analysis.atoms(view.universe))
    view.settle()
    stamp = OriginStamp.of(origin, keywords)
    found = map_fingerprint(analysis, view.universe, dataset=stamp, frames=frames)
    return MapFingerprint.from_json(json.loads(json.dumps(found.to_json())))


def _parsed(topology, keywords, origin):
    """Parse a topology, the sample's once."""
    if keywords or topology != TOPOLOGY:
        return load_topology(Path(topology), origin, keywords)
    if not _SAMPLE:
        _SAMPLE.append(load_topology(TOPOLOGY, origin))
    return _SAMPLE[0]


def fingerprint_of_script(folder, parameters=None, name="script.py", cls=None, **options):
    """Return the identity of the analysis of a script, loaded as if for the first time."""
    for file in Path(folder).rglob("*.py"):
        module = ".".join(file.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
        for known in (module, f"himach_script_{module}"):
            sys.modules.pop(known, None)
    path = [*sys.path]
    try:
        found = load_script(Path(folder, name))
        analysis = found[cls] if cls else next(iter(found.values()))
        return fingerprint_of(analysis(**(parameters or {})), **options)
    finally:
        sys.path[:] = path
