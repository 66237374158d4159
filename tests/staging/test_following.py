"""Staging what still grows: followed in process as it grows, and as a user does by `himach stage --follow`."""

import os
import signal
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import MDAnalysis
import numpy as np
import pytest
from support.cache_data import held, natives, stage_on_nodes, write_xtc
from support.commands import start_himach, wait_until
from support.io_samples import offsets_of

from himach import Analysis, HimachError, run
from himach.io.frame_source import WHOLE
from himach.io.store.store import Store
from himach.io.trajectories.frame_directory import Manifest
from himach.io.trajectories.origin import Origin
from himach.ranks.communicator import alone
from himach.staging import shares
from himach.staging.options import StageOptions
from himach.staging.stage import stage

IDLE = 6  # seconds; staging waits one of them between two looks at a file
IN_VAIN = (lambda: None,) * 3  # looks at a file that has not grown


@pytest.fixture
def follow(monkeypatch, tmp_path):
    """Return a function that stages a trajectory, which grows by a step each time that staging waits for it.

    Each step comes with the number of frames that are staged before. Time passes only in these waits.
    """

    def follow_growth(path, steps):
        pending, now = [(n, grow) for n, *functions in steps for grow in functions], 0.0

        def sleep(seconds):
            nonlocal now
            now += seconds
            if pending:
                n_frames, grow = pending.pop(0)
                assert held(tmp_path / "store") == n_frames
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of what grows, not of staging
                    grow()

        monkeypatch.setattr(shares, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
        options = StageOptions([path], cache=str(tmp_path / "store"), quiet=True, follow=True, idle=IDLE)
        with warnings.catch_warnings(record=True) as messages:
            staged = stage(alone(), options)
        assert not pending and now >= IDLE and not messages
        return staged

    return follow_growth


def check_staged_once(path, place):
    """Check that a grown trajectory is one dataset, of which nothing is left to stage."""
    assert stage(alone(), StageOptions([path], cache=str(place), quiet=True)).new == 0
    assert len(natives(place)) == 1


class Numbers(Analysis):
    """Which frames there were."""

    def map(self, frame):
        yield "numbers", frame.number

    def reduce(self, key, series):
        return [int(number) for number in series.values]

    def finish(self, results):
        return dict(results)


class GrowingTrr:
    """A file that another program appends to, half a frame or a few bytes at a time, too; at first not even a frame."""

    kind, first = "TRR", 0

    def __init__(self, folder: Path) -> None:
        whole, self.path = folder / f"whole.{self.kind}", folder / f"growing.{self.kind}"
        with MDAnalysis.Writer(str(whole), N_MADE) as writer:
            for atoms in made_up(range(8)):
                writer.write(atoms)
        self.content, self.starts = whole.read_bytes(), offsets_of(whole, self.kind)

    def grow(self, n_frames: int) -> None:
        more = 5 if n_frames % 8 else self.starts[1] // 2
        self.path.write_bytes(self.content[: self.starts[n_frames] + more])
        self.n_frames = n_frames


class GrowingXtc(GrowingTrr):
    kind = "XTC"


class GrowingNetCDF:
    """An AMBER NetCDF file that its writer holds open and syncs."""

    first = 1

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

    first = 1

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


@pytest.mark.parametrize("kind", [GrowingTrr, GrowingXtc, GrowingNetCDF, GrowingDirectory])
def test_whatever_grows_is_followed_by_whole_frames(tmp_path, follow, kind):
    growing, place = kind(tmp_path), tmp_path / "store"
    growing.grow(kind.first)
    steps = [(kind.first, *IN_VAIN, lambda: growing.grow(4)), (4, *IN_VAIN, lambda: growing.grow(8)), (8, *IN_VAIN)]
    staged = follow(growing.path, steps)
    assert (staged.frames, staged.new, natives(place)) == (8, 8, [set(range(8))])
    (directory,) = Store(place).directories()
    for atoms, frame in zip(made_up(range(8)), Store(place).open_directory(directory).read(range(8)), strict=True):
        assert frame.time == pytest.approx(2.0 * frame.number)
        assert np.allclose(frame.positions, atoms.positions, atol=0.006)
    check_staged_once(growing.path, place)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_following_ends_when_told_and_keeps_what_was_staged(tmp_path, number, code):
    write_xtc(tmp_path / "a.xtc", 5)
    with start_himach("stage", tmp_path / "a.xtc", "--follow", "--cache", tmp_path / "store") as process:
        try:
            assert wait_until(lambda: held(tmp_path / "store") == 5, 20)
            process.send_signal(number)
            process.communicate(timeout=40)
        finally:
            process.kill()
    assert process.returncode == code
    assert natives(tmp_path / "store") == [set(range(5))]


@pytest.mark.slow
@pytest.mark.nightly
def test_following_on_two_nodes(tmp_path):
    content = write_xtc(tmp_path / "whole.xtc", 10)
    path, end = tmp_path / "growing.xtc", offsets_of(tmp_path / "whole.xtc", "XTC")[5]
    path.write_bytes(content[:end])
    with ThreadPoolExecutor(1) as thread:
        words = ["stage", path, "--follow", "--idle", 5]
        staging = thread.submit(stage_on_nodes, tmp_path, ["a", "b"], *words, code=0)
        assert wait_until(lambda: [held(tmp_path / node) for node in "ab"] == [3, 2] or staging.done(), 60)
        with path.open("ab") as file:
            file.write(content[end:])
    assert "10 frames staged, 10 of them now (5 on a, 5 on b)" in staging.result().stdout


@pytest.mark.parametrize("kind", [GrowingTrr, GrowingNetCDF, GrowingDirectory])
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


@pytest.mark.parametrize(
    ("n_frames", "message"), [(3, "had 5 frames of 300 atoms and now has 3"), (9, "a.xtc has other content")]
)
def test_a_trajectory_that_is_replaced_while_it_is_followed_is_told(tmp_path, follow, n_frames, message):
    path = tmp_path / "a.xtc"
    write_xtc(path, 5)
    write_xtc(tmp_path / "b.xtc", n_frames, seed=2)
    with pytest.raises(HimachError, match=message):
        follow(path, [(5, lambda: os.replace(tmp_path / "b.xtc", path))])
    assert natives(tmp_path / "store") == [set(range(5))]
