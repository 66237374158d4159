"""Runs with a store: what is read from where, what changes when origin, store or disk do, and never the outcome."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support.cache_data import N_FRAMES, Emit, analyse, bits, datasets, make, make_dump, numbers_of, only_dataset
from support.needs import small_disk
from support.ranks import clean_environment

import himach
from himach.io.trajectories import open_file
from himach.io.trajectories.xdr_index import read_index

ALL = list(range(N_FRAMES))


def both(trajectory: Path, topology: Path | None, place: Path, **options) -> tuple[himach.Result, himach.Result]:
    """Analyse without a cache and with one; check that the outcomes are the same to the last bit."""
    without = analyse(trajectory, topology, cache="off", **options)
    with_cache = analyse(trajectory, topology, cache=place, **options)
    assert bits(with_cache.outcome) == bits(without.outcome)
    return without, with_cache


def from_origin(result: himach.Result) -> int:
    return result.record["bytes"]["origin"]


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("name", ["md.trr", "md.xtc", "md.dcd", "md.ncdf", "md.xyz", "md.pdb"])
def test_second_run_reads_the_cache_alone(tmp_path, place, name):
    topology, trajectory = make(tmp_path, name=name)
    without, first = both(trajectory, topology, place)
    assert from_origin(first) == from_origin(without) > 0
    assert first.record["assignment"] == {"native": 0, "alien": 0, "residue": N_FRAMES}
    _, second = both(trajectory, topology, place)
    assert from_origin(second) == 0
    assert second.record["bytes"]["cache"] > 0
    assert second.record["assignment"] == {"native": 0, "alien": N_FRAMES, "residue": 0}


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("name", ["md.trr", "md.xtc"])
def test_headers_are_walked_over_once(tmp_path, place, name, monkeypatch):
    topology, trajectory = make(tmp_path, name=name)
    walked: list[str] = []
    monkeypatch.setattr(open_file, "read_index", lambda path, kind: (walked.append(path), read_index(path, kind))[1])
    expected = analyse(trajectory, topology, cache="off")

    def walks() -> int:
        walked.clear()
        result = analyse(trajectory, topology, cache=place)
        assert bits(result.outcome) == bits(expected.outcome)
        return len(walked)

    assert [walks(), walks(), walks()] == [1, 0, 0]
    os.utime(trajectory)
    assert [walks(), walks()] == [1, 0]
    index = only_dataset(place, trajectory).path / "x-index"
    whole = index.read_bytes()
    flipped = whole[:300] + bytes([whole[300] ^ 1]) + whole[301:]
    for damaged in (flipped, whole[:-1], whole[: len(whole) // 2], bytes(len(whole)), b""):
        index.write_bytes(damaged)
        assert [walks(), walks()] == [1, 0]
    index.unlink()
    assert [walks(), walks()] == [1, 0]


def test_origin_away(tmp_path, place):
    topology, trajectory = make(tmp_path)
    without, _ = both(trajectory, topology, place)
    for path in (topology, trajectory):
        path.rename(f"{path}.away")
    for named in (topology, None):
        result = analyse(trajectory, named, cache=place)
        assert bits(result.outcome) == bits(without.outcome)
        assert from_origin(result) == 0
        assert result.record["dataset"] == without.record["dataset"]
    with pytest.raises(himach.UsageError, match="no trajectory"):
        analyse(trajectory, topology, cache="off")
    with pytest.raises(
        himach.UsageError, match=r"read with no keywords, and you ask for dt=5\.0"
    ):  # with another time step frames are others
        analyse(trajectory, topology, cache=place, universe={"dt": 5.0})


@pytest.mark.parametrize("name", ["md.trr", "md.xyz", "md.pdb"])
def test_part_of_the_frames_with_the_origin_away(tmp_path, place, name):
    topology, trajectory = make(tmp_path, name=name)
    expected = analyse(trajectory, topology, cache=place, step=3)
    trajectory.rename(f"{trajectory}.away")
    result = analyse(trajectory, topology, cache=place, step=3)
    assert bits(result.outcome) == bits(expected.outcome)
    with pytest.raises(himach.TrajectoryError, match=r"lie in no cache.*frame 1, 2, 4"):
        analyse(trajectory, topology, cache=place)


def test_times_that_frames_alone_know_with_the_origin_away(tmp_path, place):
    topology, trajectory = make_dump(tmp_path)
    for step in (None, 5):
        expected = analyse(trajectory, topology, cache=place, step=step)
        trajectory.rename(f"{trajectory}.away")
        assert bits(analyse(trajectory, topology, cache=place, step=step).outcome) == bits(expected.outcome)
        Path(f"{trajectory}.away").rename(trajectory)


def test_several_files(tmp_path, place):
    topology, one = make(tmp_path)
    _, two = make(tmp_path, name="two.trr", seed=8)
    options = {"cache": place, "progress": False, "universe": {"dt": 1.0}}
    first = himach.run(Emit(), [one, two], topology, **options)
    second = himach.run(Emit(), [one, two], topology, **options)
    assert from_origin(second) == 0
    assert bits(second.outcome) == bits(first.outcome)
    assert from_origin(himach.run(Emit(), [two, one], topology, **options)) > 0


def test_frames_are_keyed_by_the_trajectory_alone(tmp_path, place):
    topology, trajectory = make(tmp_path)
    analyse(trajectory, topology, cache=place)
    other = shutil.copy(topology, tmp_path / "other.gro")
    assert from_origin(analyse(trajectory, other, cache=place)) == 0


def test_changed_origin(tmp_path, place):
    topology, trajectory = make(tmp_path)
    analyse(trajectory, topology, cache=place)
    make(tmp_path, seed=99)
    _, changed = both(trajectory, topology, place)
    assert from_origin(changed) > 0
    assert len(datasets(place, trajectory)) == 2
    assert from_origin(both(trajectory, topology, place)[1]) == 0


def test_one_bit_changed_in_place(tmp_path, place):
    topology, trajectory = make(tmp_path)
    analyse(trajectory, topology, cache=place)
    content = bytearray(trajectory.read_bytes())
    content[len(content) // 2 + 400] ^= 1
    trajectory.write_bytes(content)
    both(trajectory, topology, place)


def test_grown_origin(tmp_path, place):
    topology, trajectory = make(tmp_path, 40)
    before = from_origin(analyse(trajectory, topology, cache=place))
    make(tmp_path)
    without, grown = both(trajectory, topology, place)
    assert numbers_of(grown) == ALL
    assert from_origin(grown) == from_origin(without) - before
    assert from_origin(analyse(trajectory, topology, cache=place)) == 0
    only_dataset(place, trajectory)


def test_shrunk_then_grown_otherwise(tmp_path, place):
    topology, trajectory = make(tmp_path, 40)
    analyse(trajectory, topology, cache=place)
    small = trajectory.read_bytes()
    make(tmp_path)
    both(trajectory, topology, place)
    trajectory.write_bytes(small)
    both(trajectory, topology, place)
    _, other = make(tmp_path, name="other.trr", seed=3)
    trajectory.write_bytes(small + other.read_bytes()[len(small) :])
    both(trajectory, topology, place)


def test_damaged_segment(tmp_path, place):
    topology, trajectory = make(tmp_path)
    without, _ = both(trajectory, topology, place)
    (segment,) = only_dataset(place, trajectory).path.glob("*.seg")
    content = bytearray(segment.read_bytes())
    for at in range(5000, len(content), 9000):
        content[at] ^= 0x10
    segment.write_bytes(content)
    _, damaged = both(trajectory, topology, place)
    assert 0 < from_origin(damaged) < from_origin(without)
    lost = without.record["frames"] * from_origin(damaged) / from_origin(without)
    assert damaged.record["faulty"] == {"damaged": round(lost), "missing": 0}
    assert without.record["faulty"] == {"damaged": 0, "missing": 0}
    analyse(trajectory, topology, cache=place)
    assert from_origin(both(trajectory, topology, place)[1]) == 0  # kept anew


def test_read_only_origin(tmp_path, place):
    folder = tmp_path / "origin"
    folder.mkdir()
    topology, trajectory = make(folder)
    for path in (topology, trajectory, folder):
        path.chmod(0o500 if path is folder else 0o400)
    before = sorted(os.listdir(folder))
    both(trajectory, topology, place)
    assert from_origin(both(trajectory, topology, place)[1]) == 0
    assert sorted(os.listdir(folder)) == before
    folder.chmod(0o700)


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("quota", [None, "2MB"])
@pytest.mark.parametrize("size", ["16k", "48k", "80k"])
def test_full_disk(tmp_path, monkeypatch, size, quota):
    if quota is not None:
        monkeypatch.setenv("HIMACH_QUOTA", quota)
    topology, trajectory = make(tmp_path)
    with small_disk(tmp_path / "small", f"size={size}") as small:
        with pytest.warns(UserWarning, match="cache") as caught:
            both(trajectory, topology, small / "store")
        assert len(caught) == 1
        with pytest.warns(UserWarning, match="cache"):
            both(trajectory, topology, small / "store")


class Deleting(Emit):
    """Deletes the store in the middle of a run."""

    store: str = ""

    def map(self, frame):
        if frame.number == 30:
            time.sleep(1.5)  # until what was read is written
            shutil.rmtree(self.store)
        yield from super().map(frame)


@pytest.mark.parametrize("step", [None, 2])
def test_a_store_that_is_deleted_during_a_run(tmp_path, place, step):
    topology, trajectory = make(tmp_path)
    expected = analyse(trajectory, topology, cache="off")
    analyse(trajectory, topology, cache=place, step=step)
    result = himach.run(Deleting(store=str(place)), trajectory, topology, cache=place, progress=False)
    assert bits(result.outcome) == bits(expected.outcome)
    both(trajectory, topology, place)


def test_two_jobs_at_once(tmp_path, place):
    topology, trajectory = make(tmp_path)
    script = tmp_path / "emit.py"
    script.write_text("from support.cache_data import Emit\n\nclass Job(Emit):\n    pass\n")
    words = [sys.executable, "-P", "-m", "himach", "run", f"{script}:Job", "-t", str(trajectory), "-s", str(topology)]
    environ = clean_environment(PYTHONPATH=str(Path(__file__).parents[2]))
    jobs = [
        subprocess.Popen(
            [*words, "--quiet", "-n", "2", "--cache", str(place), "--out", str(tmp_path / out)], env=environ
        )
        for out in ("one", "two")
    ]
    assert [job.wait(120) for job in jobs] == [0, 0]
    tables = [(tmp_path / out / "frames.csv").read_bytes() for out in ("one", "two")]
    assert tables[0] == tables[1]
    assert np.array_equal(sorted(only_dataset(place, trajectory).alien), ALL)
    assert from_origin(both(trajectory, topology, place)[1]) == 0


def test_default_place_that_cannot_be_used(tmp_path, monkeypatch):
    topology, trajectory = make(tmp_path)
    monkeypatch.delenv("HIMACH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    open_to_all = tmp_path / "home" / "himach"
    open_to_all.mkdir(parents=True)
    open_to_all.chmod(0o777)
    with pytest.warns(UserWarning, match=r"no frames are cached: .*as the cache"):
        analyse(trajectory, topology)
    for options, named in (({"cache": open_to_all}, "^cache"), ({}, r"\$HIMACH_CACHE")):
        monkeypatch.setenv("HIMACH_CACHE", str(open_to_all))
        with pytest.raises(himach.UsageError, match=rf"{named} names .*turn the cache off"):
            analyse(trajectory, topology, **options)
