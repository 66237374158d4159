"""Many made-up frames of one pair each, counted by key: what memory a rank takes.

Keys are ``frame number % 1000``, and pairs have no values, so that there is little beside the frames' own stamps. Each
rank takes frames in tasks as a node's share gives them, in turn.
"""

import resource
from collections.abc import Iterator
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from himach.analysis import Analysis, Pairs
from himach.engine import Memory
from himach.frame import Frame
from himach.io.store.sizes import parse_size, show_size
from himach.ranks.communicator import World
from himach.ranks.launch.memory import scratch_directory

from ..harness.options import RANKS, count
from ..harness.ranks import on_ranks
from .passes import timed_pass

__all__ = ["main"]

KEYS = 1000
TASK = 512  # frames
#: Of a rank: bytes whatever it does, and bytes a frame of its own part.
MOST, A_FRAME = 300e6, 3


class Frames(Analysis):
    """Counts the frames of each key."""

    def setup(self, universe: Any) -> None:
        """Make what map() yields."""
        self.pairs = [Pairs(np.array([key])) for key in range(KEYS)]

    def map(self, frame: Frame) -> Any:
        """Yield the frame's key."""
        yield self.pairs[frame.number % KEYS]

    def reduce(self, key: int, series: Any) -> tuple[int, float]:
        """Return how many frames there are, and the sum of their steps."""
        return len(series), float(series.steps.sum())


@click.option("--frames", type=count, default="1e7", show_default=True, help="Made-up frames, of one pair each.")
@RANKS
@click.option("--uneven", is_flag=True, help="Times and boxes that follow no rule.")
@click.option(
    "--memory", type=parse_size, default="1GB", show_default=True, metavar="SIZE", help="Memory for all pairs."
)
def main(frames: int, ranks: int, uneven: bool, memory: int) -> None:
    """Tell what memory a rank takes for many frames of few pairs."""
    found = on_ranks(ranks, measure, frames, uneven, memory)
    own, most = frames // ranks, max(found["peaks"])
    bar = MOST + A_FRAME * own
    print(f"{frames:,} frames on {ranks} ranks in {found['seconds']:.0f} s, {show_size(found['spilled'])} on disk")
    print(f"  of which {', '.join(f'{name} {took:.1f} s' for name, took in found['phases'].items())} (slowest rank)")
    before = show_size(found["before"])
    print(f"  peak memory of a rank {show_size(most)} (bar: {show_size(int(bar))}), {before} before")
    print(f"  {(most - found['before']) / own:.2f} bytes for each frame of its own part")


def measure(world: World, frames: int, uneven: bool, memory: int) -> dict[str, Any]:
    """Count frames (collective); return seconds, what went to the disk, and the memory taken."""
    comm, analysis = world.comm, Frames()
    analysis.setup(None)
    before = max(comm.allgather(_peak()))
    limit = Memory(memory // world.node.size, scratch_directory())
    seconds, passed = timed_pass(world, analysis, frames, _tasks(comm.rank, comm.size, frames).__next__, limit, uneven)
    peaks = comm.allgather(_peak())
    if passed.results is not None and sum(count for count, _ in passed.results[0].values()) != frames:
        raise AssertionError(f"{frames} frames were counted as {passed.results[0]}")
    return {"seconds": seconds, "phases": passed.seconds, "spilled": passed.spilled, "before": before, "peaks": peaks}


def _tasks(rank: int, size: int, frames: int) -> Iterator[npt.NDArray[np.int64] | None]:
    for start in range(rank * TASK, frames, size * TASK):
        yield np.arange(start, min(start + TASK, frames))
    yield None


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
