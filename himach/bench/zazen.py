"""What Zazen costs beside the bare reductions of the same bytes.

``python -m himach.bench.zazen --frames 1e9 --ranks 2`` starts its ranks itself, once for each layout (each rank a
node of its own, and all ranks on one node) and for each way in which frames are cached:

- ``random``: every frame is native on a random node (90 in 100), or alien on a random one (the rest).
- ``runs``: neighbours are native on one node, a thousand frames excepted.
- ``turns``: frames are dealt to nodes in turns, a thousand excepted. An exception is lost, or alien on a random node.

A table tells the time of the Allreduces alone, of all rounds and decisions, of the work on the cached sets (finding
patterns, making bitmaps), and the greatest memory of a node, cached sets and all. `main()` is what
``himach bench zazen`` calls.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyroaring

from himach.errors import RankError
from himach.parallel.communicator import World
from himach.zazen import InMemory, assign
from himach.zazen.rounds import Leaders

__all__ = ["main", "measure", "table"]

Numbers = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]

QUICK = 10**7
NATIVE_TENTHS = 9
DRAWN = 1 << 22  # frames drawn at a time
EXCEPTIONS = 1000
LAYOUTS = {"apart": "each rank a node", "together": "all ranks on one node"}
CACHES = {"random": "at random", "runs": "in runs", "turns": "in turns"}


def main(frames: int = 10**9, ranks: int = 2, repeats: int = 7) -> None:
    """Measure all cases on `ranks` ranks of this machine and print the table.

    Raises
    ------
    RankError
        If the ranks could not be started or died.
    """
    cases = [(cache, layout) for cache in CACHES for layout in LAYOUTS]
    print(table(frames, ranks, {case: _start(frames, ranks, repeats, *case) for case in cases}))


def table(frames: int, ranks: int, measured: dict[tuple[str, str], dict[str, float]]) -> str:
    """Return the figures of `measure()`, by cache and layout, as text."""
    lines = [
        f"Zazen, {frames:.3g} frames, {ranks} ranks (medians; seconds; ratio: rounds to Allreduces, each time)",
        f"{'':34}{'Allreduces':>10}{'rounds':>9}{'ratio':>7}{'sets':>8}{'MB a node':>11}",
    ]
    for (cache, layout), figures in measured.items():
        lines.append(
            f"{CACHES[cache] + ', ' + LAYOUTS[layout]:34}{figures['bare']:10.3f}{figures['rounds']:9.3f}"
            f"{figures['ratio']:7.2f}{figures['sets']:8.3f}{figures['peak'] / 1e6:11.0f}"
        )
    return "\n".join(lines)


def measure(world: World, frames: int, repeats: int, cache: str = "random") -> dict[str, float]:
    """Measure on the ranks of `world` (collective).

    Returns
    -------
    dict
        Medians in seconds: ``bare``, the two reductions of whole bitmaps over all ranks; ``sets``, finding patterns in
        the cached sets or making bitmaps of them, on the node that takes longest; ``rounds``, all else until tasks can
        be taken. ``ratio``: of ``rounds`` to ``bare``. ``peak``: the most bytes of memory that a node's ranks had
        before the first bare reductions, interpreters and cached sets included; pages that ranks share count once a
        rank.
    """
    cached = _cached(world, frames, cache) if world.node.rank == 0 else None
    bare, rounds, sets, ratios, peak = [], [], [], [], 0
    for _ in range(repeats):
        world.comm.barrier()
        share = assign(world, cached, range(frames))
        seconds = world.comm.allgather(share.seconds)
        assert sum(share.counts.values()) == frames
        share.close()
        # A node that is done with its sets waits for the others: their work is no round of its own.
        sets.append(max(s["sets"] for s in seconds))
        rounds.append(max(s["sets"] + s["rounds"] for s in seconds) - sets[-1])
        peak = peak or max(world.comm.allgather(sum(world.node.allgather(_peak_bytes()))))
        bare.append(_bare(world, frames))  # at once, because other work on the machine slows both
        ratios.append(rounds[-1] / bare[-1])
    medians = {"bare": bare, "rounds": rounds, "sets": sets, "ratio": ratios}
    return {**{name: statistics.median(values) for name, values in medians.items()}, "peak": peak}


def _cached(world: World, frames: int, cache: str) -> InMemory:
    """Return what this node holds, made as a store makes it: of frame numbers."""
    native, alien = pyroaring.BitMap(), pyroaring.BitMap()
    place = {"random": _at_random, "runs": _in_runs, "turns": _in_turns}[cache]
    for first in range(0, frames, DRAWN):
        numbers = np.arange(first, min(first + DRAWN, frames), dtype=np.uint32)
        for held, which in zip((native, alien), place(world, numbers, frames), strict=True):
            held.update(pyroaring.BitMap(numbers[which]))
    return InMemory(native, alien)


def _at_random(world: World, numbers: Numbers, frames: int) -> tuple[Flags, Flags]:
    """Return which of the frames are native here, and which alien."""
    draw = np.random.default_rng(int(numbers[0]))  # the same on every node
    mine = draw.integers(0, len(world.nodes), len(numbers), dtype=np.uint8) == world.node_index
    pushed = draw.integers(0, 10, len(numbers), dtype=np.uint8) < NATIVE_TENTHS
    return mine & pushed, mine & ~pushed


def _in_runs(world: World, numbers: Numbers, frames: int) -> tuple[Flags, Flags]:
    """Return which of the frames are native here, and which alien."""
    home = numbers.astype(np.int64) * len(world.nodes) // frames
    return _with_exceptions(world, numbers, frames, home == world.node_index)


def _in_turns(world: World, numbers: Numbers, frames: int) -> tuple[Flags, Flags]:
    """Return which of the frames are native here, and which alien."""
    return _with_exceptions(world, numbers, frames, numbers % len(world.nodes) == world.node_index)


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
    seconds = _timed(world, partial(leaders.union, "native", words, out))
    del words, out
    counts, total = (np.ones(2 * -(-frames // 64), dtype=np.uint64) for _ in range(2))
    seconds += _timed(world, partial(leaders.count, "alien", counts, total))
    leaders.close()
    return seconds


def _timed(world: World, function: Callable[[], Any]) -> float:
    """Return the seconds until the last rank has done `function`."""
    world.comm.barrier()
    start = time.perf_counter()
    function()
    return float(max(world.comm.allgather(time.perf_counter() - start)))


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _start(frames: int, ranks: int, repeats: int, cache: str, layout: str) -> dict[str, float]:
    """Measure one case on ranks started for it."""
    launcher = Path(sys.executable).with_name("mpiexec")
    command = [
        str(launcher) if launcher.exists() else "mpiexec",
        "-n",
        str(ranks),
        sys.executable,
        "-m",
        "himach.bench.zazen",
    ]
    command += ["--frames", str(frames), "--repeats", str(repeats), "--layout", layout, "--cache", cache]
    environ = {**os.environ, "HYDRA_LAUNCHER": "fork"}  # on this machine, also inside a batch job
    done = subprocess.run(command, env=environ, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise RankError(f"the ranks of the benchmark ended with {done.returncode}: {done.stderr.strip()}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _rank(frames: int, repeats: int, cache: str, layout: str) -> None:
    """Measure as one of the ranks."""
    from himach.parallel import mpi

    rank = next((os.environ[name] for name in ("PMI_RANK", "OMPI_COMM_WORLD_RANK") if name in os.environ), "0")
    os.environ["HIMACH_NODE"] = f"node{rank if layout == 'apart' else 0}"
    world = mpi.connect()
    figures = measure(world, frames, repeats, cache)
    if world.comm.rank == 0:
        print(json.dumps(figures))


def _command() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=float, default=1e9)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:.0e} frames")
    parser.add_argument("--layout", choices=list(LAYOUTS), help=argparse.SUPPRESS)
    parser.add_argument("--cache", choices=list(CACHES), help=argparse.SUPPRESS)
    given = parser.parse_args()
    frames = QUICK if given.quick else int(given.frames)
    if given.layout:
        _rank(frames, given.repeats, given.cache, given.layout)
    else:
        main(frames, given.ranks, given.repeats)


if __name__ == "__main__":
    _command()
