"""The shuffle from emission to reduce(), beside a stable argsort of the same columns by numpy.

``himach bench shuffle`` starts the ranks itself and prints pairs per second of all ranks together, of pairs with values
(an int64 key at random of 100,000 and a float32 value, 1,000 a frame) and of presence (1,000 of 10,000 keys a frame at
random), made before the clock starts. ``himach bench spill`` sends both through little memory, once. Frames are dealt
round-robin, so that ranks overlap in time as much as can be.
"""

from __future__ import annotations

import resource
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.analysis import Analysis, Pairs
from himach.engine import Memory, Passed, run_pass
from himach.frame import Frame, RawFrame
from himach.io.store.sizes import show_size
from himach.parallel.communicator import Communicator
from himach.parallel.spawn import launch
from himach.runner.memory import scratch_directory

__all__ = ["main", "peer", "shuffle", "spill"]

KEYS = 100_000
PRESENT = 10_000
PER_FRAME = 1_000
TASK = 50  # frames
MADE = 1_000  # frames whose pairs are made, and then used over and over

Columns = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32] | None]


class Emitter(Analysis):
    """Yields columns made before, 1,000 pairs a frame."""

    columns: Any = None

    def __init__(self, columns: Columns) -> None:
        self.columns = columns

    @classmethod
    def parameters(cls) -> dict[str, Any]:
        """Return none: the columns are no parameter."""
        return {}

    def map(self, frame: Frame) -> Any:
        """Yield the frame's part of the columns."""
        keys, values = self.columns
        start = frame.step * PER_FRAME % len(keys)
        rows = slice(start, start + PER_FRAME)
        yield Pairs(keys[rows], None if values is None else values[rows])


class LastValue(Emitter):
    """Looks at the values of a key."""

    def reduce(self, key: int, series: Any) -> float:
        """Return the last value."""
        return float(series.values[-1])


class LastStep(Emitter):
    """Looks at the frames of a key."""

    def reduce(self, key: int, series: Any) -> int:
        """Return the last step."""
        return int(series.steps[-1])


def shuffle(comm: Communicator, analyses: list[Analysis], frames: int, memory: Memory | None) -> tuple[float, Passed]:
    """Return the seconds of one pass over `frames` frames (collective), and what it gave."""
    positions = np.zeros((1, 3), dtype=np.float32)
    own = np.arange(comm.rank, frames, comm.size)
    tasks = iter(range(0, len(own), TASK))

    def take() -> npt.NDArray[np.int64] | None:
        start = next(tasks, None)
        return None if start is None else own[start : start + TASK]

    def bind(raw: RawFrame, step: int) -> Frame:
        return Frame(raw.number, step, raw.time, raw.positions, None, None, None, None)

    comm.barrier()
    start = perf_counter()
    passed = run_pass(
        comm,
        [[analysis] for analysis in analyses],
        range(frames),
        take,
        lambda numbers: (RawFrame(number, float(number), positions) for number in numbers.tolist()),
        [bind] * len(analyses),
        lambda done: None,
        memory=memory,
    )
    seconds = perf_counter() - start
    if passed.pairs != frames * PER_FRAME * len(analyses):
        raise AssertionError(f"{passed.pairs} pairs came of {frames} frames")
    return max(comm.allgather(seconds)), passed


def peer(columns: Columns) -> float:
    """Return the seconds that numpy takes to order the columns by key, stably."""
    keys, values = columns
    start = perf_counter()
    order = np.argsort(keys, kind="stable")
    keys.take(order)
    if values is not None:
        values.take(order)
    return perf_counter() - start


def valued(frames: int, seed: int) -> Columns:
    """Return the pairs of some frames, each a key and a value."""
    rng = np.random.default_rng(seed)
    n = frames * PER_FRAME
    return rng.integers(0, KEYS, n), rng.random(n, dtype=np.float32)


def present(frames: int, seed: int) -> Columns:
    """Return the keys that are present at some frames, ascending in each."""
    rng = np.random.default_rng(seed)
    chosen = [np.sort(rng.choice(PRESENT, PER_FRAME, replace=False)) for _ in range(frames)]
    return np.concatenate(chosen), None


KINDS: dict[str, tuple[Any, Any]] = {"with values": (LastValue, valued), "presence": (LastStep, present)}


def _measure(pairs: int, repetitions: int) -> None:
    """Measure as one of the ranks; rank 0 prints."""
    from himach.parallel.mpi import connect

    comm = connect().comm
    frames = pairs // PER_FRAME
    for what, (analysis, columns) in KINDS.items():
        made = columns(min(frames, MADE), comm.rank)
        runs = [shuffle(comm, [analysis(made)], frames, None) for _ in range(repetitions)]
        if comm.rank == 0:
            _tell(what, comm.size, frames, runs, columns)
        comm.barrier()


def _tell(what: str, ranks: int, frames: int, runs: list[tuple[float, Passed]], columns: Any) -> None:
    rates = [frames * PER_FRAME / seconds / 1e6 for seconds, _ in runs]
    phases = {name: median(passed.seconds[name] for _, passed in runs) for name in runs[0][1].seconds}
    print(f"{what}: {median(rates):.1f} million pairs/s on {ranks} ranks ({min(rates):.1f} to {max(rates):.1f})")
    print(f"  of which {', '.join(f'{name} {seconds:.2f} s' for name, seconds in phases.items())} (slowest rank)")
    sample = columns(min(frames, 5 * MADE), 1)
    peers = [len(sample[0]) / peer(sample) / 1e6 for _ in runs]
    print(f"  numpy, 1 process: {median(peers):.1f} million pairs/s (stable argsort, takes; {len(sample[0]):,} pairs)")


def _spill(what: str, pairs: int, limit: int) -> None:
    """Send pairs through `limit` bytes as one of the ranks; rank 0 prints."""
    from himach.parallel.mpi import connect

    world = connect()
    comm = world.comm
    analysis, columns = KINDS[what]
    made = columns(MADE, comm.rank)
    memory = Memory(limit // world.node.size, scratch_directory())
    before = sum(comm.allgather(_peak()))
    seconds, passed = shuffle(comm, [analysis(made)], pairs // PER_FRAME, memory)
    peak = sum(comm.allgather(_peak()))
    if comm.rank == 0:
        rate = passed.pairs / seconds / 1e6
        print(f"{what}: {passed.pairs:,} pairs in {seconds:.0f} s, {rate:.1f} million pairs/s on {comm.size} ranks")
        print(f"  {show_size(passed.spilled)} went to {memory.directory}")
        print(f"  peak memory of all ranks {show_size(peak)}, {show_size(before)} before the first pair")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(pairs: int = 50_000_000, ranks: int = 2, repetitions: int = 3) -> None:
    """Measure the shuffle from emission to reduce() on ranks that are started on this machine."""
    _start("measure", ranks, pairs, repetitions)


def spill(presence: int, values: int, ranks: int, memory: int) -> None:
    """Send pairs through `memory` bytes on ranks that are started on this machine, each kind on ranks of its own."""
    _start("spill", ranks, "presence", presence, memory)
    _start("spill", ranks, "with values", values, memory)


def _start(what: str, ranks: int, *words: object) -> None:
    command = [sys.executable, "-P", "-m", "himach.bench.shuffle", what, *map(str, words)]
    with tempfile.TemporaryDirectory(prefix="himach-bench-") as folder:
        launch(command, ranks, Path(folder))


if __name__ == "__main__":
    if sys.argv[1] == "measure":
        _measure(*map(int, sys.argv[2:]))
    else:
        _spill(sys.argv[2], *map(int, sys.argv[3:]))
