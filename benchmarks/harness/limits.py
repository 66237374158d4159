"""What this machine can do at best: page cache, disk, memory, and a bare Allreduce between ranks.

Figures of a benchmark mean little without these beside them. `measure()` takes some ten seconds.
"""

import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from himach.errors import HimachError
from himach.ranks.communicator import World

from .disk import forget, read_direct, read_shared
from .interleave import seconds
from .ranks import on_ranks

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
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{[*names, platform.machine()][0]}, {len(os.sched_getaffinity(0))} cores, {memory / 2**30:.0f} GiB"


def measure(place: Path, ranks: int, repeats: int, file_bytes: int) -> list[Limit]:
    """Return the limits of this machine; a file is made in `place` for the time of the measurement."""
    with tempfile.NamedTemporaryFile(dir=place, prefix="limits-") as file:
        for _ in range(file_bytes >> 20):
            file.write(os.urandom(1 << 20))
        file.flush()
        paths = [Path(file.name)]

        def cold() -> float:
            forget(paths)
            return seconds(lambda: read_direct(paths, REQUEST))

        reads: dict[str, Callable[[], float]] = {
            "page cache, one core": lambda: read_shared(REQUEST, 1, False, [file.name]),
            f"page cache, {ranks} processes": lambda: read_shared(REQUEST, ranks, False, [file.name]),
            "disk, direct sequential reads": cold,
        }
        limits = [_rate(what, file_bytes, repeats, work) for what, work in reads.items()]
    source = np.ones(1 << 25)
    target = np.ones_like(source)
    copy = _rate(
        "memory, one core, bytes copied", source.nbytes, repeats, lambda: seconds(lambda: np.copyto(target, source))
    )
    what = f"bare Allreduce of {MEGABYTES} MB, {ranks} ranks"
    try:
        return [*limits, copy, Limit(what, tuple(on_ranks(ranks, bare_allreduce, repeats + 1)[1:]), "s")]
    except HimachError as error:
        return [*limits, copy, Limit(what, (), unknown=str(error))]


def bare_allreduce(world: World, repeats: int) -> list[float]:
    """Return the seconds of an Allreduce with bitwise or by mpi4py alone, each time (collective)."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    words = np.ones(MEGABYTES * 125_000, dtype=np.uint64)
    total = np.ones_like(words)
    found = []
    for _ in range(repeats):
        comm.Barrier()
        begun = time.perf_counter()
        comm.Allreduce(words, total, MPI.BOR)
        found.append(max(world.comm.allgather(time.perf_counter() - begun)))
    return found


def _rate(what: str, nbytes: int, repeats: int, work: Callable[[], float]) -> Limit:
    try:
        work()
        return Limit(what, tuple(nbytes / work() / 1e9 for _ in range(repeats)))
    except OSError as error:
        return Limit(what, (), unknown=f"the file system refuses direct reads ({error.strerror})")
