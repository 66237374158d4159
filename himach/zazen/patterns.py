"""Bitmaps as patterns: what is cached in runs, or dealt to nodes in turns, told in a few words.

A `Search` describes which positions of a selection a bitmap holds by a `Pattern`: intervals, each with a few bits that
repeat, and exceptions. The cost of everything that follows depends on their number and not on that of the frames.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from himach.parallel.communicator import Words
from himach.zazen.finder import Finder

WINDOW_WORDS = 1 << 13  # that are looked at in one step

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
    """The search for the pattern of a bitmap of which `n_bits` count; it can stop on the way.

    `budget` is how many intervals, bits of their periods, and exceptions a pattern may have.
    """

    def __init__(self, words: Words, n_bits: int, budget: int) -> None:
        self._words = words
        self._n_bits = n_bits
        self._finder = Finder(n_bits, budget)
        self._first = 0

    def step(self) -> bool:
        """Look at the next words; return False if no pattern fits."""
        words = self._words[self._first : self._first + WINDOW_WORDS]
        n_bits = min(64 * len(words), self._n_bits - 64 * self._first)
        self._first += len(words)
        return self._finder.feed(words, n_bits)

    def finish(self) -> Pattern | None:
        """Look at all words that are left; return the pattern, or None if none fits."""
        while self._first < len(self._words):
            if not self.step():
                return None
        starts, periods, bits, exceptions = self._finder.found()
        return Pattern(Shape(starts, periods, exceptions), bits.view(np.bool_))
