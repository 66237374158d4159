"""Sets of frame numbers as patterns: what is cached in runs, or dealt to nodes in turns, told without a bitmap.

`find_pattern()` describes which positions of a selection a set holds by a `Pattern`: intervals, each with a few bits
that repeat, and exceptions. The cost of everything that follows depends on their number and not on that of the frames.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from himach.zazen.cached import FrameSet
from himach.zazen.finder import Finder
from himach.zazen.selection import constant, mark_frames, n_words

__all__ = ["Pattern", "Search", "Shape"]

WINDOW = 1 << 21  # positions that are made bits at a time
FINE = 1 << 19  # the same, where most windows need no bits because all in them are held, or none

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shape:
    """What others must know of a pattern, so that all can tell positions apart that some node tells apart.

    Attributes
    ----------
    starts, periods
        int64: first position of each interval, from 0 on, and the period of its bits.
    exceptions
        int64, ascending: positions whose bit is another than the interval's.
    """

    starts: Positions
    periods: Positions
    exceptions: Positions


@dataclass(frozen=True)
class Pattern:
    """A set of positions, as intervals of periodic bits and exceptions.

    Attributes
    ----------
    shape
        The intervals.
    bits
        bool: one period of each interval, from its start on, one interval after another.
    """

    shape: Shape
    bits: npt.NDArray[np.bool_]

    @cached_property
    def _offsets(self) -> Positions:
        return np.cumsum(self.shape.periods) - self.shape.periods

    def regular(self, positions: Positions) -> npt.NDArray[np.bool_]:
        """Return which of the positions would be in the set if there were no exceptions, bool (n,)."""
        shape = self.shape
        at = np.searchsorted(shape.starts, positions, side="right") - 1
        return self.bits[self._offsets[at] + (positions - shape.starts[at]) % shape.periods[at]]

    def holds(self, positions: Positions) -> npt.NDArray[np.bool_]:
        """Return which of the positions are in the set, bool (n,)."""
        return self.regular(positions) ^ np.isin(positions, self.shape.exceptions)


class Search:
    """The search for the pattern of a set, which can stop on the way.

    Parameters
    ----------
    held
        Frame numbers.
    frames
        The selection; numbers not negative.
    budget
        Intervals, bits of their periods, and exceptions that a pattern may have.
    """

    def __init__(self, held: FrameSet, frames: range, budget: int) -> None:
        self._held = held
        self._frames = frames
        self._finder = Finder(len(frames), budget)
        self._first = 0
        self._words = np.empty(n_words(min(WINDOW, len(frames))), dtype=np.uint64)

    def step(self) -> bool:
        """Look at the next frames; return False if no pattern fits."""
        first, size = self._first, WINDOW
        bit = constant(self._held, self._frames[first : first + size])
        if bit is None and self._finder.constant:
            size = FINE
            bit = constant(self._held, self._frames[first : first + size])
        part = self._frames[first : first + size]
        self._first += len(part)
        if bit is not None:
            return self._finder.feed_constant(bit, len(part))
        words = self._words[: n_words(len(part))]
        words[:] = 0
        mark_frames(self._held, part, words)
        return self._finder.feed(words, len(part))

    def finish(self) -> Pattern | None:
        """Look at all frames that are left; return the pattern, or None if none fits."""
        while self._first < len(self._frames):
            if not self.step():
                return None
        starts, periods, bits, exceptions = self._finder.found()
        return Pattern(Shape(starts, periods, exceptions), bits.view(np.bool_))
