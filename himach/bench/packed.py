"""Benchmark of packed frames: size beside the XTC's, decoding, runs from a cold disk.

`main` prints one line a figure with its bar. Ratios are medians within one run, both sides in turns over the same
frames. Rates count bytes of positions (12 an atom) and one core's time.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from himach.bench.adk import adk
from himach.bench.cache import forget, report
from himach.bench.runs import run_once
from himach.io.store import packed
from himach.io.store.store import Dataset, Store
from himach.io.trajectory.origin import open_origin

__all__ = ["main"]

Vectors = npt.NDArray[np.float32]

AT_ONCE = 50  # frames that are decoded from memory
BLOCK_ATOMS = 4096
SPARE_BYTES = 1 << 30
SCRIPT = """
import himach

class Sums(himach.Analysis):
    def map(self, frame):
        yield frame.number, float(frame.positions.sum())

    def reduce(self, key, series):
        return series.values[0]

    def finish(self, results):
        return {"sums": {"frame": list(results), "sum": list(results.values())}}
"""


def main(
    frames: int = 1000,
    repeats: int = 5,
    trajectory: str | os.PathLike[str] | None = None,
    directory: str | os.PathLike[str] | None = None,
) -> None:
    """Run the benchmark.

    Parameters
    ----------
    frames
        Frames of AdK (47,681 atoms) at most.
    repeats
        Number of turns behind each median.
    trajectory
        A further XTC trajectory, whose size and decoding are measured too; None for AdK alone.
    directory
        Scratch directory on the disk to measure; None for ``/var/tmp``.
    """
    base = Path(directory) if directory is not None else Path("/var/tmp")
    needed = 2 * frames * 47_681 * 12 + SPARE_BYTES
    free = shutil.disk_usage(base).free
    if free < needed:
        print(f"cannot be measured here: {base} has {free >> 20} MiB free and {needed >> 20} MiB are needed")
        return
    topology, path = adk(frames)
    place = Path(tempfile.mkdtemp(prefix="himach-bench-", dir=base))
    try:
        for name, xtc in {
            "AdK": path,
            **({} if trajectory is None else {Path(trajectory).stem: Path(trajectory)}),
        }.items():
            bench_frames(name, xtc, place, frames, repeats)
        bench_cold_runs(topology, path, place, frames, repeats)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def bench_frames(name: str, xtc: Path, place: Path, most: int, repeats: int) -> None:
    """Compare sizes; time packing, decoding, and reading from the page cache."""
    origin = open_origin([xtc])
    n = min(most, origin.n_frames)
    datasets = {
        way: Store(place / f"{name}-{way}").dataset("/bench", packed=way == "packed") for way in ("packed", "raw")
    }
    positions: list[Vectors] = []
    for frame in origin.read(np.arange(n)):
        for dataset in datasets.values():
            dataset.write(frame.number, frame.time, frame.box, frame.positions)
        if len(positions) < AT_ONCE:
            positions.append(frame.positions.copy())
    for dataset in datasets.values():
        dataset.close()
    places = datasets["packed"]._handle.locate(np.arange(n, dtype=np.int64))
    size = sum(found[3] for found in places if found is not None)
    xtc_size = origin.nbytes(range(n))
    report(f"{name}: packed frames against the XTC", f"{size / xtc_size:.2f} times", "1.15 times")
    report(f"{name}: packed frames against raw positions", f"{size / (n * positions[0].nbytes):.3f}", "none")
    bench_memory(name, positions, repeats)
    bench_store(name, datasets, n, n * positions[0].nbytes, repeats)
    for way in datasets:
        shutil.rmtree(place / f"{name}-{way}")


def bench_memory(name: str, positions: list[Vectors], repeats: int) -> None:
    """Pack and decode in memory, beside copying the positions."""
    packer = packed.Packer()
    blocks = [packer.pack(frame, BLOCK_ATOMS) for frame in positions]
    out = np.empty_like(positions[0])

    def pack() -> None:
        for frame in positions:
            packer.pack(frame, BLOCK_ATOMS)

    def decode() -> None:
        for frame in blocks:
            for i, block in enumerate(frame or ()):
                packed.unpack(block, out[i * BLOCK_ATOMS : (i + 1) * BLOCK_ATOMS])

    def copy() -> None:
        for frame in positions:
            np.copyto(out, frame)

    nbytes = sum(frame.nbytes for frame in positions)
    decode()
    if not np.array_equal(out.view(np.uint32), positions[-1].view(np.uint32)):
        raise AssertionError("packed positions of the benchmark are not what was packed")
    rate = {work.__name__: nbytes / core_seconds(work, 3 * repeats) / 1e9 for work in (copy, decode, pack)}
    report(f"{name}: copying positions, one core", f"{rate['copy']:.1f} GB/s", "the limit")
    report(f"{name}: decoding in memory ({packed.way()}), one core", f"{rate['decode']:.1f} GB/s", "6 GB/s")
    report(f"{name}: packing and checking, one core", f"{rate['pack']:.1f} GB/s", "none")


def bench_store(name: str, datasets: dict[str, Dataset], n: int, nbytes: int, repeats: int) -> None:
    """Read all frames from the page cache, checksums on."""
    seconds: dict[str, list[float]] = {way: [] for way in datasets}
    for turn in range(repeats + 1):
        for way, dataset in datasets.items():
            taken = core_seconds(lambda dataset=dataset: read_all(dataset, n), 1)  # type: ignore[misc]
            if turn:
                seconds[way].append(taken)
    for way, values in seconds.items():
        bar = "6 GB/s" if way == "packed" else "none"
        report(
            f"{name}: {way} frames from the page cache, one core",
            f"{nbytes / statistics.median(values) / 1e9:.1f} GB/s",
            bar,
        )


def bench_cold_runs(topology: Path, trajectory: Path, place: Path, frames: int, repeats: int) -> None:
    """Run an analysis that reads every atom, page cache of the store dropped, packed beside raw."""
    stores = {way: place / f"run-{way}" for way in ("packed", "raw")}
    script = place / "sums.py"
    script.write_text(SCRIPT)
    words = [sys.executable, "-P", "-m", "himach", "run", str(script), "--trajectory", str(trajectory)]
    words += ["--topology", str(topology), "-n", "2", "--quiet"]
    for way, store in stores.items():
        run_once(words, str(store), place / "out", "sums")
        if way == "raw":
            rewrite_raw(store)
    paths = {way: sorted(store.glob("*/*.seg")) for way, store in stores.items()}
    turns = []
    for _ in range(max(repeats, 3)):
        turn = {}
        for way, store in stores.items():
            forget(paths[way])
            turn[way] = run_once(words, str(store), place / "out", "sums")
        if turn["packed"]["table"] != turn["raw"]["table"]:
            raise AssertionError("outcomes from packed and raw frames differ")
        turns.append(turn)
    title = f"all atoms of {frames} AdK frames, 2 ranks, cold disk, packed against raw"
    mapped = statistics.median(turn["raw"]["seconds"]["map"] / turn["packed"]["seconds"]["map"] for turn in turns)
    whole = statistics.median(turn["raw"]["wall"] / turn["packed"]["wall"] for turn in turns)
    report(f"{title}: map phase", f"{mapped:.1f} times as fast", "2 times")
    report(f"{title}: whole run", f"{whole:.1f} times as fast", "none")


def rewrite_raw(place: Path) -> None:
    """Replace what a run has kept in a store by the same frames raw."""
    (directory,) = Store(place).directories()
    held = Store(place).open_directory(directory)
    raw = Store(place).dataset(held.name, held.generation, packed=False)
    numbers = np.array(sorted(held.alien), dtype=np.int64)
    old = {segment["id"] for segment in held.segments()}
    for frame in held.read(numbers):
        if frame is None:
            raise AssertionError("a frame of the benchmark was a miss")
        raw.write(frame.number, frame.time, frame.box, frame.positions, frame.velocities, frame.forces, native=True)
    raw.close()
    for segment in old:
        held.evict(segment)


def read_all(dataset: Dataset, n: int) -> None:
    """Read every frame; a miss is an error of the benchmark."""
    missed = sum(frame is None for frame in dataset.read(np.arange(n)))
    if missed:
        raise AssertionError(f"{missed} frames of the benchmark were misses")


def core_seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the median time that `work` takes of this process's core: others on the machine do not count."""
    seconds = []
    for _ in range(repeats):
        begun = time.process_time()
        work()
        seconds.append(time.process_time() - begun)
    return statistics.median(seconds)
