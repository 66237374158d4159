"""Runs over very many frames of one atom: whether they are complete, what a rank holds at most, when map() begins.

Frames are counted by key, 1,000 keys: over a DCD file that four ranks read as four nodes, over ten times as many frames
that are computed, of which every tenth is read, and over a tenth of the DCD's by 64 ranks. And `rmsd` of a tenth of
them is written, a row a frame: what memory the rank with the outcome takes beside the others, and whether the file is
that of a run on one rank.
"""

import shutil
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import numpy as np

import himach
from himach.files import content_digest
from himach.ranks.communicator import World

from ..harness.figures import report
from ..harness.interleave import scratch
from ..harness.options import DIRECTORY, count, only
from ..harness.ranks import on_ranks
from .staying import processes

__all__ = ["main", "measure", "write_dcd"]

KEYS = 1000
STEP = 10
#: Bytes that a rank may hold at most, whatever it does, and for each frame of its own part.
BASE, FRAME = 300e6, 3
#: Bytes that each of many ranks may hold, of those of all together.
EACH = 110e6
START = 20.0  # seconds from the call to the first map()
FIRST = 1.2  # what the first rank may hold of a table, beside the mean of the others

_ATOM = f"{1:5d}{'ATOM':5}{'AR':>5}{1:5d}" + 3 * f"{0:8.3f}"
_TOPOLOGY = f"one atom\n    1\n{_ATOM}\n" + 3 * f"{1:10.5f}" + "\n"
_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class _Case:
    """A run: what it is called, its trajectory, how many frames are read, by how many ranks."""

    name: str
    trajectory: Path
    frames: int
    step: int
    ranks: int
    apart: bool


@only("dcd, computed, many or rows")
@click.option("--frames", type=count, default="1e8", show_default=True, help="Frames of one atom that a run reads.")
@click.option("--ranks", type=click.IntRange(min=1), default=4, show_default=True, help="Ranks, each a node.")
@click.option("--many", type=click.IntRange(min=1), default=64, show_default=True, help="Ranks of one node.")
@DIRECTORY
def main(frames: int, only: Sequence[str], ranks: int, many: int, directory: Path | None) -> None:
    """Run over very many frames: memory of ranks, and the time until map() begins."""
    with scratch(directory) as place:
        for case in _cases(place, frames, ranks, many):
            if not only or case.name in only:
                _run(case, place)
        if not only or "rows" in only:
            _run_rows(place, max(1, frames // 10), ranks)


def _run_rows(place: Path, frames: int, ranks: int) -> None:
    """Write the table of `rmsd` over computed frames, on several ranks and on one."""
    topology, trajectory = place / "one.gro", place / "rows.computed"
    topology.write_text(_TOPOLOGY)
    trajectory.write_text(f"{frames}\n")
    digests = []
    for size in (ranks, 1):
        began, out = time.time(), place / f"rows-{size}"
        found = on_ranks(size, measure_rows, str(trajectory), str(topology), str(out), apart=True)
        print(f"rows: {frames:,} frames, {size} rank{'s' * (size > 1)}, {time.time() - began:.1f} s")
        print(f"  seconds: { {name: f'{value:.1f}' for name, value in found['seconds'].items()} }")
        digests.append(content_digest(str(out / "rmsd.csv")))
        shutil.rmtree(out)
        if size > 1:
            first, *others = found["peaks"]
            report(
                f"  peak memory of the first rank ({first / 1e6:.0f} MB) beside the others'",
                f"{first / np.mean(others):.2f} times",
                f"{FIRST} times",
            )
    report("  the file is that of one rank", "yes" if digests[0] == digests[-1] else "NO", "yes")


def measure_rows(world: World, trajectory: str, topology: str, out: str) -> dict[str, Any]:
    """Write the table of `rmsd` on the ranks of `world`; return each rank's peak of memory, and the seconds."""
    import_module("himach.benchmarks.analyses.computed")  # makes its format known
    rmsd = himach.examples.load("rmsd")(selection="all", fit="none")
    result = himach.run(rmsd, trajectory, topology, cache="off", progress=False, out=out)
    return {"peaks": world.comm.gather(_peak()), "seconds": result.record["seconds"]}


def _cases(place: Path, frames: int, ranks: int, many: int) -> Sequence[_Case]:
    return (
        _Case("dcd", place / "whole.dcd", frames, 1, ranks, True),
        _Case("computed", place / "whole.computed", STEP * frames, STEP, ranks, True),
        _Case("many", place / "tenth.dcd", max(1, frames // 10), 1, many, False),
    )


def _run(case: _Case, place: Path) -> None:
    topology = place / "one.gro"
    topology.write_text(_TOPOLOGY)
    if case.trajectory.suffix == ".dcd":
        write_dcd(case.trajectory, case.frames)
    else:
        case.trajectory.write_text(f"{case.frames}\n")
    began = time.time()
    with _watched() as peak:
        words = (str(case.trajectory), str(topology), case.step, began)
        found = on_ranks(case.ranks, measure, *words, apart=case.apart)
    took = time.time() - began
    case.trajectory.unlink()
    read = -(-case.frames // case.step)
    print(f"{case.name}: {read:,} of {case.frames:,} frames, {case.ranks} ranks, {took:.1f} s")
    whole = found["frames"] == read and found["keys"] == min(read, KEYS // np.gcd(KEYS, case.step))
    report("  complete", "yes" if whole else f"NO: {found['frames']:,} frames", "yes")
    if case.apart:
        bar = BASE + FRAME * read / case.ranks
        report("  peak memory of a rank", f"{max(found['peaks']) / 1e6:.0f} MB", f"{bar / 1e6:.0f} MB")
    else:
        report("  peak memory of all ranks", f"{peak[0] / 1e6:.0f} MB", f"{EACH * case.ranks / 1e6:.0f} MB")
    report("  from the call to the first map()", f"{found['start']:.1f} s", f"{START:g} s")
    seconds = {name: f"{value:.1f}" for name, value in found["seconds"].items()}
    print(f"  seconds: {seconds}; map {1e6 * found['seconds']['map'] * case.ranks / read:.1f} us of a rank a frame")


def measure(world: World, trajectory: str, topology: str, step: int, began: float) -> dict[str, Any]:
    """Run on the ranks of `world`; return what was found, each rank's peak of memory, and when map() began."""
    counts = import_module("himach.benchmarks.analyses.counts")
    import_module("himach.benchmarks.analyses.computed")  # makes its format known
    result = himach.run(counts.Counts(keys=KEYS), trajectory, topology, step=step, cache="off", progress=False)
    told = world.comm.gather((_peak(), counts.begun[0] - began if counts.begun else np.inf))
    if world.comm.rank:
        return {}
    found = result.outcome["found"]
    return {
        "keys": found["keys"][0],
        "frames": found["frames"][0],
        "peaks": [peak for peak, _ in told],
        "start": max(start for _, start in told if start < np.inf),
        "seconds": result.record["seconds"],
    }


def _peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


@contextmanager
def _watched() -> Iterator[list[int]]:
    """Give a list of the most memory that this process's descendants held together; shared pages count once."""
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.5):
            peak[0] = max(peak[0], sum(map(_proportional, processes()[1:])))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def _proportional(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def write_dcd(path: Path, n_frames: int) -> None:
    """Write a DCD file of so many frames of one atom, which goes along x."""
    control = np.zeros(20, "<i4")
    control[[0, 1, 2, 3, 19]] = n_frames, 1, 1, n_frames, 24
    control[9:10].view("<f4")[:] = 1 / 0.04888821  # 1 ps
    title = struct.pack("<i80s", 1, b"himach bench billion".ljust(80))
    records = (b"CORD" + control.tobytes(), title, struct.pack("<i", 1))
    coordinate = [("before", "<i4"), ("value", "<f4"), ("after", "<i4")]
    with open(path, "wb") as file:
        for record in records:
            file.write(struct.pack("<i", len(record)) + record + struct.pack("<i", len(record)))
        some = np.zeros((_AT_ONCE, 3), coordinate)
        some["before"] = some["after"] = 4
        for begin in range(0, n_frames, _AT_ONCE):
            count = min(_AT_ONCE, n_frames - begin)
            some["value"][:count, 0] = np.arange(begin, begin + count) % 1000
            file.write(some[:count].data)
