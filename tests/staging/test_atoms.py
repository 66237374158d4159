"""Some atoms of all frames, staged: runs of these, or of fewer, read nothing from the trajectory."""

from __future__ import annotations

import json
import shutil
import signal

import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from support.cache_data import N_FRAMES, make, only_dataset, stage_on_nodes, write_xtc
from support.commands import himach, start_himach, wait_until

from himach.errors import UsageError
from himach.io.datasets.subsets import list_subsets
from himach.io.store.store import Store, StoreNotFoundError
from himach.io.trajectories.origin import open_origin
from himach.ranks.communicator import alone
from himach.staging.options import StageOptions
from himach.staging.stage import stage


def job(made, place, atoms, **choices) -> StageOptions:
    topology, trajectory = made
    return StageOptions([trajectory], topology, cache=str(place), quiet=True, atoms=atoms, **choices)


def kept(place) -> list[int]:
    """How many frames each subset in a store has, copies counted each."""
    try:
        store = Store(place, read_only=True)
        stored = [store.open_directory(directory) for directory in store.directories()]
    except StoreNotFoundError:  # just being made
        return []
    return [
        sum(segment["frames"] for segment in dataset.segments()) for dataset in stored if dataset.name.endswith("]")
    ]


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
    assert (staged.new, list(staged.nodes.values()), kept(place)) == (0, [N_FRAMES], [0])


@pytest.mark.slow
def test_killed_it_goes_on_where_it_was(tmp_path):
    place, path = tmp_path / "store", tmp_path / "long.xtc"
    write_xtc(path, 400, 3000)
    lines = (f"ATOM  {i:5d}  A   A       1       0.000   0.000   0.000\n" for i in range(1, 3001))
    (tmp_path / "top.pdb").write_text("".join(lines))
    words = ["stage", path, "-s", tmp_path / "top.pdb", "--atoms", "index 1000:1999", "--cache", place]
    for _ in range(2):
        process, before = start_himach(*words), kept(place)
        assert wait_until(lambda: kept(place) > before or process.poll() is not None, 30)  # noqa: B023
        process.send_signal(signal.SIGKILL)
        process.communicate()
    done = himach(*words, code=0)
    assert "1,000 atoms of 400 frames staged" in done.stdout
    assert kept(place) == [400]
    assert himach("cache", "verify", "--cache", place).returncode == 0


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
