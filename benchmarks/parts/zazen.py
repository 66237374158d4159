"""What Zazen costs beside the bare reductions of the same bytes.

Ranks are started for each layout (each rank a node of its own, and all ranks on one node) and for each way in which
frames are cached:

- ``random``: every frame is native on a random node (90 in 100), or alien on a random one (the rest).
- ``runs``: neighbours are native on one node, a thousand frames excepted. An exception is lost, or alien on a random
  node.

A table tells the time of the Allreduces alone, of all rounds and decisions, of marking what a node holds in bitmaps,
and the greatest memory of a node.

Each node has a store of the frames that it holds of the first 4,194,304, and marks these again and again, in the words
of all frames; `stores` beside this has stores of all frames.
"""

import resource
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.io.store.store import Dataset, Store
from himach.ranks.communicator import Words, World
from himach.zazen import Cached, assign
from himach.zazen.rounds import Leaders

from ..harness.interleave import seconds
from ..harness.ranks import on_ranks

__all__ = ["bare_seconds", "main", "measure"]

Numbers = npt.NDArray[np.int64]

NATIVE_TENTHS = 9
STORED = 1 << 22  # frames, of which a store holds what is its node's
EXCEPTIONS = 1000
LAYOUTS = {"apart": "each rank a node", "together": "all ranks on one node"}
CACHES = {"random": "at random", "runs": "in runs"}


def main(frames: int, ranks: int, repeats: int) -> None:
    """Measure all cases on `ranks` ranks of this machine and print the table."""
    print(f"Zazen, {frames:.3g} frames, {ranks} ranks (medians; seconds; ratio: rounds to Allreduces, each time)")
    print(f"{'':34}{'Allreduces':>10}{'rounds':>9}{'ratio':>7}{'sets':>8}{'MB a node':>11}")
    for cache, cached in CACHES.items():
        for layout, together in LAYOUTS.items():
            found = on_ranks(ranks, measure, frames, repeats, cache, apart=layout == "apart")
            print(
                f"{cached + ', ' + together:34}{found['bare']:10.3f}{found['rounds']:9.3f}"
                f"{found['ratio']:7.2f}{found['sets']:8.3f}{found['peak'] / 1e6:11.0f}"
            )


def measure(world: World, frames: int, repeats: int, cache: str = "random") -> dict[str, float]:
    """Return medians in seconds, measured on the ranks of `world` (collective).

    ``bare``: the two reductions of whole bitmaps over all ranks. ``sets``: marking what the store holds in bitmaps, on
    the node that takes longest. ``rounds``: all else until tasks can be taken; ``ratio``, to ``bare``. ``peak``: the
    most bytes of memory that a node's ranks had before the first bare reductions, interpreters included; pages that
    ranks share count once a rank.
    """
    with tempfile.TemporaryDirectory(prefix="himach-zazen-") as place:
        cached = _cached(world, frames, cache, Path(place, "store")) if world.node.rank == 0 else None
        return _measure(world, frames, repeats, cached)


def _measure(world: World, frames: int, repeats: int, cached: Cached | None) -> dict[str, float]:
    bare, rounds, sets, ratios, peak = [], [], [], [], 0
    for _ in range(repeats):
        world.comm.barrier()
        share = assign(world, cached, range(frames))
        taken = world.comm.allgather(share.seconds)
        assert sum(share.counts.values()) == frames
        # A node that is done with its sets waits for the others: their work is no round of its own.
        sets.append(max(s["sets"] for s in taken))
        rounds.append(max(s["sets"] + s["rounds"] for s in taken) - sets[-1])
        peak = peak or max(world.comm.allgather(sum(world.node.allgather(_peak_bytes()))))
        bare.append(bare_seconds(world, frames))  # at once, because other work on the machine slows both
        ratios.append(rounds[-1] / bare[-1])
    medians = {"bare": bare, "rounds": rounds, "sets": sets, "ratio": ratios}
    return {**{name: statistics.median(values) for name, values in medians.items()}, "peak": peak}


class _Stored:
    """What a node holds, marked by a store of some of it.

    Parameters
    ----------
    dataset
        What the node holds of as many frames as `period`.
    part
        The frames that are like those, over and over.
    period
        A multiple of 64.
    lost, alien
        Frames that are missing after all, and those that are alien.
    """

    identity = None

    def __init__(self, dataset: Dataset, part: range, period: int, lost: Numbers, alien: Numbers) -> None:
        self._dataset = dataset
        self._part = part
        self._period = period
        self._lost, self._alien = lost.astype(np.uint64), alien.astype(np.uint64)

    def mark(self, frames: range, native: "Words", alien: "Words") -> None:
        """Set the bits of what the node holds of all frames."""
        for first in range(self._part.start, self._part.stop, self._period):
            numbers = range(min(self._period, self._part.stop - first))
            words = slice(first // 64, first // 64 + -(-len(numbers) // 64))
            self._dataset.mark(numbers, native[words], alien[words])
        np.bitwise_and.at(native, self._lost // 64, ~(np.uint64(1) << self._lost % 64))
        np.bitwise_or.at(alien, self._alien // 64, np.uint64(1) << self._alien % 64)

    def holds(self, numbers: Numbers, native: bool = False) -> npt.NDArray[np.bool_]:
        """Return which frames are held, or held natively, bool (n,)."""
        there = (numbers >= self._part.start) & (numbers < self._part.stop) & ~np.isin(numbers, self._lost)
        there[there] = self._dataset.holds((numbers[there] - self._part.start) % self._period, native)
        return there if native else there | np.isin(numbers, self._alien)


def _cached(world: World, frames: int, cache: str, place: Path) -> _Stored:
    """Return what this node holds, in a store at `place`."""
    nodes, node = len(world.nodes), world.node_index
    period = STORED // (64 * nodes) * 64 * nodes  # of all turns
    numbers = np.arange(period)
    none = numbers[:0]
    part, lost, alien = range(frames), none, none
    if cache == "random":
        home = np.random.default_rng(0).integers(0, nodes, period)  # the same on every node
        pushed = np.random.default_rng(1).integers(0, 10, period) < NATIVE_TENTHS
        held = (home == node) & pushed, (home == node) & ~pushed
    else:
        bounds = [frames * i // nodes // 64 * 64 for i in range(nodes)]
        part = range(bounds[node], [*bounds, frames][node + 1])
        held = numbers >= 0, numbers < 0
        draw = np.random.default_rng(0)  # the same on every node
        lost = np.unique(draw.integers(0, frames, EXCEPTIONS))
        alien = lost[draw.integers(0, 2 * nodes, len(lost)) == node]
    dataset = Store(place).dataset("himach bench zazen", segment_bytes=1 << 30)
    atom = np.zeros((1, 3), dtype=np.float32)
    for which, native in zip(held, (True, False), strict=True):
        for number in numbers[: len(part)][which[: len(part)]].tolist():
            dataset.write(number, 0.0, None, atom, native=native)
    dataset.close()
    return _Stored(dataset, part, period, lost, alien)


def bare_seconds(world: World, frames: int) -> float:
    """Return the seconds of one reduction of a bitmap with bitwise or and one of its two-bit counts, over all ranks."""
    ranks = replace(world, leaders=world.comm, nodes=tuple(map(str, range(world.comm.size))), name=str(world.comm.rank))
    leaders = Leaders(ranks)
    # Ones, because the first write to zeros would have to fetch their pages.
    words, out = (np.ones(-(-frames // 64), dtype=np.uint64) for _ in range(2))
    took = _timed(world, partial(leaders.union, "native", words, out))
    del words, out
    counts, total = (np.ones(2 * -(-frames // 64), dtype=np.uint64) for _ in range(2))
    took += _timed(world, partial(leaders.count, "alien", counts, total))
    leaders.close()
    return took


def _timed(world: World, function: Callable[[], Any]) -> float:
    """Return the seconds until the last rank has done `function`."""
    world.comm.barrier()
    return float(max(world.comm.allgather(seconds(function))))


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
