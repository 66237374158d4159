"""Reading beside a writer that pushes at a quarter of the disk's rate, beside plain files used alike.

Both mixes in turns, in one run: frames are read that the page cache does not have, while another process writes frames
of the same size at a set pace, on disk every 16 MB on both sides. With himach they are read from a store and pushed
through its server; without, read from and written to plain files.

``python -m himach.benchmarks.store.mixed SECONDS PATH`` writes a frame every so many seconds to a plain file until its
standard input ends; with the name of a dataset behind, it pushes to the server at that path. It prints the share of the
pace that it kept.
"""

import contextlib
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from himach.io.push.writer import Writer
from himach.io.server import control as server

from ..harness.disk import forget, read_bare
from ..harness.figures import report
from ..harness.interleave import seconds
from .frames import BATCH_BYTES, FRAME_BYTES, N_ATOMS, N_FRAMES, fill, frames, read, segments_of

__all__ = ["mixed"]

RATE_BYTES = 512 << 20
PASSES = 4  # over the frames beside one writer, so that it syncs several times meanwhile


def mixed(place: Path, repeats: int) -> None:
    """Read frames of a store beside a writer, and a plain copy of them likewise; print the figures."""
    dataset = fill(place / "mixed")
    paths, copy, written = segments_of(dataset), place / "plain", place / "written"
    copy.write_bytes(b"".join(path.read_bytes() for path in paths))
    rate = _disk_rate(place / "rate") / 4
    socket = server.start(dataset.store.path)["socket"]
    plain: list[tuple[float, float]] = []
    cached: list[tuple[float, float]] = []
    try:
        for repeat in range(max(repeats, 5)):
            with _writer(rate, str(written)) as end:
                took = _cold_passes([copy], lambda: read_bare([copy], FRAME_BYTES))
                plain.append((took, end()))
            written.unlink()
            with _writer(rate, socket, f"pushed{repeat}") as end:
                took = _cold_passes(paths, lambda: read(dataset))
                cached.append((took, end()))
            time.sleep(0.2)
    finally:
        server.stop(dataset.store.path)
    plain_s, plain_pace = map(statistics.median, zip(*plain, strict=True))
    cached_s, pushed_pace = map(statistics.median, zip(*cached, strict=True))
    plain_rate = PASSES * N_FRAMES * FRAME_BYTES / plain_s
    report("beside a writer: its pace, a quarter of the disk's rate", f"{rate / 1e6:.0f} MB/s")
    name = "beside a writer: share of the pace that plain files; pushing kept"
    report(name, f"{plain_pace:.0%}; {pushed_pace:.0%}")
    report("beside a writer: plain files, read", f"{plain_rate / 1e6:.0f} MB/s", "the limit")
    report("beside a writer: frames of a store, read", f"{plain_s / cached_s:.0%}", "92 %")


def _disk_rate(path: Path) -> float:
    """Return bytes a second at which the disk takes a file, its last byte included."""
    data = os.urandom(BATCH_BYTES)

    def write() -> None:
        with path.open("wb", buffering=0) as file:
            for _ in range(RATE_BYTES // BATCH_BYTES):
                file.write(data)
            os.fdatasync(file.fileno())

    times = []
    for _ in range(3):
        os.sync()
        times.append(seconds(write))
    path.unlink()
    return RATE_BYTES / statistics.median(times)


@contextlib.contextmanager
def _writer(rate: float, *words: str) -> Iterator[Callable[[], float]]:
    """Have another process write frames at a pace; give what ends it and returns the share of the pace that it kept."""
    command = [sys.executable, "-P", "-m", __spec__.name, str(FRAME_BYTES / rate), *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        if process.stdout.readline() != "going\n":
            raise AssertionError("the writer of the benchmark has ended")
        yield lambda: float(process.communicate()[0])


def _cold_passes(paths: list[Path], work: Callable[[], object]) -> float:
    """Return how long `work` takes, `PASSES` times with the page cache of `paths` dropped before it (not timed)."""
    took = 0.0
    for _ in range(PASSES):
        forget(paths)
        took += seconds(work)
    return took


def _write(interval: float, path: str, dataset: str | None = None) -> None:
    """Write frames at a pace until standard input ends."""
    if dataset is None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    else:
        writer = Writer(dataset, N_ATOMS, servers=[path], durable=True, batch_bytes=BATCH_BYTES)
    start = time.monotonic()
    for number, positions in enumerate(frames()):
        if select.select([sys.stdin], [], [], max(start + number * interval - time.monotonic(), 0))[0]:
            print(number * interval / (time.monotonic() - start))
            break
        if dataset is not None:
            writer.push(positions, time=number)
        else:
            os.write(fd, positions)
            if number * FRAME_BYTES // BATCH_BYTES != (number + 1) * FRAME_BYTES // BATCH_BYTES:
                os.fdatasync(fd)
        if number == 7:
            print("going", flush=True)


if __name__ == "__main__":
    _write(float(sys.argv[1]), *sys.argv[2:])
