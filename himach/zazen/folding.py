"""A selection folded: positions that no node's pattern tells apart become one bit.

The intervals of all nodes' patterns cut the selection; within an interval, positions that are a common period apart are
alike on every node: they are a class. Exceptions are classes of their own. So the rounds, which treat every bit by
itself, can be run on one bit a class, whatever the number of frames. `fold()` makes a `Folded` selection of the shapes
of all patterns; `Folded.unfold()` turns bits of classes into positions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.parallel.communicator import Words
from himach.zazen.patterns import Pattern, Shape
from himach.zazen.positions import Pieces

Positions = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def fold(shapes: Iterable[Shape], n_positions: int, most: int) -> Folded | None:
    """Return the selection, of at least one frame, folded by the shapes of the patterns of all nodes.

    None if more than `most` classes would be left; an exception counts as a class.
    """
    shapes = list(shapes)
    exceptions = np.unique(np.concatenate([shape.exceptions for shape in shapes]))
    # Nodes to which frames were dealt in turns have the same intervals.
    kinds = {(shape.starts.tobytes(), shape.periods.tobytes()): shape for shape in shapes}.values()
    starts = np.unique(np.concatenate([shape.starts for shape in kinds]))
    if len(starts) + len(exceptions) > most:
        return None
    lengths = np.diff(starts, append=n_positions)
    periods = np.ones_like(starts)
    for shape in kinds:
        own = shape.periods[np.searchsorted(shape.starts, starts, side="right") - 1]
        periods = np.minimum(np.lcm(periods, own), lengths)
        if int(periods.sum()) + len(exceptions) > most:
            return None
    return Folded(n_positions, starts, periods, exceptions)


@dataclass(frozen=True)
class Folded:
    """Classes of positions that are alike on every node.

    Bitmaps of classes hold first the classes of all intervals, one interval after another, in an interval by their
    first positions; then, from a whole word on, the exceptions.

    Attributes
    ----------
    n_positions
        Frames in the selection.
    starts, periods
        int64: first position of each interval, and how many classes it has.
    exceptions
        int64, ascending: positions that belong to no class of an interval.
    """

    n_positions: int
    starts: Positions
    periods: Positions
    exceptions: Positions

    @cached_property
    def n_classes(self) -> int:
        """Classes of intervals."""
        return int(self.periods.sum())

    @property
    def class_words(self) -> int:
        """Words of a bitmap that hold classes of intervals."""
        return -(-self.n_classes // 64)

    @property
    def n_bits(self) -> int:
        """Bits of a bitmap, unused ones included."""
        return 64 * (self.class_words + -(-len(self.exceptions) // 64))

    @cached_property
    def places(self) -> Positions:
        """The first position of each bit, int64 (n_bits,); that of an unused bit is of no meaning."""
        places = np.zeros(self.n_bits, dtype=np.int64)
        places[: self.n_classes] = np.repeat(self.starts - self._offsets, self.periods) + np.arange(self.n_classes)
        self._singles(places)[:] = self.exceptions
        return places

    @cached_property
    def sizes(self) -> Positions:
        """How many positions each bit stands for, int64 (n_bits,)."""
        sizes = self._turns.copy()
        sizes -= np.bincount(self._class_of(self.exceptions), minlength=self.n_bits)
        self._singles(sizes)[:] = 1
        return sizes

    @cached_property
    def crowds(self) -> Words:
        """Which bits do not stand for their first position alone, as a bitmap."""
        return np.packbits(self._turns > 1, bitorder="little").view(np.uint64)

    @cached_property
    def _turns(self) -> Positions:
        """How many positions each bit of an interval stands for, with those that are exceptions."""
        turns = np.zeros(self.n_bits, dtype=np.int64)
        ends = np.repeat(np.append(self.starts[1:], self.n_positions), self.periods)
        turns[: self.n_classes] = -((self.places[: self.n_classes] - ends) // np.repeat(self.periods, self.periods))
        return turns

    def _singles(self, of_bits: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return that part of an array of all bits that is of exceptions."""
        first = 64 * self.class_words
        return of_bits[first : first + len(self.exceptions)]

    @cached_property
    def _offsets(self) -> Positions:
        return np.cumsum(self.periods) - self.periods

    def _class_of(self, positions: Positions) -> Positions:
        at = np.searchsorted(self.starts, positions, side="right") - 1
        return self._offsets[at] + (positions - self.starts[at]) % self.periods[at]

    def bits_of(self, pattern: Pattern) -> Words:
        """Return a pattern of this fold as a bitmap of classes."""
        flags = np.zeros(self.n_bits, dtype=np.bool_)
        flags[: self.n_classes] = pattern.regular(self.places[: self.n_classes])
        self._singles(flags)[:] = pattern.holds(self.exceptions)
        flags &= self.sizes > 0
        return np.packbits(flags, bitorder="little").view(np.uint64)

    def flags_of(self, words: Words) -> Flags:
        """Return a bitmap of classes as bool (n_bits,), without classes that stand for no position."""
        flags = np.unpackbits(words.view(np.uint8), bitorder="little").view(np.bool_)
        return flags & (self.sizes > 0)

    def count(self, flags: Flags) -> int:
        """Return how many positions the bits stand for."""
        return int(self.sizes[flags].sum())

    def unfold(self, flags: Flags, within: tuple[Flags, int, int] | None = None) -> Pieces:
        """Return the positions that bits stand for: bool (n_bits,).

        `within`: more bits, and from which position up to which theirs count.
        """
        more, low, high = within or (flags, 0, 0)
        # Of all classes once without and once with what counts within; an offset leads to one or the other.
        classes = np.concatenate([flags[: self.n_classes], (flags | more)[: self.n_classes]])
        offsets = np.concatenate([self._offsets, self._offsets + self.n_classes])
        among = (self.exceptions >= low) & (self.exceptions < high)
        chosen = self._singles(flags) | (self._singles(more) & among)
        odd = chosen != classes[self._class_of(self.exceptions) + among * self.n_classes]
        singles, chosen = self.exceptions[odd], chosen[odd]

        cuts = np.concatenate([self.starts, singles, singles + 1, [low, high]])
        lefts = np.unique(cuts[cuts < self.n_positions])
        rights = np.append(lefts[1:], self.n_positions)
        at = np.searchsorted(self.starts, lefts, side="right") - 1
        origins, periods = self.starts[at], self.periods[at]
        at = offsets[at + ((lefts >= low) & (lefts < high)) * len(self.starts)]
        before = np.concatenate([[0], np.cumsum(classes)])
        firsts, per_period = before[at], before[at + periods] - before[at]

        def numbered(ends: Positions) -> Positions:
            """Return how many positions of the set lie between where periods begin and `ends`."""
            turns, rest = np.divmod(ends - origins, periods)
            numbers: Positions = turns * per_period + before[at + rest] - firsts
            return numbers

        skipped = numbered(lefts)
        counts = numbered(rights) - skipped
        members = np.flatnonzero(classes)
        members -= np.repeat(offsets, np.tile(self.periods, 2))[members]
        alone = np.isin(lefts, singles)
        counts[alone] = chosen
        origins[alone], periods[alone], per_period[alone], skipped[alone] = singles, 1, 1, 0
        firsts[alone] = len(members)
        ends = np.cumsum(counts)
        table = np.stack([ends, origins, periods, per_period, firsts, skipped - (ends - counts)])
        return Pieces(table[:, counts > 0], np.append(members, 0))
