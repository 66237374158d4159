"""The selected frame numbers of a run: a range, or `FrameList` for other ascending numbers; `chosen()`; as text."""

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from himach.errors import UsageError

Numbers = npt.NDArray[np.int64]


class FrameList(Sequence[int]):
    """Ascending frame numbers that are no range."""

    start = stop = step = None

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, step: int) -> int: ...
    @overload
    def __getitem__(self, step: slice) -> "Selected": ...
    def __getitem__(self, step: int | slice) -> "int | Selected":
        if isinstance(step, slice):
            return _as_selected(self.numbers[step])
        return int(self.numbers[step])

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers.tolist())

    def __contains__(self, number: object) -> bool:
        return bool(np.any(self.numbers == number))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrameList) and np.array_equal(self.numbers, other.numbers)

    def __hash__(self) -> int:
        return hash(self.numbers.tobytes())

    def __repr__(self) -> str:
        return f"frames({frames_text(self)})"


#: The selected frame numbers, by their position in the selection.
Selected = range | FrameList


def chosen(frames: Any, n_frames: int) -> Selected:
    """Return selected frame numbers of a dataset of `n_frames`, as for ``universe.trajectory[frames]``."""
    numbers = np.asarray(frames if isinstance(frames, np.ndarray | range) else list(frames))
    if numbers.ndim == 1 and numbers.dtype == np.bool_:
        if len(numbers) != n_frames:
            raise UsageError(f"frames: a mask needs {n_frames} values, one for each frame, not {len(numbers)}")
        numbers = np.flatnonzero(numbers)
    if not numbers.size:
        raise UsageError(f"frames: none is selected; the trajectory has {n_frames} frames (0 to {n_frames - 1})")
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise UsageError(f"frames are frame numbers or a boolean for every frame, not {numbers.dtype} {numbers.shape}")
    outside = (numbers < -n_frames) | (numbers >= n_frames)
    if outside.any():
        number = numbers[outside][0]
        raise UsageError(f"frames: there is no frame {number}; the trajectory has {n_frames} (0 to {n_frames - 1})")
    numbers = numbers.astype(np.int64)
    numbers[numbers < 0] += n_frames
    descents = np.flatnonzero(np.diff(numbers) <= 0)
    if len(descents):
        before, after = numbers[descents[0] : descents[0] + 2]
        raise UsageError(f"frames must ascend, each once: {after} comes after {before}; give sorted(set(frames))")
    return _as_selected(numbers)


def _as_selected(numbers: Numbers) -> Selected:
    """Return ascending numbers as a range if they are one, for which more is known."""
    steps = np.diff(numbers)
    if len(numbers) and (not len(steps) or np.all(steps == steps[0])):
        step = int(steps[0]) if len(steps) else 1
        return range(int(numbers[0]), int(numbers[-1]) + 1, step)
    numbers.flags.writeable = False
    return FrameList(numbers)


def numbers_at(frames: Selected, steps: Any) -> Numbers:
    """Return the frame numbers, int64 (n,), at some positions of a selection."""
    if isinstance(frames, range):
        numbers: Numbers = frames.start + frames.step * steps
        return numbers
    chosen_numbers: Numbers = frames.numbers[steps]
    return chosen_numbers


def find_steps(frames: Selected, numbers: Numbers) -> Numbers:
    """Return the positions, int64 (n,), of frame numbers in the selection."""
    if isinstance(frames, range):
        return (numbers - frames.start) // frames.step
    return np.searchsorted(frames.numbers, numbers).astype(np.int64)


def forward(frames: Selected) -> bool:
    """Return whether frame numbers ascend with steps."""
    return not isinstance(frames, range) or frames.step > 0


def is_sparse(n_numbers: int, n_there: int) -> bool:
    """Return whether a list of `n_there` numbers takes less memory than one bit for each of `n_numbers`."""
    return n_numbers > max(64 * n_there, 1 << 20)


def span(frames: Selected) -> range:
    """Return a range that includes a selection: itself, or all frames from the first to the last."""
    return frames if isinstance(frames, range) else range(frames[0], frames[-1] + 1)


def frames_text(frames: Selected) -> str:
    """Return ascending numbers as text: ``0,5,10-20`` or ``0-1000:10``, ends included."""
    if isinstance(frames, range) and frames.step > 1 and len(frames) > 2:
        return f"{frames[0]}-{frames[-1]}:{frames.step}"
    numbers = numbers_at(frames, np.arange(len(frames)))
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    pieces = [(int(piece[0]), int(piece[-1])) for piece in np.split(numbers, breaks) if len(piece)]
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in pieces)


def parse_frames(text: str) -> Numbers:
    """Parse numbers such as ``0,5,10-20`` or ``0-1000:10``; raise UsageError for other text."""
    pieces: list[Numbers] = []
    for word in text.split(","):
        bounds, colon, step = word.strip().partition(":")
        first, dash, last = bounds.partition("-")
        numbers = [first, last if dash else first, step if colon else "1"]
        if not all(number.strip().isdecimal() for number in numbers) or int(numbers[2]) == 0:
            raise UsageError(f"frames {text!r}: {word.strip()!r} is no frame number and no range as 10-20 or 0-1000:10")
        start, stop, stride = map(int, numbers)
        if stop < start:
            raise UsageError(f"frames {text!r}: {word.strip()!r} ends before it begins")
        pieces.append(np.arange(start, stop + 1, stride, dtype=np.int64))
    return np.concatenate(pieces)
