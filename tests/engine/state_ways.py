"""Scripts that keep state in map(), run by one rank and by three."""

import copy
import decimal
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from checkpoint.fingerprint.script_cases import text_of

from himach.engine import RankFrames, run_pass
from himach.examples import sample
from himach.io.trajectories.origin import open_origin
from himach.io.universe.topology import copy_topology, load_topology
from himach.io.universe.view import View
from himach.ranks.communicator import alone
from himach.runner.scripts import load_script

FRAMES = range(12)
TRAJECTORY, TOPOLOGY = sample("villin")
ORIGIN = open_origin([Path(TRAJECTORY)], Path(TOPOLOGY), {})
PARSED = load_topology(TOPOLOGY, ORIGIN)
RAWS = {raw.number: copy.deepcopy(raw) for raw in ORIGIN.read([*FRAMES])}

#: What stands before the class, and in it.
COUNT = ["def count(to):", "    to.append(1)", "    return len(to)"]
REDUCE = ["def reduce(self, key, series): return np.asarray(series.values).tolist()"]


def map_frames(file, steps):
    """Return what map() gives of some frames, in a process that just loaded the script."""
    for name in ("beside", f"himach_script_{file.stem}"):
        sys.modules.pop(name, None)
    analysis = next(cls for name, cls in load_script(file).items() if name == "Mine")()
    view = View(copy_topology(PARSED), ORIGIN, FRAMES, RAWS[0], name="Mine")
    analysis.__dict__.update(frames=FRAMES, dt=1.0)
    analysis.setup(view.universe)
    view.detach()
    task = iter([np.array(steps)])
    work = RankFrames(
        FRAMES,
        lambda: next(task, None),
        lambda numbers: (RAWS[number] for number in numbers.tolist()),
        [partial(view.bind, copy=True)],
        lambda done: None,
        universes=[view.universe],
    )
    return dict(run_pass(alone(), [[analysis]], work).results[0].items())


def run(folder, way):
    """Return what map() gives by frame: on one rank, and on three together."""
    file = folder / "script.py"
    more = {"before": [*COUNT, *way["before"]], "class": [*REDUCE, *way["class"]]}
    file.write_text(text_of({**way, **more, "map": [*way["map"], "yield frame.number, n"]}))
    (folder / "beside.py").write_text("N = 0\nseen = []\ndef note(x):\n    seen.append(x)\n    return len(seen)\n")
    with pytest.MonkeyPatch.context() as patch, np.errstate(), decimal.localcontext():
        patch.chdir(folder)
        patch.setattr(sys, "path", [*sys.path])
        patch.setenv("MINE", "0")  # one of the ways sets it
        one_rank = map_frames(file, [*FRAMES])
        three_ranks = {}
        for rank in range(3):
            three_ranks.update(map_frames(file, [*FRAMES[rank::3]]))
    return one_rank, three_ranks
