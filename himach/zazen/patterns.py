"""Bitmaps as patterns: what is cached in runs, or dealt to nodes in turns, told in a few words.

A `Search` describes which positions of a selection a bitmap holds by a `Pattern`: intervals, each with a few bits that
repeat, and exceptions. The cost of everything that follows depends on their number and not on that of the frames.
`pattern_of()` makes one of the runs in which a store says that its frames lie, with no bitmap in between.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from himach.parallel.communicator import Words
from himach.zazen.finder import Finder

WINDOW_WORDS = 1 << 13  # that are looked at in one step

Positions = npt.NDArray[np.int64]
#: int64 (n, 3): first number or position of each run, step, and how many; ascending, and apart.
Runs = npt.NDArray[np.int64]
MOST_STEPS = 16  # other than 1 that runs may have


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


def pattern_of(runs: Runs, frames: range, budget: int) -> Pattern | None:
    """Return the pattern of a selection of which a node holds some runs of frames, all of them within the selection.

    None if it would have more than `budget` intervals, bits of their periods, and exceptions.
    """
    placed = _placed(runs, frames)
    if placed is None:
        return None
    starts, steps, counts = _joined(placed).T
    single = counts == 1
    exceptions = [starts[single]]
    starts, steps, counts = starts[~single], steps[~single], counts[~single]
    ends = starts + (counts - 1) * steps + 1
    # A position that is missing between two stretches is an exception, too, and these are one.
    hole = (starts[1:] - ends[:-1] == 1) & (steps[1:] == 1) & (steps[:-1] == 1)
    exceptions.append(ends[:-1][hole])
    first = np.append(True, ~hole)[: len(starts)]
    starts, steps, ends = starts[first], steps[first], ends[np.append(~hole, True)[: len(ends)]]

    gaps = np.append(0, ends)[np.append(starts, len(frames)) > np.append(0, ends)]
    cuts = np.concatenate([starts, gaps])
    order = np.argsort(cuts, kind="stable")
    periods = np.concatenate([steps, np.ones_like(gaps)])[order]
    odd = np.unique(np.concatenate(exceptions))
    if len(cuts) + int(periods.sum()) + len(odd) > budget:
        return None
    bits = np.zeros(int(periods.sum()), dtype=np.bool_)
    bits[(np.cumsum(periods) - periods)[order < len(starts)]] = True
    return Pattern(Shape(cuts[order], periods, odd), bits)


def _placed(runs: Runs, frames: range) -> Runs | None:
    """Return runs of frame numbers as runs of positions in a selection; None if they have too many steps."""
    ascending = frames if frames.step > 0 else frames[::-1]
    low, step = ascending.start, ascending.step
    first, apart, count = runs.T
    last = first + (count - 1) * apart
    several = np.unique(apart[apart > 1]).tolist()
    if len(several) > MOST_STEPS:
        return None
    begin, period, end = -((low - first) // step), np.ones_like(apart), (last - low) // step
    for one in several:
        # Of f + k d the numbers on the grid low + p s have k from some k0 on, s / gcd apart.
        shared = math.gcd(one, step)
        turn = step // shared
        chosen = apart == one
        away = low - first[chosen]
        k = away // shared * pow(one // shared, -1, turn) % turn
        there = (away % shared == 0) & (k < count[chosen])
        period[chosen] = one // shared
        begin[chosen] = np.where(there, (first[chosen] + k * one - low) // step, 1)
        n = (count[chosen] - 1 - k) // turn
        end[chosen] = np.where(there, begin[chosen] + n * (one // shared), 0)
    kept = begin <= end
    begin, period, counts = begin[kept], period[kept], (end[kept] - begin[kept]) // period[kept] + 1
    if frames.step < 0:
        begin = len(frames) - 1 - (begin + (counts - 1) * period)
        return np.stack([begin, period, counts], axis=1)[::-1]
    return np.stack([begin, period, counts], axis=1)


def _joined(runs: Runs) -> Runs:
    """Return runs of which neighbours without a gap between them are one."""
    starts, steps, counts = runs.T
    steps = np.where(counts == 1, 1, steps)
    ends = starts + counts
    goes_on = (starts[1:] == ends[:-1]) & (steps[1:] == 1) & (steps[:-1] == 1)
    first = np.append(True, ~goes_on)[: len(starts)]
    groups = np.cumsum(first) - 1
    total = np.bincount(groups, weights=counts).astype(np.int64) if len(starts) else counts
    return np.stack([starts[first], steps[first], total], axis=1)
