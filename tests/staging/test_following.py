"""Staging what still grows: again and again, or as it grows."""

from collections.abc import Iterator
from pathlib import Path

import MDAnalysis
import numpy as np
import pytest
from support.cache_data import natives
from support.io_samples import offsets_of

from himach import Analysis, run
from himach.io.datasets.request import DatasetRequest
from himach.io.frame_source import WHOLE
from himach.io.store.store import Store
from himach.io.trajectories.origin import Origin
from himach.ranks.communicator import alone
from himach.staging import shares
from himach.staging.options import StageOptions
from himach.staging.stage import stage


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


N_MADE = 30


def made_up(numbers: range) -> Iterator[MDAnalysis.AtomGroup]:
    universe = MDAnalysis.Universe.empty(N_MADE, trajectory=True)
    for number in numbers:
        universe.atoms.positions = np.random.default_rng(number).uniform(0, 50, (N_MADE, 3))
        universe.trajectory.ts.time = 2.0 * number
        yield universe.atoms


@pytest.mark.filterwarnings("ignore")  # of a last frame that is not whole
@pytest.mark.parametrize("kind", [GrowingTrr, GrowingXtc, GrowingNetCDF])
def test_whatever_grows_is_followed_and_staged_by_whole_frames(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(shares, "POLL_SECONDS", 0)
    monkeypatch.setattr(shares, "POLL_FACTOR", 0)
    growing, place = kind(tmp_path), tmp_path / "store"
    growing.grow(kind.first)
    files, staged = shares.GrowingFiles(DatasetRequest([growing.path])), 0
    assert (files.poll() is None) == (kind.first == 0)
    for n_frames in (4, 8):
        growing.grow(n_frames)
        assert files.poll().n_frames == files.poll().n_frames == n_frames
        assert stage(alone(), StageOptions([growing.path], cache=str(place), quiet=True)).new == n_frames - staged
        staged = n_frames
    assert natives(place) == [set(range(8))]  # it is one dataset
    (directory,) = Store(place).directories()
    for atoms, frame in zip(made_up(range(8)), Store(place).open_directory(directory).read(range(8)), strict=True):
        assert frame.time == pytest.approx(2.0 * frame.number)
        assert np.allclose(frame.positions, atoms.positions, atol=0.006)


@pytest.mark.parametrize("kind", [GrowingTrr, GrowingNetCDF])
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
