"""A run that died, or that changed, is not gone on with under another map: `himach run` on one, two and three ranks."""

from __future__ import annotations

import json

import pytest
from checkpoint.sample import write_topology, write_trajectory
from support.commands import himach

N_FRAMES = 12
SCRIPT = """
import himach, numpy as np, pandas
from MDAnalysis.lib.nsgrid import FastNS
from MDAnalysis.transformations import translate
from scipy.spatial import cKDTree
class Mine(himach.Analysis):
    def setup(self, u):
        u.trajectory.add_transformations(translate(np.load("shift.npy")))
        self.table = pandas.DataFrame({"x": [1.0, 2.0], "y": ["a", None]})
        self.search = FastNS(3, u.atoms.positions, np.array([50, 50, 50, 90, 90, 90], np.float32))
        self.tree = cKDTree(np.arange(300.0).reshape(100, 3))
    def map(self, frame):
        found = self.tree.query([3.0, 4, 5])[1] + len(self.search.self_search().get_pairs()) + self.table.x[0]
        if frame.number == BAD:
            raise ValueError("not finished")
        n = float(open("factor.dat").read())
        yield frame.number, (float(frame.positions[0, 0]), float(n * found))
    def reduce(self, key, series):
        return str(series.values)
"""


@pytest.fixture
def place(tmp_path):
    import numpy as np

    write_trajectory(tmp_path / "run.xtc", N_FRAMES)
    write_topology(tmp_path / "top.gro")
    np.save(tmp_path / "shift.npy", np.array([0.0, 0, 1]))
    (tmp_path / "factor.dat").write_text("1")
    (tmp_path / "script.py").write_text(SCRIPT.replace("BAD", "11"))
    return tmp_path


def run(place, ranks, *words):
    command = ["run", "script.py", "-t", "run.xtc", "-s", "top.gro", "--cache", "off", "--quiet", "-n", str(ranks)]
    return himach(*command, *words, cwd=place, HIMACH_KEEP_EVERY="0")


def outcome(place, out):
    return (place / out / "Mine.csv").read_text(), json.loads((place / out / "run.json").read_text())["reused"]


CHANGES = {
    "nothing": lambda place: None,
    "the code": lambda place: place.joinpath("script.py").write_text(
        SCRIPT.replace("BAD", "-1").replace("n * f", "n + f")
    ),
    "what a file of map() says": lambda place: place.joinpath("factor.dat").write_text("3"),
    "a transformation": lambda place: __import__("numpy").save(place / "shift.npy", [0.0, 5, 1]),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "kept"), [(1, ("--out", "out")), (2, ("--out", "out", "--pairs", "pairs")), (3, ("--out", "out"))]
)
@pytest.mark.parametrize("change", CHANGES)
def test_the_same_command_after_an_exception(place, ranks, kept, change):
    died = run(place, ranks, *kept)
    assert died.returncode == 1 and "not finished" in died.stderr
    CHANGES[change](place)
    if change != "the code":  # the frame at which it died is left out of both
        kept = (*kept, "--stop", str(N_FRAMES - 1))
    done = run(place, 4 - ranks, *kept)
    assert done.returncode == 0, done.stderr
    text, reused = outcome(place, "out")
    fresh = run(place, 1, "--out", "fresh", *kept[kept.index("--stop") :] if "--stop" in kept else ())
    assert fresh.returncode == 0 and text == outcome(place, "fresh")[0]
    if change == "nothing":
        assert reused["frames"] > 0
        assert f"{reused['frames']} of 11 frames were mapped before" in done.stderr
    else:
        assert reused["frames"] == 0 and "mapped before" not in done.stderr


def test_a_quiet_run_says_that_pairs_are_used(place):
    for said in ("", f"{N_FRAMES - 1} of {N_FRAMES - 1} frames were mapped before"):
        done = run(place, 1, "--stop", str(N_FRAMES - 1), "--pairs", "pairs", "--out", "out")
        assert done.returncode == 0
        assert said in done.stderr and done.stderr.count("\n") == bool(said)
