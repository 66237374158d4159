"""The shuffle from emission to reduce(), beside a stable argsort of the same columns by numpy.

``himach bench shuffle`` starts the ranks itself and prints pairs per second of all ranks together. Pairs are
an int64 key at random of 100,000 and a float64 value, 1,000 a frame, made before the clock starts.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.analysis import Analysis, Pairs
from himach.comm import Communicator
from himach.frame import Frame, RawFrame
from himach.launch import launch

__all__ = ["main", "peer", "shuffle"]

KEYS = 100_000
PER_FRAME = 1_000
TASK = 50  # frames

Columns = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]


class Sum(Analysis):
    """Yields columns made before; sums the values of a key."""

    columns: Any = None

    def __init__(self, columns: Columns) -> None:
        self.columns = columns

    @classmethod
    def parameters(cls) -> dict[str, Any]:
        """Return none: the columns are no parameter."""
        return {}

    def map(self, frame: Frame) -> Any:
        """Yield the frame's part of the columns, which are used over and over."""
        keys, values = self.columns
        start = frame.step * PER_FRAME % len(keys)
        yield Pairs(keys[start : start + PER_FRAME], values[start : start + PER_FRAME])

    def reduce(self, key: int, series: Any) -> float:
        """Return the sum of the values."""
        return float(np.add.reduce(series.values))


def shuffle(comm: Communicator, columns: Columns, pairs: int) -> tuple[float, dict[str, float]]:
    """Return the seconds of one pass over `pairs` pairs (collective), and those of its phases."""
    from himach.engine import run_pass

    n_frames = pairs // PER_FRAME
    tasks = iter(range(comm.rank * TASK, n_frames, comm.size * TASK))
    positions = np.zeros((1, 3), dtype=np.float32)

    def take() -> npt.NDArray[np.int64] | None:
        start = next(tasks, None)
        return None if start is None else np.arange(start, min(start + TASK, n_frames))

    def bind(raw: RawFrame, step: int) -> Frame:
        return Frame(raw.number, step, raw.time, raw.positions, None, None, None, None)

    comm.barrier()
    start = perf_counter()
    passed = run_pass(
        comm,
        [[Sum(columns)]],
        range(n_frames),
        take,
        lambda numbers: (RawFrame(number, float(number), positions) for number in numbers.tolist()),
        [bind],
        lambda done: None,
    )
    seconds = perf_counter() - start
    if passed.pairs != n_frames * PER_FRAME:
        raise AssertionError(f"{passed.pairs} pairs came of {pairs}")
    return max(comm.allgather(seconds)), passed.seconds


def peer(columns: Columns) -> float:
    """Return the seconds that numpy takes to order the columns by key, stably."""
    keys, values = columns
    start = perf_counter()
    order = np.argsort(keys, kind="stable")
    keys.take(order)
    values.take(order)
    return perf_counter() - start


def _columns(pairs: int, seed: int) -> Columns:
    rng = np.random.default_rng(seed)
    pairs -= pairs % PER_FRAME
    return rng.integers(0, KEYS, pairs), rng.random(pairs)


def _measure(pairs: int, repetitions: int) -> None:
    """Measure as one of the ranks; rank 0 prints."""
    from himach.mpi import connect

    comm = connect().comm
    # A million pairs, used over and over, keep memory for what is measured.
    columns = _columns(min(pairs, 10**6), comm.rank)
    runs = [shuffle(comm, columns, pairs) for _ in range(repetitions)]
    comm.barrier()
    if comm.rank != 0:
        return
    rates = [pairs / seconds / 1e6 for seconds, _ in runs]
    sample = min(pairs, 10**7)
    peers = [sample / peer(_columns(sample, 1)) / 1e6 for _ in range(repetitions)]
    phases = ", ".join(f"{name} {median(run[1][name] for run in runs):.2f} s" for name in runs[0][1])
    print(f"himach, {comm.size} ranks: {median(rates):7.1f} million pairs/s ({min(rates):.1f} to {max(rates):.1f})")
    print(f"  of which {phases} (medians of the slowest rank)")
    print(f"numpy, 1 process: {median(peers):8.1f} million pairs/s (stable argsort and takes of {sample:,} pairs)")


def main(pairs: int = 50_000_000, ranks: int = 2, repetitions: int = 3) -> None:
    """Measure the shuffle from emission to reduce() on ranks that are started on this machine."""
    command = [sys.executable, "-P", "-m", "himach.bench.shuffle", str(pairs), str(repetitions)]
    with tempfile.TemporaryDirectory(prefix="himach-bench-") as folder:
        launch(command, ranks, Path(folder))


if __name__ == "__main__":
    _measure(int(sys.argv[1]), int(sys.argv[2]))
