"""What Zazen costs beside the bare reductions of the same bytes.

Ranks are started for each layout (each rank a node of its own, and all ranks on one node) and for each way in which
frames are cached:

- ``random``: every frame is native on a random node (90 in 100), or alien on a random one (the rest).
- ``runs``: neighbours are native on one node, a thousand frames excepted.
- ``turns``: frames are dealt to nodes in turns, a thousand excepted. An exception is lost, or alien on a random node.

A table tells the time of the Allreduces alone, of all rounds and decisions, of the work on the cached sets (finding
patterns, making bitmaps), and the greatest memory of a node, cached sets and all.
"""

from __future__ import annotations

import resource
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyroaring

from himach.comm import World
from himach.zazen import InMemory, assign
from himach.zazen.rounds import Leaders

from ..harness.ranks import on_ranks
from ..harness.turns import seconds

__all__ = ["main", "measure"]

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NATIVE_TENTHS = 9
DRAWN = 1 << 22  # frames drawn at a time
EXCEPTIONS = 1000
LAYOUTS = {"apart": "each rank a node", "together": "all ranks on one node"}
CACHES = {"random": "at random", "runs": "in runs", "turns": "in turns"}


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

    ``bare``: the two reductions of whole bitmaps over all ranks. ``sets``: finding patterns in the cached sets or
    making bitmaps of them, on the node that takes longest. ``rounds``: all else until tasks can be taken; ``ratio``, to
    ``bare``. ``peak``: the most bytes of memory that a node's ranks had before the first bare reductions, interpreters
    and cached sets included; pages that ranks share count once a rank.
    """
    cached = _cached(world, frames, cache) if world.node.rank == 0 else None
    bare, rounds, sets, ratios, peak = [], [], [], [], 0
    for _ in range(repeats):
        world.comm.barrier()
        share = assign(world, cached, range(frames))
        taken = world.comm.allgather(share.seconds)
        assert sum(share.counts.values()) == frames
        share.close()
        # A node that is done with its sets waits for the others: their work is no round of its own.
        sets.append(max(s["sets"] for s in taken))
        rounds.append(max(s["sets"] + s["rounds"] for s in taken) - sets[-1])
        peak = peak or max(world.comm.allgather(sum(world.node.allgather(_peak_bytes()))))
        bare.append(_bare(world, frames))  # at once, because other work on the machine slows both
        ratios.append(rounds[-1] / bare[-1])
    medians = {"bare": bare, "rounds": rounds, "sets": sets, "ratio": ratios}
    return {**{name: statistics.median(values) for name, values in medians.items()}, "peak": peak}


def _cached(world: World, frames: int, cache: str) -> InMemory:
    """Return what this node holds, made as a store makes it: of frame numbers."""
    native, alien = pyroaring.BitMap(), pyroaring.BitMap()
    for first in range(0, frames, DRAWN):
        numbers = np.arange(first, min(first + DRAWN, frames), dtype=np.int64)
        for held, which in zip((native, alien), _placed(world, numbers, frames, cache), strict=True):
            held.update(pyroaring.BitMap(numbers[which].astype(np.uint32)))
    return InMemory(native, alien)


def _placed(world: World, numbers: Numbers, frames: int, cache: str) -> tuple[Flags, Flags]:
    """Return which of the frames are native here, and which alien."""
    n = len(world.nodes)
    if cache != "random":
        home = numbers * n // frames if cache == "runs" else numbers % n
        return _with_exceptions(world, numbers, frames, home == world.node_index)
    draw = np.random.default_rng(int(numbers[0]))  # the same on every node
    mine = draw.integers(0, n, len(numbers), dtype=np.uint8) == world.node_index
    pushed = draw.integers(0, 10, len(numbers), dtype=np.uint8) < NATIVE_TENTHS
    return mine & pushed, mine & ~pushed


def _with_exceptions(world: World, numbers: Numbers, frames: int, native: Flags) -> tuple[Flags, Flags]:
    """Take away what is lost; return which frames are native here, and which alien."""
    draw = np.random.default_rng(0)  # the same on every node
    chosen = np.unique(draw.integers(0, frames, EXCEPTIONS))
    kept = draw.integers(0, 2 * len(world.nodes), len(chosen)) == world.node_index
    alien = np.zeros_like(native)
    first, last = np.searchsorted(chosen, (numbers[0], int(numbers[-1]) + 1))
    at = chosen[first:last] - int(numbers[0])
    native[at] = False
    alien[at] = kept[first:last]
    return native, alien


def _bare(world: World, frames: int) -> float:
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
