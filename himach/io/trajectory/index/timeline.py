"""Times of all frames of a file, none of which need lie in memory: `Timeline`, and its kinds.

`EvenTimeline` computes them, `ListedTimeline` holds them, `StoredTimeline` reads them from a file, `BetweenTimeline`
knows those of some; `JoinedTimeline` is of files that follow one another.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from himach.errors import TrajectoryError
from himach.selection import Selected, numbers_at

Times = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

#: Frames whose times are looked at together, where all are.
CHUNK_FRAMES = 1 << 16


def tolerance(time: Any) -> Any:
    """Return how far apart two equal times can lie that went through float32, ps; of an array an array."""
    return 2.4e-7 * np.abs(time) + 1e-9


class Timeline(Protocol):
    """Times (ps) of frames by their number."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> float:
        """Return the time of one frame."""

    def at(self, numbers: Numbers) -> Times:
        """Return the times of frames, float64 (n,)."""

    def back(self, n_frames: int) -> int | None:
        """Return the first of the first `n_frames` frames that was taken before the one before it; None if none was."""


class EvenTimeline:
    """Times ``(number + shift) * step + offset``, rounded in this order."""

    def __init__(self, n_frames: int, step: float, shift: float = 0.0, offset: float = 0.0) -> None:
        self._n_frames = n_frames
        self.step, self.shift, self.offset = step, shift, offset

    def __len__(self) -> int:
        return self._n_frames

    def __getitem__(self, number: int) -> float:
        return (float(number) + self.shift) * self.step + self.offset

    def at(self, numbers: Numbers) -> Times:
        """Compute them."""
        times: Times = (np.asarray(numbers, dtype=np.float64) + self.shift) * self.step + self.offset
        return times

    def back(self, n_frames: int) -> int | None:
        """Tell it from the first two frames."""
        return 1 if n_frames > 1 and self[1] < self[0] - tolerance(self[0]) else None


class ListedTimeline:
    """Times in an array of this process."""

    def __init__(self, times: Times) -> None:
        self._times = times

    def __len__(self) -> int:
        return len(self._times)

    def __getitem__(self, number: int) -> float:
        return float(self._times[number])

    def at(self, numbers: Numbers) -> Times:
        """Look them up."""
        return self._times[numbers]

    def back(self, n_frames: int) -> int | None:
        """Look through them."""
        return scan_back(self, n_frames)


class StoredTimeline:
    """Times in a file, float64 one behind the other from byte `start` on, and what is added to each.

    Some neighbours are read at once. They are not mapped: a file that is cut meanwhile must not kill a rank.
    """

    def __init__(self, path: str, start: int, n_frames: int, offset: float = 0.0) -> None:
        self._path, self._start, self._n_frames, self._offset = path, start, n_frames, offset
        self._first, self._block = 0, np.empty(0, np.float64)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_first": 0, "_block": np.empty(0, np.float64)}

    def __len__(self) -> int:
        return self._n_frames

    def __getitem__(self, number: int) -> float:
        number %= self._n_frames
        if not 0 <= number - self._first < len(self._block):
            self._first = number // 512 * 512
            self._block = self._read(self._first, min(512, self._n_frames - self._first))
        return float(self._block[number - self._first]) + self._offset

    def at(self, numbers: Numbers) -> Times:
        """Read them: in one piece where they lie close together."""
        numbers = np.asarray(numbers, dtype=np.int64)
        times = np.empty(len(numbers))
        for start in range(0, len(numbers), CHUNK_FRAMES):
            chunk = numbers[start : start + CHUNK_FRAMES]
            first, last = int(chunk.min()), int(chunk.max())
            if last - first < 16 * len(chunk):
                chunk_times = self._read(first, last - first + 1)[chunk - first] + self._offset
            else:
                chunk_times = np.array([self[number] for number in chunk.tolist()])
            times[start : start + CHUNK_FRAMES] = chunk_times
        return times

    def back(self, n_frames: int) -> int | None:
        """Look through them, some at once."""
        return scan_back(self, n_frames)

    def _read(self, first: int, count: int) -> Times:
        times: Times = np.fromfile(self._path, np.float64, count, offset=self._start + 8 * first)
        if len(times) != count:
            raise TrajectoryError(f"{self._path} has become shorter since it was opened; run again")
        return times


class BetweenTimeline:
    """Times of all frames as those of some tell them, which lie on straight lines in between."""

    def __init__(self, n_frames: int, numbers: Sequence[int], times: Sequence[float]) -> None:
        self._n_frames, self._numbers, self._times = n_frames, numbers, times

    def __len__(self) -> int:
        return self._n_frames

    def __getitem__(self, number: int) -> float:
        return float(np.interp(number, self._numbers, self._times))

    def at(self, numbers: Numbers) -> Times:
        """Compute them."""
        times: Times = np.interp(numbers, self._numbers, self._times)
        return times

    def back(self, n_frames: int) -> int | None:
        """Tell it from the frames whose times are known."""
        for (number, time), (_, following) in itertools.pairwise(zip(self._numbers, self._times, strict=True)):
            if number < n_frames - 1 and following < time - tolerance(time):
                return number + 1
        return None


class JoinedTimeline:
    """Times of files that follow one another: of each its first so many frames."""

    def __init__(self, parts: Sequence[tuple[Timeline, int]]) -> None:
        self.parts = tuple(parts)
        self._parts = [times for times, _ in parts]
        self._starts = np.cumsum([0] + [n_frames for _, n_frames in parts])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, number: int) -> float:
        part = int(np.searchsorted(self._starts, number, side="right")) - 1
        return self._parts[part][number - int(self._starts[part])]

    def at(self, numbers: Numbers) -> Times:
        """Ask each file for its own."""
        numbers = np.asarray(numbers, dtype=np.int64)
        times = np.empty(len(numbers))
        for part, mask, local in by_part(self._starts, numbers):
            times[mask] = self._parts[part].at(local)
        return times

    def back(self, n_frames: int) -> int | None:
        """Look within each file, and from each to the next."""
        for part, times in enumerate(self._parts):
            start, stop = int(self._starts[part]), min(n_frames, int(self._starts[part + 1]))
            if start >= stop:  # none of its frames count
                continue
            if start and times[0] < self[start - 1] - tolerance(self[start - 1]):
                return start
            backward = times.back(stop - start)
            if backward is not None:
                return start + backward
        return None


def by_part(starts: Numbers, numbers: Numbers) -> Iterator[tuple[int, npt.NDArray[np.bool_], Numbers]]:
    """Yield the parts that frames are in, which of the frames these are, and their numbers within the part."""
    part_indices = np.searchsorted(starts, numbers, side="right") - 1
    for part in np.flatnonzero(np.bincount(part_indices)).tolist():  # unique() imports numpy.ma
        mask = part_indices == part
        yield part, mask, numbers[mask] - starts[part]


def scan_back(times: Timeline, n_frames: int) -> int | None:
    """Return what `Timeline.back` does, by a look at all times, some at once."""
    for chunk in _overlapping_chunks(n_frames):
        chunk_times = times.at(chunk)
        back = np.flatnonzero(np.diff(chunk_times) < -tolerance(chunk_times[:-1]))
        if len(back):
            return int(chunk[back[0]]) + 1
    return None


def _overlapping_chunks(n_frames: int) -> Iterator[Numbers]:
    for start in range(0, n_frames - 1, CHUNK_FRAMES):
        yield np.arange(start, min(n_frames, start + CHUNK_FRAMES + 1))


def gaps(times: Timeline, frames: Selected) -> tuple[float, bool, bool, float]:
    """Return what lies between the times of selected frames, two at least."""
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
    """Return selected frames some at once, each part with the first of the next; of computed times only some parts."""
    starts = range(0, len(frames) - 1, CHUNK_FRAMES)
    if isinstance(times, EvenTimeline) and isinstance(frames, range) and len(starts) > 3:
        starts = [starts[0], starts[len(starts) // 2], starts[-1]]  # type: ignore[assignment]
    for start in starts:
        yield frames[start : start + CHUNK_FRAMES + 1]
