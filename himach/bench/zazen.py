"""What Zazen costs beside the bare reductions of the same bytes.

``python -m himach.bench.zazen --frames 1e9 --ranks 2`` starts its ranks itself, twice: each rank a node of its own, and
all ranks on one node. Every frame is native on a random node (90 in 100), or alien on a random one (the rest). A table
tells the time of the Allreduces alone, of the rounds with all decisions, of turning sets into bitmaps, and the greatest
memory of a node, cached sets and all. `main()` is what ``himach bench zazen`` calls.
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
import pyroaring

from himach.comm import World
from himach.errors import RankError
from himach.zazen import InMemory, assign
from himach.zazen.rounds import Leaders

__all__ = ["main", "measure", "table"]

QUICK = 10**7
NATIVE_TENTHS = 9
DRAWN = 1 << 22  # frames drawn at a time
LAYOUTS = {"apart": "each rank a node", "together": "all ranks on one node"}


def main(frames: int = 10**9, ranks: int = 2, repeats: int = 3) -> None:
    """Measure both layouts on `ranks` ranks of this machine and print the table.

    Raises
    ------
    RankError
        If the ranks could not be started or died.
    """
    print(table(frames, ranks, {layout: _start(frames, ranks, repeats, layout) for layout in LAYOUTS}))


def table(frames: int, ranks: int, measured: dict[str, dict[str, float]]) -> str:
    """Return the figures of `measure()`, by layout, as text."""
    lines = [
        f"Zazen, {frames:.3g} frames, {ranks} ranks (medians; seconds)",
        f"{'':24}{'Allreduces':>12}{'rounds':>9}{'ratio':>8}{'bitmaps':>9}{'MB a node':>11}",
    ]
    for layout, figures in measured.items():
        bare, rounds = figures["bare"], figures["rounds"]
        lines.append(
            f"{LAYOUTS[layout]:24}{bare:12.3f}{rounds:9.3f}{rounds / bare:8.2f}"
            f"{figures['bitmaps']:9.3f}{figures['peak'] / 1e6:11.0f}"
        )
    return "\n".join(lines)


def measure(world: World, frames: int, repeats: int) -> dict[str, float]:
    """Measure on the ranks of `world` (collective).

    Returns
    -------
    dict
        Medians in seconds: ``bare``, the two reductions of whole bitmaps over all ranks; ``rounds``, from bitmaps to
        shares; ``bitmaps``, from sets to bitmaps. ``peak``: the most bytes of memory that a node's ranks had in the
        first repetition, the interpreters and the cached sets included; pages that ranks share count once a rank.
    """
    cached = _random_cache(world, frames) if world.node.rank == 0 else None
    rounds, bitmaps, peak = [], [], 0
    for _ in range(repeats):
        share = assign(world, cached, range(frames))
        seconds = world.comm.allgather(share.seconds)
        assert sum(share.counts.values()) == frames
        share.close()
        rounds.append(max(s["rounds"] for s in seconds))
        bitmaps.append(max(s["bitmaps"] for s in seconds))
        # Of the first time: a world keeps its shared memory until it ends, so that repetitions pile it up.
        peak = peak or max(world.comm.allgather(sum(world.node.allgather(_peak_bytes()))))
    del cached
    return {
        "bare": statistics.median(_bare(world, frames) for _ in range(repeats)),
        "rounds": statistics.median(rounds),
        "bitmaps": statistics.median(bitmaps),
        "peak": peak,
    }


def _random_cache(world: World, frames: int) -> InMemory:
    """Return what this node holds: of every ten frames nine are native on some node, one is alien on one."""
    native, alien = pyroaring.BitMap(), pyroaring.BitMap()
    for first in range(0, frames, DRAWN):
        draw = np.random.default_rng(first)  # the same on every node
        n = min(DRAWN, frames - first)
        mine = draw.integers(0, len(world.nodes), n, dtype=np.uint8) == world.node_index
        pushed = draw.integers(0, 10, n, dtype=np.uint8) < NATIVE_TENTHS
        for held, which in ((native, mine & pushed), (alien, mine & ~pushed)):
            held.update(pyroaring.BitMap((np.flatnonzero(which) + first).astype(np.uint32)))
    return InMemory(native, alien)


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


def _start(frames: int, ranks: int, repeats: int, layout: str) -> dict[str, float]:
    """Measure one layout on ranks started for it."""
    launcher = Path(sys.executable).with_name("mpiexec")
    command = [
        str(launcher) if launcher.exists() else "mpiexec",
        "-n",
        str(ranks),
        sys.executable,
        "-m",
        "himach.bench.zazen",
    ]
    command += ["--frames", str(frames), "--repeats", str(repeats), "--layout", layout]
    environ = {**os.environ, "HYDRA_LAUNCHER": "fork"}  # on this machine, also inside a batch job
    done = subprocess.run(command, env=environ, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise RankError(f"the ranks of the benchmark ended with {done.returncode}: {done.stderr.strip()}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _rank(frames: int, repeats: int, layout: str) -> None:
    """Measure as one of the ranks."""
    from himach import mpi

    rank = next((os.environ[name] for name in ("PMI_RANK", "OMPI_COMM_WORLD_RANK") if name in os.environ), "0")
    os.environ["HIMACH_NODE"] = f"node{rank if layout == 'apart' else 0}"
    world = mpi.connect()
    figures = measure(world, frames, repeats)
    if world.comm.rank == 0:
        print(json.dumps(figures))


def _command() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=float, default=1e9)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:.0e} frames")
    parser.add_argument("--layout", choices=list(LAYOUTS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    frames = QUICK if given.quick else int(given.frames)
    if given.layout:
        _rank(frames, given.repeats, given.layout)
    else:
        main(frames, given.ranks, given.repeats)


if __name__ == "__main__":
    _command()
