"""How the frames divide when one rank is slow, beside the division that would be best.

``himach bench balance`` starts the ranks itself. Each frame keeps its rank busy for a millisecond, and one rank four
times as long, as if a busy loop took three quarters of its core. The best that there is: all ranks end together.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from himach.analysis import Analysis
from himach.engine import run_pass
from himach.frame import Frame, RawFrame
from himach.parallel.communicator import World
from himach.parallel.spawn import launch

__all__ = ["balance", "main"]

SECONDS = 1e-3  # of work a frame
SLOWER = 4


class Busy(Analysis):
    """Keeps the rank busy for some time a frame; counts the frames of each rank."""

    rank: int = 0
    seconds: float = SECONDS

    def map(self, frame: Frame) -> Any:
        """Work."""
        end = perf_counter() + self.seconds
        while perf_counter() < end:
            pass
        yield self.rank, 1

    def reduce(self, key: int, series: Any) -> int:
        """Return how many frames this rank has done."""
        return len(series)


def balance(world: World, frames: int) -> tuple[float, dict[int, int]]:
    """Return the seconds of the map phase (collective), and on rank 0 the frames of each rank."""
    from himach.zazen import assign

    comm = world.comm
    positions = np.zeros((1, 3), dtype=np.float32)
    share = assign(world, None, range(frames))
    slow = comm.rank == comm.size - 1
    analysis = Busy(rank=comm.rank, seconds=SECONDS * (SLOWER if slow else 1))
    comm.barrier()
    passed = run_pass(
        comm,
        [[analysis]],
        range(frames),
        share.take,
        lambda numbers: (RawFrame(number, float(number), positions) for number in numbers.tolist()),
        [lambda raw, step: Frame(raw.number, step, raw.time, raw.positions, None, None, None, None)],
        lambda done: None,
    )
    share.close()
    return passed.seconds["map"], dict(passed.results[0]) if passed.results else {}


def _measure(frames: int, repetitions: int) -> None:
    """Measure as one of the ranks; rank 0 prints."""
    from himach.parallel.mpi import connect

    world = connect()
    size = world.comm.size
    runs = [balance(world, frames) for _ in range(repetitions)]
    if world.comm.rank != 0:
        return
    best = frames * SECONDS / (size - 1 + 1 / SLOWER)
    cost = [*[SECONDS] * (size - 1), SECONDS * SLOWER]
    work = [max(np.multiply(_counts(done, size), cost)) for _, done in runs]
    ratios = [seconds / best for seconds in work]
    print(f"{size} ranks, one {SLOWER} times as slow; frames by rank: {', '.join(map(str, _counts(runs[0][1], size)))}")
    print(f"  longest work {median(ratios):.3f} times the best division's ({min(ratios):.3f} to {max(ratios):.3f})")
    print(f"  map phase {median(seconds for seconds, _ in runs):.2f} s, {best:.2f} s at best on cores of their own")


def _counts(done: dict[int, int], size: int) -> list[int]:
    return [done.get(rank, 0) for rank in range(size)]


def main(frames: int = 2000, ranks: int = 2, repetitions: int = 3) -> None:
    """Measure on ranks that are started on this machine."""
    command = [sys.executable, "-P", "-m", "himach.bench.balance", str(frames), str(repetitions)]
    with tempfile.TemporaryDirectory(prefix="himach-bench-") as folder:
        launch(command, ranks, Path(folder))


if __name__ == "__main__":
    _measure(int(sys.argv[1]), int(sys.argv[2]))
