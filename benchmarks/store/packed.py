"""``himach bench packed``: packed frames' size beside the XTC's, decoding, runs from a cold disk.

One line a figure, with its bar. Ratios are medians within one run, both sides in turns over the same frames. Rates
count bytes of positions (12 an atom) and one core's time, which others on the machine do not lengthen.
"""

import shutil
import time
from pathlib import Path
from statistics import median

import click
import numpy as np

from himach.errors import HimachError
from himach.io.store.store import Store
from himach.io.trajectories.origin import open_origin

from .. import FOLDER
from ..harness.data import FRAME_BYTES, adk
from ..harness.disk import forget
from ..harness.figures import report
from ..harness.interleave import call_in_turn, scratch
from ..harness.options import DIRECTORY, beside, repeats
from .frames import read
from .runs import RANKS, held, run_once

__all__ = ["main"]

MOST_RUNS = 50  # until all frames are kept
WAYS = ("packed", "raw")


@click.option("--frames", type=click.IntRange(min=10), default=1000, show_default=True, help="Frames of AdK.")
@click.option("--trajectory", metavar="PATH", help="A further XTC trajectory to pack.")
@repeats(5)
@DIRECTORY
@beside("packed")
def main(frames: int, repeats: int, trajectory: str | None, directory: Path | None) -> None:
    """Measure packed frames beside the XTC, and beside raw frames from the page cache and a cold disk."""
    with scratch(directory, 2 * frames * FRAME_BYTES + (1 << 30)) as place:
        topology, path = adk(frames)
        for xtc in [path, *([Path(trajectory)] if trajectory else [])]:
            _frames("AdK" if xtc == path else xtc.stem, xtc, place, frames, repeats)
        _cold_runs(topology, path, place, frames, repeats)


def _frames(name: str, xtc: Path, place: Path, most: int, repeats: int) -> None:
    """Compare sizes; time reading from the page cache."""
    origin = open_origin([xtc])
    n = min(most, origin.n_frames)
    datasets = {way: Store(place / f"{name}-{way}").dataset("bench", packed=way == "packed") for way in WAYS}
    nbytes = 0
    for frame in origin.read(np.arange(n)):
        for dataset in datasets.values():
            dataset.write(frame.number, frame.time, frame.box, frame.positions)
        nbytes += frame.positions.nbytes
    for dataset in datasets.values():
        dataset.close()
    size = datasets["packed"].places(np.arange(n))["length"].sum()
    report(f"{name}: packed frames against the XTC", f"{size / origin.nbytes(range(n)):.2f} times", "1.15 times")
    report(f"{name}: packed frames against raw positions", f"{size / nbytes:.3f}")
    works = {way: lambda dataset=dataset: read(dataset, n) for way, dataset in datasets.items()}
    call_in_turn(works, 1)
    for way, took in call_in_turn(works, repeats, clock=time.process_time).items():
        what = f"{name}: {way} frames from the page cache, one core"
        report(what, f"{nbytes / took / 1e9:.1f} GB/s", "6 GB/s" if way == "packed" else "none")
    for way in WAYS:
        shutil.rmtree(place / f"{name}-{way}")


def _cold_runs(topology: Path, trajectory: Path, place: Path, frames: int, repeats: int) -> None:
    """Run an analysis that reads every atom, page cache of the store dropped, packed beside raw."""
    stores = {way: place / f"run-{way}" for way in WAYS}
    words = [str(FOLDER / "analyses" / "sums.py"), "--trajectory", str(trajectory), "--topology", str(topology)]
    for store in stores.values():
        # A run keeps what it has time for, the next one more.
        for _ in range(MOST_RUNS):
            run_once(words, str(store), place / "out", "sums")
            if held(store) == frames:
                break
        else:
            raise HimachError(f"{held(store)} of {frames} frames were kept by {MOST_RUNS} runs")
    _rewrite_raw(stores["raw"])
    turns = []
    for _ in range(max(repeats, 3)):
        turn = []
        for store in stores.values():
            forget(list(store.glob("*/*.seg")))
            turn.append(run_once(words, str(store), place / "out", "sums"))
        if turn[0]["table"] != turn[1]["table"]:
            raise AssertionError("outcomes from packed and raw frames differ")
        turns.append(turn)
    title = f"all atoms of {frames} AdK frames, {RANKS} ranks, cold disk, packed against raw"
    mapped = median(raw["seconds"]["map"] / packed["seconds"]["map"] for packed, raw in turns)
    whole = median(raw["wall"] / packed["wall"] for packed, raw in turns)
    report(f"{title}: map phase", f"{mapped:.1f} times as fast", "2 times")
    report(f"{title}: whole run", f"{whole:.1f} times as fast")


def _rewrite_raw(place: Path) -> None:
    """Replace what a run has kept in a store by the same frames raw."""
    (directory,) = Store(place).directories()
    there = Store(place).open_directory(directory)
    raw = Store(place).dataset(there.name, there.generation, packed=False)
    numbers = np.array(sorted(there.alien), dtype=np.int64)
    old = {segment["id"] for segment in there.segments()}
    for frame in there.read(numbers):
        if frame is None:
            raise AssertionError("a frame of the benchmark was a miss")
        raw.write(frame.number, frame.time, frame.box, frame.positions, frame.velocities, frame.forces, native=True)
    raw.close()
    del frame  # its arrays keep the segment in use
    for segment in old:
        there.evict(segment)
