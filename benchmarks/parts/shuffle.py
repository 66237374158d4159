"""The shuffle from emission to reduce(), beside a stable argsort of the same columns by numpy.

`main` prints pairs per second of all ranks together, of pairs with values (an int64 key at random of 100,000 and a
float32 value, 1,000 a frame) and of presence (1,000 of 10,000 keys a frame at random), made before the clock starts.
`spill` sends both through little memory, once. Frames are dealt round-robin, so that ranks overlap in time as much as
can be.
"""

import resource
from statistics import median
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from himach.analysis import Analysis, Pairs
from himach.engine import Memory, Passed
from himach.frame import Frame
from himach.io.store.sizes import parse_size, show_size
from himach.ranks.communicator import World
from himach.ranks.launch.memory import scratch_directory

from ..harness.interleave import seconds
from ..harness.options import RANKS, beside, count, repeats
from ..harness.ranks import on_ranks
from .passes import timed_pass

__all__ = ["main", "spill"]

KEYS = 100_000
PRESENT = 10_000
PER_FRAME = 1_000
TASK = 50  # frames
MADE = 1_000  # frames whose pairs are made, and then used over and over

Columns = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32] | None]


class Last(Analysis):
    """Yields columns made before, 1,000 pairs a frame, and looks at the values of a key, or else at its frames."""

    columns: Any = None

    def __init__(self, columns: Columns) -> None:
        self.columns = columns

    @classmethod
    def parameters(cls) -> dict[str, Any]:
        """Return none: the columns are no parameter."""
        return {}

    def map(self, frame: Frame) -> Any:
        """Yield the frame's part of the columns."""
        keys, values = self.columns
        start = frame.step * PER_FRAME % len(keys)
        rows = slice(start, start + PER_FRAME)
        yield Pairs(keys[rows], None if values is None else values[rows])

    def reduce(self, key: int, series: Any) -> float:
        """Return the last value, or the last step."""
        return int(series.steps[-1]) if self.columns[1] is None else float(series.values[-1])


def valued(frames: int, seed: int) -> Columns:
    """Return the pairs of some frames, each a key and a value."""
    rng = np.random.default_rng(seed)
    n = frames * PER_FRAME
    return rng.integers(0, KEYS, n), rng.random(n, dtype=np.float32)


def present(frames: int, seed: int) -> Columns:
    """Return the keys that are present at some frames, ascending in each."""
    rng = np.random.default_rng(seed)
    chosen = [np.sort(rng.choice(PRESENT, PER_FRAME, replace=False)) for _ in range(frames)]
    return np.concatenate(chosen), None


KINDS = {"with values": valued, "presence": present}


@click.option("--pairs", type=count, default="5e7", show_default=True, help="Pairs to shuffle, 1,000 a frame.")
@RANKS
@repeats(3)
@beside("shuffle")
def main(pairs: int, ranks: int, repeats: int) -> None:
    """Time pairs from emission to reduce(), beside a stable sort of the same columns."""
    frames = pairs // PER_FRAME
    for what, runs in on_ranks(ranks, measure, frames, repeats).items():
        rates = [frames * PER_FRAME / seconds / 1e6 for seconds, _ in runs]
        phases = {name: median(phases[name] for _, phases in runs) for name in runs[0][1]}
        sample = KINDS[what](min(frames, 5 * MADE), 1)
        n = len(sample[0])
        peers = [n / seconds(lambda sample=sample: _sort(*sample)) / 1e6 for _ in runs]  # type: ignore[misc]
        print(f"{what}: {median(rates):.1f} million pairs/s on {ranks} ranks ({min(rates):.1f} to {max(rates):.1f})")
        print(f"  of which {', '.join(f'{name} {seconds:.2f} s' for name, seconds in phases.items())} (slowest rank)")
        print(f"  numpy, 1 process: {median(peers):.1f} million pairs/s (stable argsort, takes; {n:,} pairs)")


def measure(world: World, frames: int, repeats: int) -> dict[str, list[tuple[float, dict[str, float]]]]:
    """Return the seconds of each pass by kind of pairs (collective), whole and by phase."""
    found = {}
    for what, columns in KINDS.items():
        made = columns(min(frames, MADE), world.comm.rank)
        runs = [_shuffle(world, Last(made), frames) for _ in range(repeats)]
        found[what] = [(seconds, dict(passed.seconds)) for seconds, passed in runs]
    return found


@click.option("--presence", type=count, default="2e9", show_default=True, help="Pairs without values.")
@click.option("--values", type=count, default="5e8", show_default=True, help="Pairs with values.")
@RANKS
@click.option(
    "--memory", type=parse_size, default="2GB", show_default=True, metavar="SIZE", help="Memory for all pairs."
)
def spill(presence: int, values: int, ranks: int, memory: int) -> None:
    """Send more pairs from emission to reduce() than memory holds."""
    for what, pairs in (("presence", presence), ("with values", values)):
        found = on_ranks(ranks, measure_spill, what, pairs // PER_FRAME, memory)
        rate = found["pairs"] / found["seconds"] / 1e6
        print(
            f"{what}: {found['pairs']:,} pairs in {found['seconds']:.0f} s, {rate:.1f} million pairs/s on {ranks} ranks"
        )
        print(f"  {show_size(found['spilled'])} went to {found['directory']}")
        print(
            f"  peak memory of all ranks {show_size(found['peak'])}, {show_size(found['before'])} before the first pair"
        )


def measure_spill(world: World, what: str, frames: int, limit: int) -> dict[str, Any]:
    """Send pairs through `limit` bytes (collective); return seconds, what went to the disk, and the memory taken."""
    made = KINDS[what](MADE, world.comm.rank)
    memory = Memory(limit // world.node.size, scratch_directory())
    before = sum(world.comm.allgather(_peak()))
    seconds, passed = _shuffle(world, Last(made), frames, memory)
    return {
        "pairs": passed.pairs,
        "seconds": seconds,
        "spilled": passed.spilled,
        "directory": str(memory.directory),
        "before": before,
        "peak": sum(world.comm.allgather(_peak())),
    }


def _shuffle(world: World, analysis: Last, frames: int, memory: Memory | None = None) -> tuple[float, Passed]:
    own = np.arange(world.comm.rank, frames, world.comm.size)
    tasks = iter(range(0, len(own), TASK))

    def take() -> npt.NDArray[np.int64] | None:
        start = next(tasks, None)
        return None if start is None else own[start : start + TASK]

    seconds, passed = timed_pass(world, analysis, frames, take, memory)
    if passed.pairs != frames * PER_FRAME:
        raise AssertionError(f"{passed.pairs} pairs came of {frames} frames")
    return seconds, passed


def _sort(keys: npt.NDArray[np.int64], values: npt.NDArray[np.float32] | None) -> None:
    """Order the columns by key, stably, as numpy does it."""
    order = np.argsort(keys, kind="stable")
    keys.take(order)
    if values is not None:
        values.take(order)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
