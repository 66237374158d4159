"""`Clock`: times of the phases of a pass on this rank. `FrameCosts`: times of its frames.

`RankTimes` has what a rank reports of both to the others, for the record.
"""

import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TypeVar

import numpy as np

T = TypeVar("T")

#: Of tasks of light frames, the first, second, fourth, ... are timed frame by frame, up to a distance of this many
#: tasks, then one in this many. A frame is light below `LIGHT_FRAME_SECONDS`.
LIGHT_FRAMES_PER_SAMPLE = 64
LIGHT_FRAME_SECONDS = 1e-4
#: Most frame times kept; beyond it, every second one is dropped.
MAX_FRAME_TIMES = 4096
#: Number of quantiles that describe a distribution, minimum and maximum included.
QUANTILES = 33


class Clock:
    """Adds up seconds by phase."""

    def __init__(self) -> None:
        self.seconds = {"map": 0.0, "shuffle": 0.0, "reduce": 0.0}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Add the time spent inside to `phase`."""
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += perf_counter() - start


@dataclass(frozen=True)
class RankTimes:
    """Counts and times (seconds) of one rank in a pass."""

    frames: int
    pairs: int
    keys: int
    busy: float
    cpu: float
    read: float
    compute: float
    quantiles: list[float]  # of the times in map(), ascending; empty if no frame was timed
    shuffle: float
    reduce: float
    sent: int  # bytes to other ranks


class FrameCosts:
    """Times some frames of this rank: the read, and the time from there to the request for the next frame."""

    def __init__(self) -> None:
        self.frames = 0
        self.busy = self.cpu = 0.0
        self._sampled = 0
        self._read = self._compute = 0.0
        self._task, self._due = 0, 1
        self._times = array("d")
        self._every = 1

    @contextmanager
    def all_tasks(self) -> Iterator[None]:
        """Time what runs inside: all tasks of this rank."""
        start, cpu = perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.busy, self.cpu = perf_counter() - start, time.process_time() - cpu

    def watch(self, frames: Iterator[T], count: int) -> Iterator[T]:
        """Yield the `count` frames of a task; if frames are light, most tasks are not timed."""
        self.frames += count
        self._task += 1
        if self._task == self._due:
            self._due += min(self._due, LIGHT_FRAMES_PER_SAMPLE)
        elif self._read + self._compute <= LIGHT_FRAME_SECONDS * self._sampled:
            return frames
        return self._time_frames(frames)

    def _time_frames(self, frames: Iterator[T]) -> Iterator[T]:
        requested = perf_counter()
        for frame in frames:
            received = perf_counter()
            yield frame
            done = perf_counter()
            self._read += received - requested
            self._compute += done - received
            if self._sampled % self._every == 0:
                self._keep(done - received)
            self._sampled += 1
            requested = perf_counter()

    def _keep(self, seconds: float) -> None:
        self._times.append(seconds)
        if len(self._times) >= MAX_FRAME_TIMES:
            self._times = self._times[::2]
            self._every *= 2

    def of_rank(self, clock: Clock, pairs: int, keys: int, sent: int) -> RankTimes:
        """Return this rank's report."""
        quantiles = time_quantiles(self._times)
        sampled = max(1, self._sampled)
        seconds = clock.seconds
        return RankTimes(
            *(self.frames, pairs, keys, self.busy, self.cpu, self._read / sampled, self._compute / sampled),
            *(quantiles, seconds["shuffle"], seconds["reduce"], sent),
        )


def time_quantiles(times: Sequence[float]) -> list[float]:
    """Return `QUANTILES` ascending quantiles of times; an empty list if there are none.

    They equal those of numpy.quantile(), whose import of numpy.ma takes noticeable time in a short run.
    """
    if not times:
        return []
    places = np.linspace(0, len(times) - 1, QUANTILES)
    return list(np.interp(places, np.arange(len(times)), np.sort(times)).tolist())
