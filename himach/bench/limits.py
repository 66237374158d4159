"""What this machine can do at best: page cache, disk, memory, and a bare Allreduce between ranks.

Figures of a benchmark mean little without these beside them. `measure()` takes some ten seconds.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import himach.benchmarks
from himach.bench.bare import main as read_bare
from himach.bench.cache import forget, read_direct
from himach.bench.mpiexec import mpiexec
from himach.errors import HimachError

__all__ = ["Limit", "machine", "measure"]

REQUEST = 4 << 20
MEGABYTES = 125  # the bitmap of 1e9 frames


@dataclass(frozen=True)
class Limit:
    """One limit of the machine: its median, lowest and highest value in `unit`, or why it is unknown."""

    what: str
    values: tuple[float, ...]
    unit: str = "GB/s"
    unknown: str = ""

    def cells(self) -> list[str]:
        """Return the cells of this limit's line in a table."""
        if not self.values:
            return [self.what, f"not measured: {self.unknown}", ""]
        middle = f"{statistics.median(self.values):.3g} {self.unit}"
        return [self.what, middle, f"{min(self.values):.3g} to {max(self.values):.3g}"]


def machine() -> str:
    """Return processor, cores that this process may use, and memory."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    name = names[0] if names else platform.machine()
    return f"{name}, {len(os.sched_getaffinity(0))} cores, {memory / 2**30:.0f} GiB"


def measure(place: Path, ranks: int, repeats: int, file_bytes: int) -> list[Limit]:
    """Return the limits of this machine; files are made in `place` for the time of the measurement."""
    with tempfile.NamedTemporaryFile(dir=place, prefix="limits-") as file:
        for _ in range(file_bytes >> 20):
            file.write(os.urandom(1 << 20))
        file.flush()
        path = Path(file.name)
        limits = [
            _rate("page cache, one core", file_bytes, repeats, lambda: read_bare([str(path)], REQUEST, 1, False)),
            _rate(
                f"page cache, {ranks} processes",
                file_bytes,
                repeats,
                lambda: read_bare([str(path)], REQUEST, ranks, False),
            ),
            _disk(path, file_bytes, repeats),
        ]
    return [*limits, _memory(repeats), _allreduce(ranks, repeats)]


def _rate(what: str, nbytes: int, repeats: int, work: Callable[[], float]) -> Limit:
    work()
    return Limit(what, tuple(nbytes / work() / 1e9 for _ in range(repeats)))


def _disk(path: Path, nbytes: int, repeats: int) -> Limit:
    what = "disk, direct sequential reads"

    def work() -> float:
        forget([path])
        begun = time.perf_counter()
        read_direct([path], REQUEST)
        return time.perf_counter() - begun

    try:
        return _rate(what, nbytes, repeats, work)
    except OSError as error:
        return Limit(what, (), unknown=f"the file system refuses direct reads ({error.strerror})")


def _memory(repeats: int) -> Limit:
    source = np.ones(1 << 25)
    target = np.ones_like(source)

    def work() -> float:
        begun = time.perf_counter()
        np.copyto(target, source)
        return time.perf_counter() - begun

    return _rate("memory, one core, bytes copied", source.nbytes, repeats, work)


def _allreduce(ranks: int, repeats: int) -> Limit:
    what = f"bare Allreduce of {MEGABYTES} MB, {ranks} ranks"
    script = himach.benchmarks.FOLDER / "peers" / "allreduce.py"
    try:
        printed = mpiexec(ranks, [sys.executable, "-P", str(script), str(MEGABYTES), str(repeats + 1)])
    except HimachError as error:
        return Limit(what, (), unknown=str(error))
    return Limit(what, tuple(map(float, printed.split()[1:])), "s")
