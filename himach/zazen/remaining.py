"""What is left of a selection: `Remaining`, the frames at some of its steps, numbered through for the protocol.

The protocol gives every frame of a selection to a node. Where some need not be read, it is given what is left as a
selection of its own, whose position i is the i-th frame that is left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from himach.parallel.communicator import Words
from himach.selection import FrameList, Selected
from himach.selection import numbers_at as numbers_of_selected

Positions = npt.NDArray[np.int64]
#: Bits of a bitmap that are moved at a time: a multiple of the bits of a word.
CHUNK_BITS = 1 << 24
WORD = 64


@dataclass(frozen=True)
class Remaining:
    """Frames at some steps of a selection.

    Attributes
    ----------
    frames
        The selection.
    starts, ends
        int64 (n,): neighbouring steps that are left, from each start to before its end; ascending, and apart.
    """

    frames: Selected
    starts: Positions
    ends: Positions

    @classmethod
    def of(cls, frames: Selected, left: npt.NDArray[np.bool_]) -> Remaining:
        """Return what is left where `left`, bool (steps,), is true."""
        edges = np.flatnonzero(np.diff(left, prepend=False, append=False)).astype(np.int64)
        return cls(frames, edges[0::2], edges[1::2])

    def __post_init__(self) -> None:
        object.__setattr__(self, "_before", np.concatenate([[0], np.cumsum(self.ends - self.starts)]))

    def __len__(self) -> int:
        return int(self._counts()[-1])

    def __getitem__(self, index: int) -> int:
        """Return the number of a frame."""
        return self.frames[int(self.steps(np.array([index % len(self)]))[0])]

    def _counts(self) -> Positions:
        """Return how many frames are left before each start, int64 (n + 1,)."""
        counts: Positions = self.__dict__["_before"]
        return counts

    def steps(self, positions: Positions) -> Positions:
        """Return the steps, int64 (n,), at which the frames of these positions are in the selection."""
        run = np.searchsorted(self._counts(), positions, side="right") - 1
        steps: Positions = self.starts[run] + (positions - self._counts()[run])
        return steps

    def numbers(self, positions: Positions) -> Positions:
        """Return the numbers, int64 (n,), of the frames of these positions."""
        return numbers_of_selected(self.frames, self.steps(positions))

    def choose(self, words: Words, out: Words) -> None:
        """Set those bits in `out` that are set in `words`, a bit for each step: a bit for each frame that is left."""
        n = len(self)
        for first in range(0, n, CHUNK_BITS):
            last = min(first + CHUNK_BITS, n)
            steps = self.steps(np.arange(first, last, dtype=np.int64))
            low = int(steps[0]) // WORD
            high = int(steps[-1]) // WORD + 1
            bits = np.unpackbits(words[low:high].view(np.uint8), bitorder="little")
            chosen = np.zeros(-(-(last - first) // WORD) * WORD, dtype=np.uint8)
            chosen[: last - first] = bits[steps - low * WORD]
            place = first // WORD
            packed = np.packbits(chosen, bitorder="little").view(np.uint64)
            out[place : place + len(packed)] |= packed


#: Frame numbers that a run asks for, by position: a choice, or what is left of one.
Selection = range | FrameList | Remaining


def numbers_at(frames: Selection, positions: Positions) -> Positions:
    """Return the numbers, int64 (n,), of the frames at some positions."""
    return frames.numbers(positions) if isinstance(frames, Remaining) else numbers_of_selected(frames, positions)
