"""How the frames divide when one rank is slow, beside the division that would be best.

Each frame keeps its rank busy for a millisecond, and one rank four times as long, as if a busy loop took three quarters
of its core. The best that there is: all ranks end together.
"""

from statistics import median
from time import perf_counter
from typing import Any

import click
import numpy as np

from himach.analysis import Analysis
from himach.frame import Frame
from himach.ranks.communicator import World
from himach.zazen import assign

from ..harness.options import repeats
from ..harness.ranks import on_ranks
from .passes import timed_pass

__all__ = ["main"]

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


def measure(world: World, frames: int, repeats: int) -> list[tuple[float, list[int]]]:
    """Return the seconds of the map phase each time (collective), and on rank 0 the frames of each rank."""
    comm = world.comm
    found = []
    for _ in range(repeats):
        share = assign(world, None, range(frames))
        slow = comm.rank == comm.size - 1
        analysis = Busy(rank=comm.rank, seconds=SECONDS * (SLOWER if slow else 1))
        _, passed = timed_pass(world, analysis, frames, share.take)
        done = dict(passed.results[0]) if passed.results else {}
        found.append((passed.seconds["map"], [done.get(rank, 0) for rank in range(comm.size)]))
    return found


@click.option("--frames", type=click.IntRange(min=1), default=2000, show_default=True, help="Frames of 1 ms of work.")
@click.option("--ranks", type=click.IntRange(min=2), default=2, show_default=True)
@repeats(3)
def main(frames: int, ranks: int, repeats: int) -> None:
    """Time the map phase where one rank is slow, beside the best division of the frames."""
    runs = on_ranks(ranks, measure, frames, repeats)
    best = frames * SECONDS / (ranks - 1 + 1 / SLOWER)
    cost = [*[SECONDS] * (ranks - 1), SECONDS * SLOWER]
    ratios = [max(np.multiply(counts, cost)) / best for _, counts in runs]
    print(f"{ranks} ranks, one {SLOWER} times as slow; frames by rank: {', '.join(map(str, runs[0][1]))}")
    print(f"  longest work {median(ratios):.3f} times the best division's ({min(ratios):.3f} to {max(ratios):.3f})")
    print(f"  map phase {median(seconds for seconds, _ in runs):.2f} s, {best:.2f} s at best on cores of their own")
