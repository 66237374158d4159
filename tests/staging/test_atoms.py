"""Some atoms of all frames, staged: runs of these, or of fewer, read nothing from the trajectory."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from support.cache_data import N_FRAMES, make, only_dataset, stage_on_nodes
from support.commands import himach

from himach.errors import UsageError
from himach.io.datasets.subsets import list_subsets
from himach.io.store.store import Store
from himach.io.trajectories.origin import open_origin
from himach.ranks.communicator import alone
from himach.staging.options import StageOptions
from himach.staging.stage import stage


def job(made, place, atoms, **choices) -> StageOptions:
    topology, trajectory = made
    return StageOptions([trajectory], topology, cache=str(place), quiet=True, atoms=atoms, **choices)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [["a"], ["a", "a", "b"]], ids=["one node", "three ranks on two"])
def test_runs_read_nothing_from_the_trajectory(tmp_path, nodes):
    trajectory = shutil.copy(DCD, tmp_path / "adk.dcd")
    words = ["stage", trajectory, "-s", PSF, "--atoms", "name CA"]

    def outcome(name, selection, *more):
        out = tmp_path / name
        arguments = ["run", "rmsd", "-t", trajectory, "-s", PSF, "-p", f"selection={selection}", "--out", out, *more]
        done = himach(*arguments) if more else stage_on_nodes(tmp_path, nodes, *arguments)
        assert done.returncode == 0, done.stderr
        return (out / "rmsd.csv").read_bytes(), json.loads((out / "run.json").read_text())["bytes"]["origin"]

    texts = ["name CA", "name CA and resid 1:50"]
    tables = [outcome(f"plain{i}", text, "--cache", "off")[0] for i, text in enumerate(texts)]
    done = stage_on_nodes(tmp_path, nodes, *words, code=0)
    where = ", ".join(f"{98 // len({*nodes})} on {name}" for name in sorted({*nodes}))
    assert f"214 atoms of 98 frames staged, 98 of them now ({where})" in done.stdout
    for text in texts:
        assert "98 frames staged, 0 of them now" in stage_on_nodes(tmp_path, nodes, *words[:-1], text).stdout
    assert [outcome(f"here{i}", text) for i, text in enumerate(texts)] == [(table, 0) for table in tables]
    (tmp_path / "adk.dcd").rename(tmp_path / "elsewhere")
    assert [outcome(f"away{i}", text) for i, text in enumerate(texts)] == [(table, 0) for table in tables]


def test_what_is_staged_is_what_the_trajectory_has(tmp_path):
    made, place = make(tmp_path), tmp_path / "store"
    staged = stage(alone(), job(made, place, "index 3:9 or index 40"))
    assert (staged.new, staged.atoms, list(staged.nodes.values())) == (N_FRAMES, 8, [N_FRAMES])
    dataset = only_dataset(place, made[1])
    (subset,) = list_subsets(dataset)
    assert subset.atoms.tolist() == [3, 4, 5, 6, 7, 8, 9, 40]
    assert list(dataset.native) == [0]  # whole, for setup()
    for number, frame in enumerate(subset.dataset.read(range(N_FRAMES))):
        origin = next(open_origin([made[1]]).read([number]))
        assert (frame.time, frame.box.tolist()) == (origin.time, origin.box.tolist())
        assert np.array_equal(frame.positions, origin.positions[subset.atoms])
        assert np.array_equal(frame.velocities, origin.velocities[subset.atoms])


def test_what_is_there_whole_is_not_staged_again(tmp_path):
    made, place = make(tmp_path), tmp_path / "store"
    assert stage(alone(), job(made, place, "all")).new == N_FRAMES
    assert len(only_dataset(place, made[1]).native) == N_FRAMES
    staged = stage(alone(), job(made, place, "index 3:9"))
    (subset,) = list_subsets(only_dataset(place, made[1]))
    assert (staged.new, list(staged.nodes.values()), len(subset.dataset.native)) == (0, [N_FRAMES], 0)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"copies": 2}, "--copies is for whole frames: leave it out"),
        ({"repair": True}, "--repair is for whole frames"),
        ({"follow": True}, "--follow is for whole frames"),
        ({"server": "tcp://here:1"}, "--server is for whole frames"),
        ({"atoms": "nam C"}, "'nam C' cannot be used as a selection"),
        ({"atoms": "name X"}, "'name X' selects none of the 50 atoms"),
        ({"atoms": "updating name C"}, "selects other atoms in each frame"),
        ({"topology": None}, "holds no topology; name a topology file, too"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, choices, words):
    topology, trajectory = make(tmp_path, 2)
    options = {"topology": topology, "cache": str(tmp_path / "store"), "quiet": True, "atoms": "name C", **choices}
    with pytest.raises(UsageError, match=words):
        stage(alone(), StageOptions([trajectory], **options))
    assert Store(tmp_path / "store").names() == []


def test_slices_are_put_together_whole(tmp_path):
    done = himach("stage", "sim", "--assemble", "--atoms", "name C", "--cache", tmp_path / "store")
    assert (done.returncode, "--assemble takes the name under which slices were pushed" in done.stderr) == (2, True)
