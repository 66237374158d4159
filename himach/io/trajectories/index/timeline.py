"""Times of all frames of a file: `Timeline`, and its kinds.

`EvenTimeline` computes times, `ListedTimeline` holds them, `BetweenTimeline` interpolates them.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.selection import Selected, numbers_at

Times = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

#: Frames per chunk when all times are compared.
CHUNK_FRAMES = 1 << 16


def tolerance(time: Any) -> Any:
    """Return the largest difference of equal times after float32, ps; an array for an array."""
    return 2.4e-7 * np.abs(time) + 1e-9


class Timeline(ABC):
    """Times (ps) of `n_frames` frames by their number."""

    n_frames: int

    def __len__(self) -> int:
        return self.n_frames

    @abstractmethod
    def at(self, numbers: Numbers) -> Times:
        """Return the times of frames, float64 (n,)."""

    def __getitem__(self, number: int) -> float:
        """Return the time of one frame."""
        return float(self.at(np.array([number]))[0])

    @abstractmethod
    def back(self) -> int | None:
        """Return the first frame whose time is before its predecessor's; None if there is none."""


class EvenTimeline(Timeline):
    """Times ``(number + shift) * step + offset``, rounded in this order."""

    def __init__(self, n_frames: int, step: float, shift: float = 0.0, offset: float = 0.0) -> None:
        self.n_frames = n_frames
        self.step, self.shift, self.offset = step, shift, offset

    def __getitem__(self, number: int) -> float:
        return (float(number) + self.shift) * self.step + self.offset

    def at(self, numbers: Numbers) -> Times:
        """Compute the times."""
        times: Times = (np.asarray(numbers, dtype=np.float64) + self.shift) * self.step + self.offset
        return times

    def back(self) -> int | None:
        """Return it by the first two frames."""
        return 1 if self.n_frames > 1 and self[1] < self[0] - tolerance(self[0]) else None


class ListedTimeline(Timeline):
    """Times in an array of this process."""

    def __init__(self, times: Times) -> None:
        self._times, self.n_frames = times, len(times)

    def __getitem__(self, number: int) -> float:
        return float(self._times[number])

    def at(self, numbers: Numbers) -> Times:
        """Look up the times."""
        return self._times[numbers]

    def back(self) -> int | None:
        """Compare all times."""
        back = np.flatnonzero(np.diff(self._times) < -tolerance(self._times[:-1]))
        return int(back[0]) + 1 if len(back) else None


class BetweenTimeline(Timeline):
    """Times of all frames, linearly interpolated between those of some."""

    def __init__(self, n_frames: int, numbers: Sequence[int], times: Sequence[float]) -> None:
        self.n_frames, self._numbers, self._times = n_frames, numbers, times

    def at(self, numbers: Numbers) -> Times:
        """Interpolate the times."""
        times: Times = np.interp(numbers, self._numbers, self._times)
        return times

    def back(self) -> int | None:
        """Return it by the frames whose times are known."""
        for (number, time), (_, following) in itertools.pairwise(zip(self._numbers, self._times, strict=True)):
            if following < time - tolerance(time):
                return number + 1
        return None


def by_part(starts: Numbers, numbers: Numbers) -> Iterator[tuple[int, npt.NDArray[np.bool_], Numbers]]:
    """Yield each part with frames of `numbers`, the mask of these frames, and their numbers within the part."""
    part_indices = np.searchsorted(starts, numbers, side="right") - 1
    for part in np.flatnonzero(np.bincount(part_indices)).tolist():  # unique() imports numpy.ma
        mask = part_indices == part
        yield part, mask, numbers[mask] - starts[part]


def gaps(times: Timeline, frames: Selected) -> tuple[float, bool, bool, float]:
    """Return the mean step of two or more selected frames, whether steps are even and equal, and the largest time."""
    end_times = np.array([times[frames[0]], times[frames[-1]]])
    mean = float(end_times[1] - end_times[0]) / (len(frames) - 1)
    largest = float(np.abs(end_times).max())
    first = None
    equal = True
    for chunk in _chunks(times, frames):
        chunk_times = times.at(numbers_at(chunk, np.arange(len(chunk), dtype=np.int64)))
        largest = max(largest, float(np.abs(chunk_times).max()))
        between = np.diff(chunk_times)
        first = between[0] if first is None else first
        equal = equal and bool(np.all(between == first))
        if np.any(np.abs(between - mean) > 2 * tolerance(largest)):
            return mean, False, False, largest
    return (float(first) if equal and first is not None else mean), True, equal, largest


def _chunks(times: Timeline, frames: Selected) -> Iterator[Selected]:
    """Yield chunks of selected frames, each with the first of the next; of computed times only three chunks."""
    starts = range(0, len(frames) - 1, CHUNK_FRAMES)
    if isinstance(times, EvenTimeline) and isinstance(frames, range) and len(starts) > 3:
        starts = [starts[0], starts[len(starts) // 2], starts[-1]]  # type: ignore[assignment]
    for start in starts:
        yield frames[start : start + CHUNK_FRAMES + 1]
