"""Keeping frames behind the analysis: a disk that is slow, fails or never answers costs copies, and hardly any time."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from support.io_samples import make

from himach.frame import RawFrame
from himach.io.dataset import cpu_budget, writeback
from himach.io.dataset.cpu_budget import CpuBudget
from himach.io.dataset.writeback import Writeback
from himach.io.frame_source import ReadOptions
from himach.io.store.store import Store, StorePoisonedError
from himach.io.trajectory.origin import open_origin


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


def write_all(disk, count: int, cores: CpuBudget | None = None) -> tuple[writeback.Written, float]:
    """Offer so many frames; return what came of it, and the seconds that it took."""
    began = time.monotonic()
    subject = Writeback(disk, cores=cores)
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
    assert seconds < 10  # writing all would take 20


def test_disk_that_never_answers(dataset, monkeypatch):
    monkeypatch.setattr(writeback, "QUEUE_BYTES", 100_000)
    never = threading.Event()
    got, seconds = write_all(Disk(dataset, lambda count: never.wait(30)), 100)
    never.set()
    assert got.skipped == 100
    assert seconds < 20  # the disk answers after 30


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


@pytest.fixture
def xtc(tmp_path):
    """An XTC of 30 frames, and all of their positions."""
    path = make(tmp_path / "a.xtc", range(30), n_atoms=300)
    return path, [each.positions.copy() for each in open_origin([path]).read(range(30))]


def offer_coded(subject, path, needed=5):
    """Offer the frames of an XTC of which so many atoms were decoded."""
    for each in open_origin([path]).read(range(30), ReadOptions(np.array([[0, needed]]))):
        assert each.coded is not None
        decoded = each.positions[:needed].copy()
        subject.offer(each)
        assert (each.positions[:needed] == decoded).all()
    return subject.close()


def test_frames_that_were_decoded_in_part_are_kept_whole(dataset, xtc):
    path, positions = xtc
    assert offer_coded(Writeback(dataset), path) == writeback.Written(30, 0, "")
    found = [(each.time, each.positions.tobytes()) for each in dataset.read(np.arange(30))]
    assert found == [(number, each.tobytes()) for number, each in enumerate(positions)]


def test_what_is_kept_of_a_coded_frame_are_the_bytes_that_its_positions_give(tmp_path, xtc):
    path, positions = xtc
    sizes = []
    for name in ("coded", "decoded"):
        held = Store(tmp_path / name).dataset("/sim")
        subject = Writeback(held)
        if name == "coded":
            offer_coded(subject, path)
        else:
            for number, each in enumerate(positions):
                subject.offer(RawFrame(number, float(number), each))
            subject.close()
        sizes.append(Store(tmp_path / name).dataset("/sim").segments()[0]["bytes"])
    assert sizes[0] == sizes[1] < 30 * 12 * 300


def test_a_coded_frame_that_is_there_is_compared(dataset, xtc):
    path, positions = xtc
    box = next(open_origin([path]).read([0])).box
    for number, each in enumerate(positions):
        dataset.write(number, float(number), box, each + np.float32(number == 7))
    dataset.flush()
    got = offer_coded(Writeback(Store(dataset.store.path).dataset("/sim")), path)
    assert (got.frames, got.skipped) == (0, 23)
    assert "frame 7 of dataset /sim is there with other positions" in got.reason


def test_what_is_damaged_behind_the_needed_atoms_is_not_kept(dataset, xtc):
    path, _ = xtc
    begin, end = open_origin([path]).files()[0][0].index.place(9)
    content = bytearray(path.read_bytes())
    content[begin + 400 : end] = bytes(255 for _ in range(begin + 400, end))
    path.write_bytes(content)
    got = offer_coded(Writeback(dataset), path)
    assert got.frames == 29
    assert got.reason == "the coordinates of frame 9 are damaged"
    held = dataset.holds(np.arange(30))
    assert held.sum() == 29
    assert not held[9]


def test_what_the_cores_have_no_time_for_is_left_to_later_runs(dataset, monkeypatch):
    monkeypatch.setattr(cpu_budget, "FREE_SECONDS", 0.01)
    monkeypatch.setattr(cpu_budget, "FREE_PART", 0.0)
    monkeypatch.setattr(cpu_budget, "idle_seconds", lambda: 0.0)
    monkeypatch.setattr(writeback, "QUEUE_BYTES", 50 * 12_000)

    class Busy(Disk):
        def write(self, *frame):
            until = time.thread_time() + 0.002
            while time.thread_time() < until:
                pass
            return super().write(*frame)

    got, _ = write_all(Busy(dataset, lambda count: None), 1000, CpuBudget())
    assert got.frames + got.skipped == 1000
    assert 5 <= got.frames < 150  # those in the queue, too, when the time was up
    assert got.reason == ""


def test_an_idle_core_keeps_all(dataset, monkeypatch):
    monkeypatch.setattr(cpu_budget, "FREE_SECONDS", 0.0)
    monkeypatch.setattr(cpu_budget, "FREE_PART", 0.0)
    monkeypatch.setattr(cpu_budget, "idle_seconds", lambda: 2 * time.monotonic())
    subject = Writeback(dataset, cores=CpuBudget(2))
    time.sleep(0.05)
    for number in range(100):
        subject.offer(frame(number))
    assert subject.close() == writeback.Written(100, 0, "")
