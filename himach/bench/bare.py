"""A bare `preadv` loop over whole files by as many processes as there are ranks: the limit that reading has.

``python -m himach.bench.bare --request BYTES --processes N [--checksums] FILE...`` prints the seconds from when all
processes stand ready to the end of the last one. Each process reads its part of every file into one buffer.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier

__all__ = ["main"]


def main(files: Sequence[str], request: int, processes: int, checksums: bool) -> float:
    """Read `files` and return the seconds.

    Parameters
    ----------
    files
        Paths.
    request
        Bytes a call.
    processes
        How many share the bytes.
    checksums
        Whether each request's CRC32C is taken too, as himach does when it reads.
    """
    barrier = multiprocessing.Barrier(processes + 1)
    workers = [
        multiprocessing.Process(target=_work, args=(files, request, (i, processes), checksums, barrier))
        for i in range(processes)
    ]
    for worker in workers:
        worker.start()
    barrier.wait()
    begun = time.perf_counter()
    barrier.wait()
    seconds = time.perf_counter() - begun
    for worker in workers:
        worker.join()
    return seconds


def _work(files: Sequence[str], request: int, part: tuple[int, int], checksums: bool, barrier: Barrier) -> None:
    from himach.io.store.bodhi import crc32c

    buffer = memoryview(bytearray(request))
    opened = [os.open(path, os.O_RDONLY) for path in files]
    barrier.wait()
    for fd in opened:
        size = os.fstat(fd).st_size
        at, end = (size * i // part[1] for i in (part[0], part[0] + 1))
        while at < end and (got := os.preadv(fd, [buffer[: end - at]], at)):
            if checksums:
                crc32c(buffer[:got])
            at += got
    barrier.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--request", type=int, required=True)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--checksums", action="store_true")
    parser.add_argument("files", nargs="+")
    given = parser.parse_args()
    print(main(given.files, given.request, given.processes, given.checksums))
