"""Files read without himach, as the limit that reading has.

``python -m himach.benchmarks.harness.disk REQUEST PROCESSES CHECKSUMS FILE...`` prints the seconds that as many
processes take for a bare `preadv` loop over whole files, `REQUEST` bytes a call into one buffer, each its part of every
file, from when all stand ready to the end of the last one; with CRC32C of each request if `CHECKSUMS` is 1.
"""

import mmap
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np

from himach.io.store.bodhi import crc32c

__all__ = ["forget", "read_bare", "read_direct", "read_shared"]

HUGE_PAGE = 2 << 20


def forget(paths: Sequence[Path]) -> None:
    """Drop the page cache of these files."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def read_bare(paths: Sequence[Path], size: int) -> None:
    """Read whole files by preadv into one buffer, `size` bytes at a time."""
    _read_files(paths, memoryview(bytearray(size)), 0)


def read_direct(paths: Sequence[Path], size: int, *, huge: bool = False) -> None:
    """Read whole files sequentially by O_DIRECT as dd does, one request at a time; into huge pages if `huge`."""
    with mmap.mmap(-1, size + HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        if huge:
            memory.madvise(mmap.MADV_HUGEPAGE)
        start = -np.frombuffer(memory, dtype=np.uint8).ctypes.data % HUGE_PAGE
        with memoryview(memory)[start : start + size] as buffer:
            _read_files(paths, buffer, os.O_DIRECT)


def _read_files(paths: Sequence[Path], buffer: memoryview, flags: int) -> None:
    for path in paths:
        fd = os.open(path, os.O_RDONLY | flags)
        try:
            at = 0
            while got := os.preadv(fd, [buffer], at):
                at += got
        finally:
            os.close(fd)


def read_shared(request: int, processes: int, checksums: bool, files: Sequence[str]) -> float:
    """Return the seconds that `processes` take to read `files`, each its part."""
    barrier = multiprocessing.Barrier(processes + 1)
    parts = [(request, i, processes, checksums, files, barrier) for i in range(processes)]
    workers = [multiprocessing.Process(target=_read_part, args=part) for part in parts]
    for worker in workers:
        worker.start()
    barrier.wait()  # all stand ready
    begun = time.perf_counter()
    barrier.wait()
    barrier.wait()  # the last has ended
    seconds = time.perf_counter() - begun
    for worker in workers:
        worker.join()
    return seconds


def _read_part(request: int, i: int, n: int, checksums: bool, files: Sequence[str], barrier: Barrier) -> None:
    buffer = memoryview(bytearray(request))
    opened = [os.open(path, os.O_RDONLY) for path in files]
    barrier.wait()
    barrier.wait()
    for fd in opened:
        size = os.fstat(fd).st_size
        at, end = size * i // n, size * (i + 1) // n
        while at < end and (got := os.preadv(fd, [buffer[: end - at]], at)):
            if checksums:
                crc32c(buffer[:got])
            at += got
    barrier.wait()


if __name__ == "__main__":
    print(read_shared(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1", sys.argv[4:]))
