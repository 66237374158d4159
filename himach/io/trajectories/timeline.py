"""Times of the frames of a trajectory, ps: float64 (n_frames,), or `InterpolatedTimes` between known frames."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]


def tolerance(time: Any) -> Any:
    """Return the largest difference of equal times after float32, ps; an array for an array."""
    return 2.4e-7 * np.abs(time) + 1e-9


def even_times(n_frames: int, step: float, shift: float = 0.0, offset: float = 0.0) -> Times:
    """Return the times ``(number + shift) * step + offset``, rounded in this order."""
    times: Times = (np.arange(n_frames, dtype=np.float64) + shift) * step + offset
    return times


def first_backward(times: Times) -> int | None:
    """Return the first frame whose time is before its predecessor's; None if there is none."""
    backward = np.flatnonzero(np.diff(times) < -tolerance(times[:-1]))
    return int(backward[0]) + 1 if len(backward) else None


class InterpolatedTimes:
    """Times of frames whose numbers may go up to any size, indexed as an array of them would be."""

    def __init__(self, n_frames: int, numbers: Sequence[int], times: Sequence[float]) -> None:
        self._n_frames = n_frames
        self._numbers, self._times = np.array(numbers), np.array(times)

    def __len__(self) -> int:
        return self._n_frames

    def __getitem__(self, numbers: Any) -> Any:
        if isinstance(numbers, slice):
            numbers = np.arange(*numbers.indices(self._n_frames))
        return np.interp(numbers, self._numbers, self._times)

    def first_backward(self) -> int | None:
        """Return the frame after a known one whose following known frame has an earlier time; None if there is none."""
        backward = first_backward(self._times)
        return None if backward is None else int(self._numbers[backward - 1]) + 1


FrameTimes = Times | InterpolatedTimes
