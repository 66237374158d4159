"""``himach bench layout``: few atoms of all frames, from the time-major form beside frame by frame.

One line a figure, with its bar. Both sides read the same atoms of the same frames of one store, in turns, the page
cache of its files dropped before each, and what they give is compared. Bytes are those that the disk gave to this
process (``/proc/self/io``); needed are 12 an atom and frame.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import click
import numpy as np
import numpy.typing as npt

from himach.frame import POSITIONS, Needs
from himach.io.dataset.lookup import dataset_name
from himach.io.dataset.source import Source
from himach.io.store.store import Dataset, Store
from himach.io.timemajor.form import open_form
from himach.io.trajectory.origin import Origin, open_origin

from ..harness.data import FRAME_BYTES, adk
from ..harness.disk import forget
from ..harness.figures import report
from ..harness.interleave import call_in_turn, checked, scratch
from ..harness.options import DIRECTORY, beside, repeats
from .runs import HIMACH

__all__ = ["main"]

ASKED = 10
TASK = 512  # frames that a rank takes at once
VECTOR_BYTES = 12

Vectors = npt.NDArray[np.float32]
Atoms = npt.NDArray[np.int64]


@click.option("--frames", type=click.IntRange(min=10), default=10_000, show_default=True, help="Frames of AdK.")
@repeats(5)
@DIRECTORY
@beside("layout")
def main(frames: int, repeats: int, directory: Path | None) -> None:
    """Read few atoms of all frames from a cold disk, time-major beside frame by frame."""
    with scratch(directory, 2 * frames * FRAME_BYTES // 2 + (1 << 30)) as place:
        topology, trajectory = adk(frames)
        stage = [*HIMACH, "stage", str(trajectory), "-s", str(topology), "--cache", str(place), "--quiet"]
        checked(stage)
        began = time.perf_counter()
        checked([*stage, "--layout", "both"])
        made = time.perf_counter() - began
        origin = open_origin([trajectory])
        held, form = _sizes(place, dataset_name([trajectory]))
        report(f"AdK, {frames} frames: the time-major form against the frames", f"{form / held:.2f} times the bytes")
        report("making it, one process", f"{made:.0f} s, {frames * FRAME_BYTES / made / 1e6:.0f} MB/s of positions")
        for name, atoms in _asked(origin.n_atoms).items():
            _measure(name, atoms, origin, place, dataset_name([trajectory]), repeats)


def _asked(n_atoms: int) -> dict[str, Atoms]:
    scattered = np.random.default_rng(2026).choice(n_atoms, ASKED, replace=False)
    return {
        f"{ASKED} neighbouring atoms": np.arange(n_atoms // 3, n_atoms // 3 + ASKED, dtype=np.int64),
        f"{ASKED} scattered atoms": np.sort(scattered).astype(np.int64),
    }


def _sizes(place: Path, name: str) -> tuple[int, int]:
    """Return the bytes of the frames and of their time-major form."""
    dataset = _open(place, name)
    form = open_form(dataset)
    if form is None:
        raise AssertionError("the benchmark's dataset has no time-major form")
    return dataset.facts()["bytes"], form.dataset.facts()["bytes"]


def _open(place: Path, name: str) -> Dataset:
    store = Store(place)
    (generation,) = store.generations(name)
    return store.dataset(name, generation, create=False)


def _measure(name: str, atoms: Atoms, origin: Origin, place: Path, dataset: str, repeats: int) -> None:
    """Read some atoms both ways, in turns, from the disk; from the page cache, too."""
    found: dict[str, list[tuple[Vectors, int, int]]] = {"time-major": [], "frame-major": []}

    def read(way: str) -> None:
        before = _from_disk()
        given, nbytes = _read(_open(place, dataset), origin, atoms, tracks=way == "time-major")
        found[way].append((given, nbytes, _from_disk() - before))

    works: dict[str, Callable[[], object]] = {way: partial(read, way) for way in found}
    files = [path for path in place.glob("*/*") if path.is_file()]
    cold = call_in_turn(works, max(repeats, 3), before=lambda: forget(files))
    first = found["frame-major"][0][0]
    if any(not np.array_equal(given.view(np.uint8), first.view(np.uint8)) for of in found.values() for given, *_ in of):
        raise AssertionError("what is read from the time-major form is not what the frames have")
    disk = {way: median(one[2] for one in of) for way, of in found.items()}
    records = {way: median(one[1] for one in of) for way, of in found.items()}
    warm = call_in_turn(works, max(repeats, 3))
    needed = origin.n_frames * len(atoms) * VECTOR_BYTES
    title = f"{name} of {origin.n_frames} frames"
    faster = cold["frame-major"] / cold["time-major"]
    seconds = f"{cold['time-major']:.3f} s against {cold['frame-major']:.3f} s"
    report(f"{title}, cold disk, time-major against frame-major", f"{faster:.1f} times as fast ({seconds})", "10 times")
    times = f"{disk['time-major'] / needed:.2f} times ({disk['time-major'] / 1e6:.2f} MB)"
    report(f"{title}, cold disk, bytes read against bytes needed", times, "6 times")
    report(f"{title}, cold disk, the same frame-major", f"{disk['frame-major'] / needed:.0f} times")
    report(f"{title}, bytes of records against bytes needed", f"{records['time-major'] / needed:.2f} times")
    report(f"{title}, page cache", f"{warm['frame-major'] / warm['time-major']:.1f} times as fast")


def _read(dataset: Dataset, origin: Origin, atoms: Atoms, *, tracks: bool) -> tuple[Vectors, int]:
    """Read atoms of all frames as a rank does, task by task; return them and the bytes of records."""
    given = np.empty((origin.n_frames, len(atoms), 3), dtype=np.float32)
    together = int(atoms[-1] - atoms[0]) + 1 == len(atoms)
    rows = slice(int(atoms[0]), int(atoms[-1]) + 1) if together else atoms
    source = Source(origin, dataset, needs=Needs(atoms, POSITIONS), tracks=tracks)
    for begin in range(0, origin.n_frames, TASK):
        for frame in source.read(np.arange(begin, min(origin.n_frames, begin + TASK))):
            given[frame.number] = frame.positions[rows]
    if source.bytes_origin:
        raise AssertionError("frames of the benchmark were not in the store")
    return given, source.bytes_cache


def _from_disk() -> int:
    """Return the bytes that this process has had read from disks."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["read_bytes"])
