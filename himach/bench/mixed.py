"""Benchmark of reading beside a writer that pushes at a quarter of the disk's rate, beside plain files used alike.

Both mixes in turns, in one run: frames are read that the page cache does not have, while another process writes frames
of the same size at a set pace, on disk every 16 MB on both sides. With himach they are read from a store and pushed
through its server; without, read from and written to plain files. Part of ``himach bench cache``.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from himach.bench.cache import N_ATOMS, N_FRAMES, forget, read_bare, read_store, report, seconds, segments_of
from himach.io.server import control as server
from himach.io.store.store import Dataset

__all__ = ["bench_mixed"]

BATCH_BYTES = 16 << 20
FRAME_BYTES = N_ATOMS * 12
RATE_BYTES = 512 << 20
PASSES = 4  # over the frames beside one writer, so that it syncs several times meanwhile
BAR = "92 %"

# A frame every so many seconds until standard input ends; then the share of the pace that was kept.
PACED = """
import os, select, sys, time
import numpy as np
{begin}
positions = np.random.default_rng(1).normal(size=({n_atoms}, 3)).astype(np.float32)
start = time.monotonic()
number = 0
while True:
    wait = max(start + number * {interval} - time.monotonic(), 0)
    if select.select([sys.stdin], [], [], wait)[0]:
        break
    positions[0, 0] = number
    {put}
    number += 1
    if number == 8:
        print("going", flush=True)
print(number * {interval} / (time.monotonic() - start))
"""
PLAIN = {
    "begin": """
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

def put(number):
    os.write(fd, positions)
    if number * positions.nbytes // {batch} != (number + 1) * positions.nbytes // {batch}:
        os.fdatasync(fd)
""",
    "put": "put(number)",
}
PUSHED = {
    "begin": """
import himach
writer = himach.Writer(sys.argv[2], {n_atoms}, servers=[sys.argv[1]], durable=True, batch_bytes={batch})
""",
    "put": "writer.push(positions, time=number)",
}


def disk_rate(directory: Path) -> float:
    """Return bytes a second at which the disk takes a file, its last byte included."""
    path = directory / "rate"
    data = os.urandom(BATCH_BYTES)

    def write() -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for _ in range(RATE_BYTES // BATCH_BYTES):
            os.write(fd, data)
        os.fdatasync(fd)
        os.close(fd)

    times = []
    for _ in range(3):
        os.sync()
        times.append(seconds(write))
    path.unlink()
    return RATE_BYTES / statistics.median(times)


@contextlib.contextmanager
def paced(way: dict[str, str], rate: float, kept: list[float], *arguments: str) -> Iterator[None]:
    """Have another process write frames at a pace; `kept` gets the share of it that was kept."""
    values = {"n_atoms": N_ATOMS, "batch": BATCH_BYTES, "interval": FRAME_BYTES / rate}
    program = PACED.format(begin=way["begin"].format(**values), put=way["put"].format(**values), **values)
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        if process.stdout.readline() != "going\n":
            raise AssertionError("the writer of the benchmark has ended")
        yield
        process.stdin.close()
        kept.append(float(process.stdout.readline()))


def cold_passes(paths: list[Path], work: Callable[[], object]) -> float:
    """Return how long `work` takes, `PASSES` times with the page cache of `paths` dropped before it (not timed)."""
    took = 0.0
    for _ in range(PASSES):
        forget(paths)
        took += seconds(work)
    return took


def bench_mixed(dataset: Dataset, repeats: int) -> None:
    """Read all frames of `dataset` beside a writer, and a plain copy of them likewise; print the figures.

    Parameters
    ----------
    dataset
        Of `himach.bench.cache.fill`; a server of its store is started and stopped.
    repeats
        Times; medians are shown.
    """
    place = dataset.store.path
    copy, written = place.parent / "plain", place.parent / "written"
    with open(copy, "wb") as file:
        for path in segments_of(dataset):
            file.write(path.read_bytes())
    rate = disk_rate(place.parent) / 4
    facts = server.start(place)
    plain: list[float] = []
    cached: list[float] = []
    plain_pace: list[float] = []
    pushed_pace: list[float] = []
    try:
        for repeat in range(max(repeats, 5)):
            with paced(PLAIN, rate, plain_pace, os.fspath(written)):
                plain.append(cold_passes([copy], lambda: read_bare([copy], FRAME_BYTES)))
            written.unlink()
            with paced(PUSHED, rate, pushed_pace, facts["socket"], f"/pushed{repeat}"):
                cached.append(cold_passes(segments_of(dataset), lambda: read_store(dataset, N_FRAMES)))
            time.sleep(0.2)
    finally:
        server.stop(place)
        copy.unlink()
    size = PASSES * N_FRAMES * FRAME_BYTES
    report("beside a writer: its pace, a quarter of the disk's rate", f"{rate / 1e6:.0f} MB/s", "none")
    report(
        "beside a writer: share of the pace that plain files; pushing kept",
        f"{statistics.median(plain_pace):.0%}; {statistics.median(pushed_pace):.0%}",
        "none",
    )
    report("beside a writer: plain files, read", f"{size / statistics.median(plain) / 1e6:.0f} MB/s", "the limit")
    ratio = statistics.median(plain) / statistics.median(cached)
    report("beside a writer: frames of a store, read", f"{ratio:.0%}", BAR)
