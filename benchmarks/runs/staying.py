"""Runs over `himach.Ranks`: how long one takes from call to result, and what a thousand of them leave behind.

`main` prints both for the RMSD of C-alpha atoms over cached frames, beside a run with ranks of its own.
"""

import gc
import os
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

import click

import himach
from himach.examples import load

from ..harness.contest import Contest
from ..harness.interleave import scratch
from ..harness.options import DIRECTORY, RANKS

__all__ = ["Held", "main", "processes"]

#: Seconds from call to result.
BAR = 0.1
#: Runs after which all is there that stays: what is imported late, memory of libraries that grows to its size, and
#: Python's table of interned names, which is made anew, a megabyte larger, when names of files have come and gone.
SETTLED = 300
#: Bytes a run by which a process may seem to grow.
NOISE = 1024


@dataclass(frozen=True)
class Held:
    """What processes hold, and what lies in /dev/shm."""

    memory: int
    mappings: int
    descriptors: int
    segments: int

    @classmethod
    def now(cls, processes: list[int]) -> "Held":
        """Return what these processes hold together: memory of their own, in bytes, mappings, open descriptors."""
        lines = [line for each in processes for line in Path("/proc", str(each), "status").read_text().splitlines()]
        return cls(
            sum(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:")),
            sum(Path("/proc", str(each), "maps").read_bytes().count(b"\n") for each in processes),
            sum(len(os.listdir(f"/proc/{each}/fd")) for each in processes),
            len(os.listdir("/dev/shm")),
        )


@click.option("--frames", type=click.IntRange(min=10), default=1000, show_default=True, help="Frames of AdK.")
@click.option("--runs", type=click.IntRange(min=1), default=1000, show_default=True, help="Runs that follow.")
@RANKS
@DIRECTORY
def main(frames: int, runs: int, ranks: int, directory: Path | None) -> None:
    """Time runs over ranks that are ready, and tell what many of them leave behind."""
    with scratch(directory) as place:
        contest = Contest(place, {}, ranks=ranks)
        data = contest.data(frames)
        store = contest.store(data)

        def seconds(which: int | himach.Ranks) -> float:
            analysis = load("rmsd")(selection="name CA")
            begun = perf_counter()
            himach.run(analysis, data.trajectory, data.topology, cache=str(store), progress=False, ranks=which)
            return perf_counter() - begun

        new = median(seconds(ranks) for _ in range(3))
        with himach.Ranks(ranks) as stay:
            times = [seconds(stay) for _ in range(SETTLED)]
            before = Held.now(processes())
            times += [seconds(stay) for _ in range(runs)]
            after = Held.now(processes())
    print(f"RMSD of C-alpha, {data.frames:,} cached frames, {ranks} ranks, from call to result")
    print(f"  with ranks of its own {new:.3f} s; with ranks that are ready {times[0]:.3f} s the first time, then")
    typical = median(times[1:])
    ninth = quantiles(times[1:], n=10)[-1]
    print(f"  {typical:.4f} s, nine of ten below {ninth:.4f} s ({'holds' if typical <= BAR else 'above'} {BAR} s)")
    _print_growth(before, after, runs)


def _print_growth(before: Held, after: Held, runs: int) -> None:
    grown = (after.memory - before.memory) / runs
    print(f"after {runs:,} more runs, this process and its ranks:")
    print(f"  memory {before.memory / 1e6:.1f} MB, then {after.memory / 1e6:.1f} MB: {grown:,.0f} bytes a run")
    print(f"  mappings {before.mappings}, then {after.mappings}")
    print(f"  descriptors {before.descriptors}, then {after.descriptors}")
    print(f"  files in /dev/shm {before.segments}, then {after.segments}")
    mapped = after.mappings - before.mappings >= runs
    grows = grown > NOISE or mapped or after.descriptors > before.descriptors or after.segments > before.segments
    print(f"  {'something grows' if grows else 'nothing grows'}")


def processes() -> list[int]:
    """Return this process and all that descend from it, at rest."""
    gc.collect()
    found = [os.getpid()]
    for each in found:
        for path in Path("/proc", str(each), "task").glob("*/children"):
            found += map(int, path.read_text().split())
    return found
