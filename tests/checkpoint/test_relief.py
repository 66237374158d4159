"""Pairs that are kept on a disk are not written a second time for want of memory, and are read from there."""

import numpy as np
import pytest
from support.cache_data import make

import himach
from himach.checkpoint import checkpoint_writer as keeper
from himach.engine.shuffle.spill import Scratch
from himach.errors import HimachError

N_FRAMES = 60
MEMORY = 64 << 20  # of which pairs may take half


class Many(himach.Analysis):
    """Yields more than the memory that it gets."""

    n: int = 50_000

    def map(self, frame):
        rng = np.random.default_rng(frame.number)
        yield himach.Pairs(rng.integers(0, 500, self.n), rng.random(self.n))
        yield f"name {frame.number % 7}", frame.number

    def reduce(self, key, series):
        return [float(value) for value in series.values]


@pytest.fixture
def place(tmp_path):
    make(tmp_path, N_FRAMES, "run.xtc")
    return tmp_path


def run(place, **keywords):
    return himach.run(Many(), place / "run.xtc", place / "top.gro", cache="off", memory=MEMORY, **keywords)


def refused(*arguments):
    raise AssertionError("pairs were written twice")


@pytest.fixture
def disk_that_keeps_up(monkeypatch):
    """What was given to be kept is written when memory is full, as it is unless the disk is slow."""
    relieve = keeper.CheckpointWriter.relieve

    def after_all(self):
        self._writer.wait()
        relieve(self)

    monkeypatch.setattr(keeper.CheckpointWriter, "relieve", after_all)


@pytest.mark.nightly
@pytest.mark.usefixtures("disk_that_keeps_up")
def test_what_is_kept_is_not_spilled(place, monkeypatch):
    whole = run(place)
    monkeypatch.setattr(Scratch, "spill", refused)
    with pytest.raises(HimachError, match="twice"):
        run(place)
    first = run(place, pairs=place / "pairs")
    parts = list((place / "pairs").glob("*/*/*.pairs"))
    assert len(parts) > 5
    again = run(place, pairs=place / "pairs")
    assert again.record["reused"]["frames"] == N_FRAMES
    assert first.text() == again.text() == whole.text()


def test_where_the_disk_takes_no_more_the_rest_is_spilled(place, monkeypatch):
    whole, written = run(place), []
    write = keeper.write_part

    def full(*arguments, **keywords):
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        written.append(write(*arguments, **keywords))
        return written[-1]

    monkeypatch.setattr(keeper, "write_part", full)
    with pytest.warns(UserWarning, match="No space left"):
        first = run(place, pairs=place / "pairs")
    monkeypatch.undo()
    assert first.text() == whole.text()
    again = run(place, pairs=place / "pairs")
    assert 0 < again.record["reused"]["frames"] < N_FRAMES
    assert again.text() == whole.text()
