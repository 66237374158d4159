"""Identities of maps of scripts that are written, loaded and set up as a run does it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from himach.examples import sample
from himach.io.dataset.origin_stamp import OriginStamp
from himach.io.topology.loading import load_topology
from himach.io.trajectory.origin import open_origin
from himach.io.universe.view import View
from himach.keeping.identity import MapIdentity, map_identity
from himach.runner.scripts import load_script

TRAJECTORY, TOPOLOGY = sample("villin")


def identity_of(
    analysis, trajectories=(TRAJECTORY,), topology=TOPOLOGY, start=None, stop=None, step=None, keywords=None
):
    """Return the identity of an analysis's map, as the first rank of a run finds it."""
    keywords = keywords or {}
    origin = open_origin([Path(path) for path in trajectories], Path(topology), keywords)
    frames = range(origin.n_frames)[slice(start, stop, step)]
    first = next(origin.read([frames[0]]))
    view = View(load_topology(Path(topology), origin, keywords), origin, frames, first, name=analysis.label())
    analysis.__dict__.update(frames=frames, dt=origin.dt(frames))
    analysis.setup(view.universe)
    if analysis.defines("atoms"):
        view.ask(analysis.atoms(view.universe))
    view.settle()
    stamp = OriginStamp.of(origin, keywords)
    found = map_identity(analysis, view.universe, dataset=stamp, frames=frames, first=first)
    return MapIdentity.from_json(json.loads(json.dumps(found.to_json())))


def identity_of_script(folder, parameters=None, name="script.py", cls=None, **options):
    """Return the identity of the analysis of a script, loaded as if for the first time."""
    for module in [*sys.modules]:
        file = getattr(sys.modules[module], "__file__", None) or ""
        if file.startswith(str(Path(folder).parent)):
            del sys.modules[module]
    path = [*sys.path]
    try:
        found = load_script(Path(folder, name))
        analysis = found[cls] if cls else next(iter(found.values()))
        return identity_of(analysis(**(parameters or {})), **options)
    finally:
        sys.path[:] = path
