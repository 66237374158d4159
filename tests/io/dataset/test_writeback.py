"""Keeping frames behind the analysis: a disk that is slow, fails or never answers costs copies, and hardly any time."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from himach.frame import RawFrame
from himach.io.dataset import writeback
from himach.io.dataset.writeback import Writeback
from himach.io.store.store import Store, StorePoisonedError


class Disk:
    """A dataset on a disk that misbehaves."""

    def __init__(self, dataset, write):
        self.store, self.path = dataset.store, dataset.path
        self._dataset, self._write = dataset, write
        self.written = 0

    def write(self, *frame):
        self._write(self.written)
        self.written += 1
        return True

    def place(self):
        return self._dataset.place()

    def flush(self):
        pass

    def close(self):
        pass


@pytest.fixture
def dataset(tmp_path):
    return Store(tmp_path / "store").dataset("/sim")


def frame(number: int, n_atoms: int = 1000) -> RawFrame:
    positions = np.full((n_atoms, 3), number, dtype=np.float32)
    return RawFrame(number, float(number), positions, None, -positions if number % 2 else None)


def write_all(disk, count: int) -> tuple[writeback.Written, float]:
    """Offer so many frames; return what came of it, and the seconds that it took."""
    began = time.monotonic()
    subject = Writeback(disk)
    for number in range(count):
        subject.offer(frame(number))
    return subject.close(), time.monotonic() - began


def test_frames_are_copied_and_kept(dataset):
    subject = Writeback(dataset)
    shared = frame(0)
    for number in range(500):
        new = frame(number, 1000 if number % 7 else 30)
        if number % 7:
            shared.positions[:] = new.positions  # as a reader that reuses its arrays
            new.positions = shared.positions
        subject.offer(new)
    shared.positions[:] = -1
    assert subject.close() == writeback.Written(500, 0, "")
    found = [each for each in dataset.read(np.arange(500)) if each is not None and each.positions[0, 0] == each.number]
    assert len(found) == 500


def test_known_frames_are_not_skipped_ones(dataset):
    assert write_all(dataset, 20)[0] == writeback.Written(20, 0, "")
    again = Store(dataset.store.path).dataset("/sim")
    assert write_all(again, 30)[0] == writeback.Written(10, 0, "")


def test_slow_disk(dataset, monkeypatch):
    monkeypatch.setattr(writeback, "QUEUE_BYTES", 100_000)
    got, seconds = write_all(Disk(dataset, lambda count: time.sleep(0.02)), 1000)
    assert got.frames + got.skipped == 1000
    assert got.skipped > 900
    assert got.reason == ""
    assert seconds < 2.5


def test_disk_that_never_answers(dataset, monkeypatch):
    monkeypatch.setattr(writeback, "QUEUE_BYTES", 100_000)
    never = threading.Event()
    got, seconds = write_all(Disk(dataset, lambda count: never.wait(30)), 100)
    never.set()
    assert got.skipped == 100
    assert seconds < 4


def test_failing_disk(dataset):
    def write(count):
        if count == 50:
            raise StorePoisonedError("write: Input/output error")

    got, _ = write_all(Disk(dataset, write), 1000)
    assert got == writeback.Written(50, 950, "write: Input/output error")


def test_no_room_in_the_quota(dataset):
    dataset.store.set_quota(100_000)
    subject = Writeback(dataset)
    for number in range(100):
        full = frame(number)
        full.positions += 0.1234567  # off the grid, and so not packed
        subject.offer(full)
    got = subject.close()
    assert got.frames + got.skipped == 100
    assert got.frames < 10
    assert "quota" in got.reason
