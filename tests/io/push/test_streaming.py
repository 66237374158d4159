"""Natives that go to the disk by a thread, past the page cache: the same as without, of any size."""

from __future__ import annotations

import os

import numpy as np
import pytest

from himach.io.store.store import Store, StoreConflictError

SMALL, LARGE = 100, 150_000  # the latter's positions are larger than a buffer of the stream


def positions_of(number, atoms):
    return np.random.default_rng(number).normal(size=(atoms, 3)).astype(np.float32)


@pytest.mark.parametrize(
    "sizes", [[SMALL], [LARGE], [SMALL, LARGE, LARGE, SMALL, LARGE]], ids=["small", "large", "both"]
)
def test_what_is_streamed_is_read_back(tmp_path, sizes):
    dataset = Store(tmp_path).dataset("run7", b"1")
    dataset.stream()
    atoms = [sizes[number % len(sizes)] for number in range(23)]
    for number, n in enumerate(atoms):
        dataset.write(number, float(number), None, positions_of(number, n), native=True)
        if number % 7 == 6:
            dataset.flush(durable=True)
            assert dataset.holds(np.arange(number + 1), native=True).all()
    threads = len(os.listdir("/proc/self/task"))
    dataset.close()
    assert len(os.listdir("/proc/self/task")) == threads - 1
    again = Store(tmp_path).dataset("run7", b"1", create=False)
    for number, frame in enumerate(again.read(np.arange(len(atoms)))):
        assert frame is not None
        assert np.array_equal(frame.positions, positions_of(number, atoms[number]))


def test_a_frame_that_waits_is_compared(tmp_path):
    dataset = Store(tmp_path).dataset("run7", b"1")
    dataset.stream()
    dataset.write(0, 0.0, None, positions_of(0, LARGE), native=True)
    assert not dataset.write(0, 0.0, None, positions_of(0, LARGE), native=True)
    with pytest.raises(StoreConflictError):
        dataset.write(0, 0.0, None, positions_of(1, LARGE), native=True)
    dataset.close()
