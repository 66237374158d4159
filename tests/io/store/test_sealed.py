"""Sealed tables beside a quota, writers and evictions; tests/native/store/test_sealing.c has the rest."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from himach.io.store import bodhi
from himach.io.store.store import Dataset, Store


def frame(number: int) -> np.ndarray:
    """Positions of as many atoms as the number says, so that records differ in length."""
    return np.full((1 + number % 3 * 20, 3), number % 1000, dtype=np.float32)


def tables(dataset: Dataset) -> list[Path]:
    return sorted(dataset.path.glob("*.tab"))


def marked(dataset: Dataset, n: int) -> set[int]:
    """The natives among the first n frames."""
    native, alien = np.zeros((2, -(-n // 64)), dtype=np.uint64)
    dataset.mark(range(n), native, alien)
    return set(np.flatnonzero(np.unpackbits(native.view(np.uint8), bitorder="little")).tolist())


def test_nothing_is_sealed_where_there_is_no_room(tmp_path):
    store = Store(tmp_path)
    dataset = store.dataset("full")
    for number in range(500):
        dataset.write(number, 0.5, None, frame(number), native=True)
    dataset.flush()
    store.set_quota(sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) + 500)
    dataset.seal(1)
    assert not tables(dataset)
    assert set(dataset.native) == set(range(500))
    store.set_quota(0)
    dataset.seal(1)
    assert len(tables(dataset)) == 1
    assert set(dataset.native) == set(range(500))


WRITER = """
import sys
import numpy as np
from himach.io.store.store import Store
place, first, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dataset = Store(place).dataset("beside", segment_bytes=60_000)
for number in range(first, n, 2):
    dataset.write(number, 0.5, None, np.full((1 + number % 3 * 20, 3), number % 1000, dtype=np.float32), native=True)
    if number % 40 == first:
        dataset.flush()
        dataset.seal(1)
        print(number, flush=True)
dataset.close()
"""


def test_readers_and_evictions_beside_writers_that_seal(tmp_path):
    """What was acknowledged is found by whoever opens or refreshes; what is evicted goes with its table."""
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen([*command, str(first), "3000"], stdout=subprocess.PIPE, text=True) for first in (0, 1)]
    stays = Store(tmp_path).dataset("beside")
    evicted: set[int] = set()
    for turn in range(25):
        shown = [int(writer.stdout.readline() or 2999) for writer in writers]
        found = Store(tmp_path).dataset("beside")
        stays.refresh()
        done = {number for first, last in zip((0, 1), shown, strict=True) for number in range(first, last + 1, 2)}
        for dataset in (found, stays):
            there = set(dataset.native)
            assert done - evicted <= there
            # A table that was made anew meanwhile brings what was written meanwhile.
            assert marked(dataset, 3000) >= there
            some = sorted(there & done)[:: max(1, len(there) // 20)]
            for number, read in zip(some, dataset.read(some), strict=True):
                assert read.number == number and np.array_equal(read.positions, frame(number))
        idle = [one for one in found.segments() if not one["busy"] and one["frames"]]
        if turn % 5 == 4 and idle:
            del dataset, found
            before = set(Store(tmp_path).dataset("beside").native)
            try:
                stays.evict(idle[0]["id"])
            except bodhi.StoreBusyError:  # just being sealed
                continue
            evicted |= before - set(Store(tmp_path).dataset("beside").native)
            assert not (stays.path / f"n-{idle[0]['id']:016x}.tab").exists()
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    assert set(Store(tmp_path).dataset("beside").native) == set(range(3000)) - evicted
