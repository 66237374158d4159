"""Staging: as a user does it, on one node and on several, interrupted, under a quota; of all atoms or of some."""

import json
import shutil
import tracemalloc
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import MDAnalysis
import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from pyroaring import BitMap64
from support.cache_data import N_FRAMES as N_MADE
from support.cache_data import make, natives, only_dataset, stage_on_nodes, write_xtc
from support.commands import himach, start_himach, wait_until

from himach.errors import UsageError
from himach.io.datasets.subsets import list_subsets
from himach.io.push.writer import Writer
from himach.io.store.quota import survey
from himach.io.store.store import Store, StoreConflictError, StoreFullError, StoreNotFoundError
from himach.io.trajectories.origin import open_origin
from himach.ranks.communicator import alone
from himach.staging.options import StageOptions
from himach.staging.shares import own_part
from himach.staging.stage import stage

N_FRAMES = 98
ADK = [DCD, "--topology", PSF]


def copies(place: Path) -> int:
    """Frames in all segments, copies counted each."""
    try:
        store = Store(place, read_only=True)
        datasets = [store.open_directory(directory) for directory in store.directories()]
    except StoreNotFoundError:  # just being made
        return 0
    return sum(segment["frames"] for dataset in datasets for segment in dataset.segments())


@pytest.mark.slow
def test_staged_once_read_from_the_cache_ever_after(tmp_path):
    place = tmp_path / "store"
    first = himach("stage", *ADK, "--dataset", "adk", "--cache", place, code=0)
    assert first.stdout.startswith("adk: 98 frames staged, 98 of them now (98 on ")
    again = himach("stage", *ADK, "--dataset", "adk", "--cache", place)
    assert "98 frames staged, 0 of them now" in again.stdout
    assert copies(place) == N_FRAMES
    with MDAnalysis.Universe(PSF, DCD).trajectory as trajectory:
        (dataset,) = (Store(place).open_directory(name) for name in Store(place).directories())
        for timestep, frame in zip(trajectory, dataset.read(range(N_FRAMES)), strict=True):
            assert np.array_equal(frame.positions, timestep.positions)
            assert frame.time == pytest.approx(timestep.time)
    himach("run", "rmsd", "--trajectory", "adk", "--cache", place, "--out", tmp_path / "out", cwd=tmp_path, code=0)
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["bytes"]["origin"] == 0
    assert record["assignment"] == {"native": N_FRAMES, "alien": 0, "residue": 0}
    himach("run", "rmsd", "-t", DCD, "-s", PSF, "--cache", "off", "--out", tmp_path / "plain", code=0)
    assert (tmp_path / "out" / "rmsd.csv").read_bytes() == (tmp_path / "plain" / "rmsd.csv").read_bytes()


@pytest.mark.nightly(but=1)
@pytest.mark.slow
@pytest.mark.parametrize("placement", ["spread", "runs"])
@pytest.mark.parametrize("nodes", [["a", "b"], ["a", "a", "b"], ["a", "b", "c"]])
def test_every_frame_lies_on_one_node(tmp_path, nodes, placement):
    done = stage_on_nodes(tmp_path, nodes, "stage", *ADK, "--placement", placement, code=0)
    assert "98 frames staged, 98 of them now" in done.stdout
    names = sorted(set(nodes))
    by_node = [natives(tmp_path / name)[0] for name in names]
    assert set.union(*by_node) == set(range(N_FRAMES))
    assert sum(map(len, by_node)) == N_FRAMES == sum(copies(tmp_path / name) for name in names)
    assert max(map(len, by_node)) - min(map(len, by_node)) <= 1
    for i, frames in enumerate(by_node):
        if placement == "spread":
            assert all(frame % len(names) == i for frame in frames)
        else:
            assert max(frames) - min(frames) == len(frames) - 1
    again = stage_on_nodes(tmp_path, nodes, "stage", *ADK, "--placement", "runs")
    assert "0 of them now" in again.stdout
    assert sum(copies(tmp_path / name) for name in names) == N_FRAMES


def test_the_quota_holds_with_several_ranks_of_a_node(tmp_path):
    write_xtc(tmp_path / "a.xtc", 300, 3000)  # 11 MB
    words = ["stage", tmp_path / "a.xtc", "--quota", "4MB"]
    done = stage_on_nodes(tmp_path, ["a", "a", "a"], *words, code=1)
    assert done.stderr.count("has no room") == 1
    assert 2_000_000 < survey(tmp_path / "a").used <= 4_000_000
    done = stage_on_nodes(tmp_path, ["a", "a", "a"], *words[:2], "--quota", "40MB", code=0)
    assert copies(tmp_path / "a") == 300


def test_what_a_lost_node_held_is_staged_again(tmp_path):
    stage_on_nodes(tmp_path, ["a", "b"], "stage", *ADK, code=0)
    himach("cache", "evict", "--all", "--cache", tmp_path / "a", code=0)
    done = stage_on_nodes(tmp_path, ["a", "b"], "stage", *ADK)
    assert "98 frames staged, 49 of them now (49 on a, 49 on b)" in done.stdout


@pytest.mark.parametrize("atoms", [[], pytest.param(["--atoms", "index 1000:1999"], marks=pytest.mark.slow)])
def test_a_killed_stage_is_resumed_and_nothing_is_there_twice(tmp_path, atoms):
    path, place = tmp_path / "long.xtc", tmp_path / "store"
    write_xtc(path, 400, 3000)
    lines = (f"ATOM  {i:5d}  A   A       1       0.000   0.000   0.000\n" for i in range(1, 3001))
    (tmp_path / "top.pdb").write_text("".join(lines))
    words = ["stage", path, "-s", tmp_path / "top.pdb", *atoms, "--cache", place]
    for _ in range(3):
        process, before = start_himach(*words), copies(place)
        assert wait_until(lambda: copies(place) > before or process.poll() is not None, 30)  # noqa: B023
        process.kill()
        process.communicate()
    done = himach(*words, code=0)
    assert ("1,000 atoms of 400 frames staged" if atoms else "400 frames staged") in done.stdout
    assert copies(place) == 400 + bool(atoms)  # beside some atoms of all frames lies a whole one, for setup()
    himach("cache", "verify", "--cache", place, code=0)


def job(path: Path, place: Path, **choices) -> StageOptions:
    return StageOptions([path], cache=str(place), quiet=True, **choices)


def test_without_room_staging_fails_with_what_was_staged_kept(tmp_path):
    place = tmp_path / "store"
    write_xtc(tmp_path / "a.xtc", 100, 7500)
    with pytest.raises(StoreFullError, match=r"no room.*quota of 2\.0 MB"):
        stage(alone(), job(tmp_path / "a.xtc", place, quota=2_000_000))
    assert survey(place).used <= 2_000_000
    (kept,) = natives(place)
    assert kept == set(range(len(kept)))
    assert len(kept) > 20
    assert stage(alone(), job(tmp_path / "a.xtc", place)).new == 100 - len(kept)


def test_what_makes_no_sense_is_refused(tmp_path):
    path = tmp_path / "a.xtc"
    for options, message in (
        ({"cache": "off"}, "'off' makes no sense"),
        ({"dataset": "sim [slices]"}, "himach's own"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=message):
            StageOptions([path], **options)
    with pytest.raises(UsageError, match="himach's own"):
        Writer("sim [slices]", 10, cache=tmp_path)
    done = himach("stage", path, "--cache", tmp_path / "store", code=2)
    assert "there is no trajectory" in done.stderr
    write_xtc(path, 2)
    done = himach("stage", path, "--cache", tmp_path / "store", "--quota", "1kB", code=2)
    assert "quota of 1.0 kB (1000 bytes) is smaller than a segment" in done.stderr
    done = himach("stage", path, "--topology", PSF, "--cache", tmp_path / "store", code=2)
    assert "3341 atoms" in done.stderr


def pushed(place: Path, name: str, n_atoms: int = 300) -> None:
    """A dataset as a simulation leaves it."""
    with Store(place).dataset(name) as dataset:
        for number in range(3):
            dataset.write(number, float(number), None, np.zeros((n_atoms, 3), dtype=np.float32), native=True)


def test_another_trajectory_under_the_name_is_refused_before_anything_is_mixed(tmp_path):
    for name, n_frames in ("one", 5), ("other", 6):
        write_xtc(tmp_path / f"{name}.xtc", n_frames, seed=n_frames)
    place = tmp_path / "cache"
    assert stage(alone(), job(tmp_path / "one.xtc", place, dataset="mine")).new == 5
    with pytest.raises(
        StoreConflictError, match=r"dataset mine is of another trajectory \(.*one\.xtc\), not of .*other"
    ):
        stage(alone(), job(tmp_path / "other.xtc", place, dataset="mine"))
    assert natives(place) == [set(range(5))]
    pushed(place, "theirs")
    with pytest.raises(StoreConflictError, match="dataset theirs was pushed by a simulation"):
        stage(alone(), job(tmp_path / "other.xtc", place, dataset="theirs"))
    # The same content elsewhere, and other content in the same place, are no other trajectory.
    moved = (tmp_path / "one.xtc").rename(tmp_path / "moved.xtc")
    assert stage(alone(), job(moved, place, dataset="mine")).new == 0
    write_xtc(moved, 7, seed=7)
    assert stage(alone(), job(moved, place, dataset="mine")).new == 7


def test_two_trajectories_under_one_name_at_the_same_moment(tmp_path):
    """One of them is staged, the other is refused; nothing is mixed."""
    place = tmp_path / "cache"
    for name, n_frames in ("one", 5), ("other", 6):
        write_xtc(tmp_path / f"{name}.xtc", n_frames, seed=n_frames)
    for _ in range(3):
        words = ["--dataset", "mine", "--cache", place]
        staging = [start_himach("stage", tmp_path / f"{name}.xtc", *words) for name in ("one", "other")]
        errors = [process.communicate(timeout=60)[1] for process in staging]
        codes = [process.returncode for process in staging]
        assert sorted(codes) == [0, 1]
        assert "is of another trajectory" in errors[codes.index(1)]
        assert natives(place) == [set(range(5 + codes.index(0)))]
        shutil.rmtree(place)


def atoms_job(made, place, atoms, **choices) -> StageOptions:
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
        himach(*arguments, code=0) if more else stage_on_nodes(tmp_path, nodes, *arguments, code=0)
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
    staged = stage(alone(), atoms_job(made, place, "index 3:9 or index 40"))
    assert (staged.new, staged.atoms, list(staged.nodes.values())) == (N_MADE, 8, [N_MADE])
    dataset = only_dataset(place, made[1])
    (subset,) = list_subsets(dataset)
    assert subset.atoms.tolist() == [3, 4, 5, 6, 7, 8, 9, 40]
    assert list(dataset.native) == [0]  # whole, for setup()
    for number, frame in enumerate(subset.dataset.read(range(N_MADE))):
        origin = next(open_origin([made[1]]).read([number]))
        assert (frame.time, frame.box.tolist()) == (origin.time, origin.box.tolist())
        assert np.array_equal(frame.positions, origin.positions[subset.atoms])
        assert np.array_equal(frame.velocities, origin.velocities[subset.atoms])


def test_what_is_there_whole_is_not_staged_again(tmp_path):
    made, place = make(tmp_path), tmp_path / "store"
    assert stage(alone(), atoms_job(made, place, "all")).new == N_MADE
    assert len(only_dataset(place, made[1]).native) == N_MADE
    staged = stage(alone(), atoms_job(made, place, "index 3:9"))
    (subset,) = list_subsets(only_dataset(place, made[1]))
    assert (staged.new, list(staged.nodes.values()), len(subset.dataset.native)) == (0, [N_MADE], 0)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"copies": 2}, "--copies is for whole frames: leave it out"),
        ({"repair": True}, "--repair is for whole frames"),
        ({"server": "tcp://here:1"}, "--server is for whole frames"),
        ({"atoms": "nam C"}, "'nam C' cannot be used as a selection"),
        ({"atoms": "name X"}, "'name X' selects none of the 50 atoms"),
        ({"atoms": "updating name C"}, "selects other atoms in each frame"),
        ({"topology": None}, "holds no topology; name a topology file, too"),
    ],
)
def test_what_makes_no_sense_of_some_atoms_is_refused(tmp_path, choices, words):
    topology, trajectory = make(tmp_path, 2)
    options = {"topology": topology, "cache": str(tmp_path / "store"), "quiet": True, "atoms": "name C", **choices}
    with pytest.raises(UsageError, match=words):
        stage(alone(), StageOptions([trajectory], **options))
    assert Store(tmp_path / "store").names() == []


def test_slices_are_put_together_whole(tmp_path):
    done = himach("stage", "sim", "--assemble", "--atoms", "name C", "--cache", tmp_path / "store")
    assert (done.returncode, "--assemble takes the name under which slices were pushed" in done.stderr) == (2, True)


@pytest.mark.parametrize("placement", ["spread", "runs"])
def test_a_rank_lists_its_own_frames_alone(placement):
    frames, stored = BitMap64(range(10**6)), BitMap64(range(0, 10**6, 10))
    parts = []
    tracemalloc.start()
    for node, rank in product(range(2), range(64)):
        world = SimpleNamespace(nodes="ab", node_index=node, node=SimpleNamespace(rank=rank, size=64))
        parts.append(own_part(world, placement, frames, stored))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10e6  # of all parts some seven
    assert sorted(np.concatenate(parts).tolist()) == list(frames - stored)
    assert max(map(len, parts)) - min(map(len, parts)) < 2000
