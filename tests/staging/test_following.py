"""Staging what still grows, as a user does it: `himach stage --follow`; and running over it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import MDAnalysis
import numpy as np
import pytest
from support.cache_data import held, natives, stage_on_nodes, write_xtc
from support.commands import himach, wait_until
from support.io_samples import offsets_of
from support.ranks import clean_environment

from himach import Analysis, run
from himach.io.frame_source import WHOLE
from himach.io.store.store import Store
from himach.io.trajectory.manifest import Manifest
from himach.io.trajectory.origin import Origin
from himach.ranks.communicator import alone
from himach.staging.options import StageOptions
from himach.staging.stage import stage

pytestmark = pytest.mark.slow


def follow(path: Path, place: Path, *words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "himach", "stage", str(path), "--follow", "--cache", str(place), *map(str, words)],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def frame_ends(path: Path) -> list[int]:
    return offsets_of(path, "XTC")[1:]


@pytest.mark.nightly
def test_a_growing_trajectory_is_followed_by_whole_frames(tmp_path):
    content = write_xtc(tmp_path / "whole.xtc", 12)
    ends = frame_ends(tmp_path / "whole.xtc")
    path, place = tmp_path / "growing.xtc", tmp_path / "store"
    path.write_bytes(content[: ends[0] // 2])  # not even a frame
    process = follow(path, place, "--idle", 8)
    try:
        time.sleep(2)
        assert process.poll() is None
        sizes = [ends[0], (ends[3] + ends[4]) // 2, ends[6], ends[9] + 5, len(content)]
        whole = [1, 4, 7, 10, 12]
        at = path.stat().st_size
        for size, n_frames in zip(sizes, whole, strict=True):
            with open(path, "ab") as file:
                file.write(content[at:size])
            at = size
            assert wait_until(lambda n=n_frames: held(place) >= n, 20)
            assert held(place) == n_frames
        out, error = process.communicate(timeout=40)
    finally:
        process.kill()
    assert process.returncode == 0, error
    assert "12 frames staged, 12 of them now" in out
    assert "warning" not in error
    assert natives(place) == [set(range(12))]
    assert "0 of them now" in himach("stage", path, "--cache", place).stdout
    assert len(natives(place)) == 1  # a grown trajectory is the same dataset


class Numbers(Analysis):
    """Which frames there were."""

    def map(self, frame):
        yield "numbers", frame.number

    def reduce(self, key, series):
        return [int(number) for number in series.values]

    def finish(self, results):
        return dict(results)


class GrowingFile:
    """A TRR file that another program appends to, half a frame at a time, too."""

    def __init__(self, folder: Path) -> None:
        with MDAnalysis.Writer(str(folder / "whole.trr"), N_MADE) as writer:
            for atoms in made_up(range(8)):
                writer.write(atoms)
        self.path = folder / "growing.trr"
        self.content = (folder / "whole.trr").read_bytes()
        self.ends = offsets_of(folder / "whole.trr", "TRR")[1:]

    def grow(self, n_frames: int) -> None:
        end = self.ends[n_frames - 1]
        half = (self.ends[1] - self.ends[0]) // 2 if n_frames < len(self.ends) else 0
        self.path.write_bytes(self.content[: end + half])
        self.n_frames = n_frames


class GrowingNetCDF:
    """An AMBER NetCDF file that its writer holds open and syncs."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "growing.nc"
        self.writer = MDAnalysis.Writer(str(self.path), N_MADE)
        self.n_frames = 0

    def grow(self, n_frames: int) -> None:
        for atoms in made_up(range(self.n_frames, n_frames)):
            self.writer.write(atoms)
        self.n_frames = n_frames
        self.writer.trjfile.sync()


class GrowingDirectory:
    """A frame directory to which files are added, and then the manifest and times that speak of them."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "frames"
        self.path.mkdir()
        self.n_frames = 0

    def grow(self, n_frames: int) -> None:
        numbers = range(self.n_frames, n_frames)
        for number, atoms in zip(numbers, made_up(numbers), strict=True):
            with MDAnalysis.Writer(str(self.path / f"frame-{number:04d}.xtc"), N_MADE) as writer:
                writer.write(atoms)
        self.n_frames = n_frames
        np.save(self.path / "times.npy", 2.0 * np.arange(n_frames))
        manifest = Manifest(n_frames, N_MADE, 1, "XTC", "frame-%04d.xtc", None, {}, "made up")
        manifest.write(str(self.path / "himach.json"))


N_MADE = 30


def made_up(numbers: range) -> Iterator[MDAnalysis.AtomGroup]:
    universe = MDAnalysis.Universe.empty(N_MADE, trajectory=True)
    for number in numbers:
        universe.atoms.positions = np.random.default_rng(number).uniform(0, 50, (N_MADE, 3))
        universe.trajectory.ts.time = 2.0 * number
        yield universe.atoms


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("kind", [GrowingFile, GrowingNetCDF, GrowingDirectory])
def test_whatever_grows_is_followed(tmp_path, kind):
    growing, place = kind(tmp_path), tmp_path / "store"
    growing.grow(1)
    process = follow(growing.path, place, "--idle", 6)
    try:
        for n_frames in (1, 4, 8):
            growing.grow(n_frames)
            assert wait_until(lambda n=n_frames: held(place) >= n or process.poll() is not None, 20)
            time.sleep(2.5)  # looked at in vain meanwhile
            assert held(place) == n_frames
        out, error = process.communicate(timeout=40)
    finally:
        process.kill()
    assert process.returncode == 0, error
    assert "8 frames staged, 8 of them now" in out
    assert "warning" not in error
    (directory,) = Store(place).directories()
    for atoms, frame in zip(made_up(range(8)), Store(place).open_directory(directory).read(range(8)), strict=True):
        assert frame.time == pytest.approx(2.0 * frame.number)
        assert np.allclose(frame.positions, atoms.positions, atol=0.006)
    assert "0 of them now" in himach("stage", growing.path, "--cache", place).stdout
    assert len(natives(place)) == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_following_ends_when_told_and_keeps_what_was_staged(tmp_path, number, code):
    write_xtc(tmp_path / "a.xtc", 5)
    process = follow(tmp_path / "a.xtc", tmp_path / "store")
    try:
        assert wait_until(lambda: held(tmp_path / "store") == 5, 20)
        process.send_signal(number)
        process.communicate(timeout=40)
    finally:
        process.kill()
    assert process.returncode == code
    assert natives(tmp_path / "store") == [set(range(5))]


@pytest.mark.nightly
def test_following_on_two_nodes(tmp_path):
    content = write_xtc(tmp_path / "whole.xtc", 10)
    ends = frame_ends(tmp_path / "whole.xtc")
    path = tmp_path / "growing.xtc"
    path.write_bytes(content[: ends[4]])
    grow = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; time.sleep(4); open(sys.argv[1], 'ab').write(open(sys.argv[2], 'rb').read()"
            f"[{ends[4]}:])",
            str(path),
            str(tmp_path / "whole.xtc"),
        ]
    )
    done = stage_on_nodes(tmp_path, ["a", "b"], "stage", path, "--follow", "--idle", 5)
    grow.wait()
    assert done.returncode == 0, done.stderr
    assert "10 frames staged, 10 of them now (5 on a, 5 on b)" in done.stdout


@pytest.mark.parametrize("kind", [GrowingFile, GrowingNetCDF, GrowingDirectory])
def test_what_grows_while_it_is_staged_or_analysed_is_no_other(tmp_path, monkeypatch, kind):
    growing, place = kind(tmp_path), tmp_path / "store"
    growing.grow(4)

    def read(self, numbers, options=WHOLE):
        for frame in reading(self, numbers, options):
            if len(numbers) > 1 and frame.number == 1:
                growing.grow(growing.n_frames + 2)
            yield frame

    reading = Origin.read
    monkeypatch.setattr(Origin, "read", read)
    stage(alone(), StageOptions([growing.path], cache=str(place), quiet=True))
    assert natives(place) == [set(range(4))]
    topology = tmp_path / "top.gro"
    topology.write_text(f"\n{N_MADE}\n" + N_MADE * "    1RES      C    1   0.000   0.000   0.000\n" + "1 1 1\n")
    result = run(Numbers(), growing.path, topology, cache="off", progress=False)
    assert result.outcome == {"numbers": list(range(6))}


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize(
    ("n_frames", "said"), [(3, "had 5 frames of 300 atoms and now has 3"), (9, "a.xtc has other content")]
)
def test_a_trajectory_that_is_replaced_while_it_is_followed_is_told(tmp_path, n_frames, said):
    path = tmp_path / "a.xtc"
    write_xtc(path, 5)
    process = follow(path, tmp_path / "store", "--idle", 20)
    try:
        assert wait_until(lambda: held(tmp_path / "store") == 5, 20)
        write_xtc(tmp_path / "b.xtc", n_frames, seed=2)
        os.replace(tmp_path / "b.xtc", path)
        _, error = process.communicate(timeout=40)
    finally:
        process.kill()
    assert process.returncode == 1
    assert said in error
    assert natives(tmp_path / "store") == [set(range(5))]
