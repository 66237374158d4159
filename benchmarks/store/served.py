"""Frames read through the server of a store, beside the same read directly: all atoms and some, warm and cold."""

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from himach.io.frame_source import ReadOptions
from himach.io.server import control
from himach.io.server.client import find
from himach.io.store import bodhi
from himach.io.store.cached_frames import CachedFrames

from ..harness.disk import forget
from ..harness.figures import report
from ..harness.interleave import call_in_turn
from .frames import N_ATOMS, N_FRAMES, fill, segments_of

__all__ = ["server"]

TASK_FRAMES = 150  # read at once: what a run of two ranks makes of so many frames


def server(place: Path, repeats: int) -> None:
    """Read every frame of a store in tasks, in turns with the same through its server; print the ratios."""
    dataset = fill(place / "served")
    paths = segments_of(dataset)
    control.start(dataset.store.path)
    try:
        client = find(dataset.store.path)
        assert client is not None
        client.open(dataset.name)
        some = np.arange(N_ATOMS // 3, N_ATOMS // 3 + N_ATOMS // 10)
        for atoms, what in ((None, "all atoms"), (some, "a tenth of the atoms")):
            tasks = [np.arange(first, min(first + TASK_FRAMES, N_FRAMES)) for first in range(0, N_FRAMES, TASK_FRAMES)]
            passes = {
                "directly": partial(_read, dataset, tasks, atoms),
                "by the server": partial(_read, client, tasks, atoms),
            }
            call_in_turn(passes, 1)
            # Task by task, so that few are hit by what else the machine does; neither reads what the other just read.
            half = len(tasks) // 2
            single = {
                "directly": partial(_read_next, dataset, itertools.cycle(tasks), atoms),
                "by the server": partial(_read_next, client, itertools.cycle(tasks[half:] + tasks[:half]), atoms),
            }
            warm = call_in_turn(single, max(100 * repeats, 300))
            cold = call_in_turn(passes, max(repeats, 5), before=lambda: forget(paths))
            for name, took in (("warm", warm), ("cold", cold)):
                report(f"through the server, {name}, {what}", f"{took['directly'] / took['by the server']:.1%}", "95 %")
    finally:
        control.stop(dataset.store.path)


def _read(frames: CachedFrames, tasks: Sequence[npt.NDArray[np.int64]], atoms: npt.NDArray[np.int64] | None) -> None:
    """Read tasks one after another; a miss is an error of the benchmark."""
    fields = 0 if atoms is None else bodhi.POSITIONS
    missed = sum(frame is None for task in tasks for frame in frames.read(task, ReadOptions(atoms, fields)))
    if missed:
        raise AssertionError(f"{missed} frames of the benchmark were misses")


def _read_next(
    frames: CachedFrames, tasks: Iterator[npt.NDArray[np.int64]], atoms: npt.NDArray[np.int64] | None
) -> None:
    _read(frames, [next(tasks)], atoms)
