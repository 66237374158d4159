"""Benchmark of the frame store: ``python -m himach.bench.cache`` beside the limits of the machine.

`main` prints one line a figure with its bar. Figures are ratios of medians within one run, both sides over the same
bytes and in turns. What cannot be measured here (no direct I/O, too little space) is said instead of printed.
"""

from __future__ import annotations

import argparse
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from himach.io.store import bodhi
from himach.io.store.store import Dataset, Store

__all__ = ["main"]

N_ATOMS = 35_833  # 430 KB of positions
N_FRAMES = 1_200
DIRECT_REQUEST = 4 << 20
HUGE_PAGE = 2 << 20
SMALL_FRAMES = 10_000_000
SMALL_ATOMS = 5  # 60 bytes, padded to 64


def report(what: str, value: str, bar: str) -> None:
    """Print one figure."""
    print(f"{what:<62} {value:>22}   (bar: {bar})", flush=True)


def seconds(work: Callable[[], object]) -> float:
    """Return how long `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def fill(place: Path, n_frames: int) -> Dataset:
    """Make a dataset of 430 KB frames."""
    dataset = Store(place).dataset("/bench")
    positions = np.random.default_rng(1).normal(size=(N_ATOMS, 3)).astype(np.float32)
    for number in range(n_frames):
        positions[0, 0] = number
        dataset.write(number, float(number), None, positions)
    dataset.close()
    return dataset


def segments_of(dataset: Dataset) -> list[Path]:
    """Return the segment files in the order of their making."""
    return sorted(dataset.path.glob("*.seg"))


def forget(paths: list[Path]) -> None:
    """Drop the page cache of these files."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def read_bare(paths: list[Path], size: int) -> None:
    """Read whole files by preadv into one buffer, `size` bytes at a time."""
    _read_files(paths, memoryview(bytearray(size)), 0)


def read_direct(paths: list[Path], size: int, *, huge: bool = False) -> None:
    """Read whole files sequentially by O_DIRECT as dd does, one request at a time; into huge pages if `huge`."""
    with mmap.mmap(-1, size + HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        if huge:
            memory.madvise(mmap.MADV_HUGEPAGE)
        start = -np.frombuffer(memory, dtype=np.uint8).ctypes.data % HUGE_PAGE
        with memoryview(memory)[start : start + size] as buffer:
            _read_files(paths, buffer, os.O_DIRECT)


def _read_files(paths: list[Path], buffer: memoryview, flags: int) -> None:
    for path in paths:
        fd = os.open(path, os.O_RDONLY | flags)
        try:
            at = 0
            while got := os.preadv(fd, [buffer], at):
                at += got
        finally:
            os.close(fd)


def read_store(dataset: Dataset, n_frames: int, *, verify: bool = True, direct: str = "auto") -> None:
    """Read every frame; a miss is an error of the benchmark."""
    missed = sum(frame is None for frame in dataset.read(np.arange(n_frames), verify=verify, direct=direct))  # type: ignore[arg-type]
    if missed:
        raise AssertionError(f"{missed} frames of the benchmark were misses")


def bench_warm(dataset: Dataset, repeats: int) -> None:
    """430 KB frames in the page cache, one core."""
    paths = segments_of(dataset)[:1]
    places = dataset._handle.locate(np.arange(N_FRAMES, dtype=np.int64))
    first = next(place[0] for place in places if place is not None)
    count = sum(place is not None and place[0] == first for place in places)
    size = next(place[3] for place in places if place is not None)
    read_bare(paths, size)
    read_store(dataset, count)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        times: dict[str, list[float]] = {"bare": [], "checked": [], "unchecked": []}
        for _ in range(max(3 * repeats, 9)):
            times["bare"].append(seconds(lambda: read_bare(paths, size)))
            times["checked"].append(seconds(lambda: read_store(dataset, count)))
            times["unchecked"].append(seconds(lambda: read_store(dataset, count, verify=False)))
    finally:
        os.sched_setaffinity(0, cores)
    median = {name: statistics.median(values) for name, values in times.items()}
    rate = count * size / median["bare"] / 1e9
    report("warm, one core: bare preadv loop", f"{rate:.1f} GB/s", "the limit")
    report(
        f"warm, one core: checksums on ({bodhi.checksum_way()})", f"{median['bare'] / median['checked']:.0%}", "60 %"
    )
    report("warm, one core: verify off", f"{median['bare'] / median['unchecked']:.0%}", "90 %")


def bench_cold(dataset: Dataset, repeats: int) -> None:
    """430 KB frames, page cache dropped, against sequential direct reads of the same bytes."""
    paths = segments_of(dataset)
    ways = {"direct": "on", "through the page cache": "off"}
    times: dict[str, list[float]] = {"bare": [], "huge": [], **{name: [] for name in ways}}
    try:
        for _ in range(max(repeats, 5)):
            forget(paths)
            times["bare"].append(seconds(lambda: read_direct(paths, DIRECT_REQUEST)))
            forget(paths)
            times["huge"].append(seconds(lambda: read_direct(paths, DIRECT_REQUEST, huge=True)))
            for name, direct in ways.items():
                forget(paths)
                times[name].append(seconds(lambda direct=direct: read_store(dataset, N_FRAMES, direct=direct)))  # type: ignore[misc]
    except OSError as error:
        print(f"cold reads: cannot be measured here, as the file system refuses direct reads ({error.strerror})")
        return
    median = {name: statistics.median(values) for name, values in times.items()}
    size = sum(path.stat().st_size for path in paths)
    report("cold: sequential direct reads of 4 MiB, as dd's", f"{size / median['bare'] / 1e9:.1f} GB/s", "the limit")
    report("cold: the same into huge pages", f"{size / median['huge'] / 1e9:.1f} GB/s", "none")
    report("cold, one reader with read-ahead, direct", f"{median['bare'] / median['direct']:.0%}", "92 %")
    report("cold, the same against those into huge pages", f"{median['huge'] / median['direct']:.0%}", "none")
    buffered = median["bare"] / median["through the page cache"]
    report("cold, the same through the page cache (fits in memory)", f"{buffered:.0%}", "92 %")


OPEN = """
import sys, time
from pathlib import Path
from himach.io.store.store import Store
store = Store(sys.argv[1], read_only=sys.argv[2] == "read")

def resident(name):
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024

before = resident("VmRSS")
start = time.perf_counter()
dataset = store.dataset("/small", create=False)
took = time.perf_counter() - start
after, peak = resident("VmRSS"), resident("VmHWM")
facts = dataset.facts()
print(took, after - before, facts["memory"], facts["alien"], peak - before)
"""


def open_small(place: Path, how: str) -> list[float]:
    """Open in a process of its own: seconds, bytes resident, bytes of index, frames, bytes at the peak."""
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(place), how],
        check=True,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    return [float(word) for word in done.stdout.split()]


def bench_small(place: Path, repeats: int, n_frames: int) -> None:
    """Many small frames: opening by index and by rescan, and the memory that the index takes."""
    dataset = Store(place).dataset("/small")
    positions = np.zeros((SMALL_ATOMS, 3), dtype=np.float32)
    writer = dataset._handle.open_writer(bodhi.ALIEN)
    start = time.perf_counter()
    for number in range(n_frames):
        writer.append(number, 0.0, positions, None, None, None)
    writer.close()
    written = time.perf_counter() - start
    report(
        f"{n_frames / 1e6:g} million small frames: written from Python",
        f"{n_frames / written / 1e6:.2f} M frames/s",
        "none",
    )
    opened = [open_small(place, "read") for _ in range(max(repeats, 3))]
    if any(each[3] != n_frames for each in opened):
        raise AssertionError("frames of the benchmark are missing")
    resident, index, peak = (statistics.median(each[i] for each in opened) / n_frames for i in (1, 2, 4))
    report("small frames: open from the index", f"{statistics.median(each[0] for each in opened):.2f} s", "1 s")
    report(
        "small frames: memory a frame (index; resident; peak)",
        f"{index:.1f}; {resident:.1f}; {peak:.1f} bytes",
        "40 bytes",
    )
    for path in dataset.path.glob("*.idx"):
        path.unlink()
    forget(segments_of(dataset))
    took, _, _, frames, _ = open_small(place, "read")
    if frames != n_frames:
        raise AssertionError("frames of the benchmark are missing after a rescan")
    report("small frames: open by rescan, page cache dropped", f"{took:.1f} s", "60 s")
    report("small frames: rescan and rebuilding of the indexes", f"{open_small(place, 'write')[0]:.1f} s", "60 s")


def main(repeats: int = 5, directory: str | os.PathLike[str] | None = None, small_frames: int = SMALL_FRAMES) -> None:
    """Run the benchmark.

    Parameters
    ----------
    repeats
        Number of runs behind each median.
    directory
        Scratch directory on the disk to measure; None for ``/var/tmp``. It needs 3 GB.
    small_frames
        Number of small frames.
    """
    from himach.bench.mixed import bench_mixed  # which uses this module

    base = Path(directory) if directory is not None else Path("/var/tmp")
    free = shutil.disk_usage(base).free
    if free < 4 << 30:
        print(f"cannot be measured here: {base} has {free >> 20} MiB free and 4096 MiB are needed")
        return
    place = Path(tempfile.mkdtemp(prefix="himach-bench-", dir=base))
    try:
        dataset = fill(place / "frames", N_FRAMES)
        bench_warm(dataset, repeats)
        bench_cold(dataset, repeats)
        bench_mixed(dataset, repeats)
        shutil.rmtree(place / "frames")
        bench_small(place / "small", repeats, small_frames)
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--directory", default=None)
    parser.add_argument("--small-frames", type=int, default=SMALL_FRAMES)
    options = parser.parse_args()
    main(options.repeats, options.directory, options.small_frames)
