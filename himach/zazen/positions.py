"""Sets of positions that are complete, from which tasks are taken: the two forms of a share.

`Bits` is a bitmap with a directory; `Pieces` are intervals of periodic positions. Both live in words that ranks of a
node can share, know how many positions they hold (`count`), and give the positions of given ranks in order (`some`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from himach.parallel.communicator import Words
from himach.zazen.bitmaps import block_counts, decode

DIRECTORY_WORDS = 512  # words of the bitmap between two entries of its directory
AT_ONCE = 1 << 20  # positions that `all_of` gives at a time

Positions = npt.NDArray[np.int64]


def n_words(n_positions: int) -> int:
    """Return how many words hold `n_positions` bits."""
    return -(-n_positions // 64)


class PositionSet(Protocol):
    """A set of positions in a selection."""

    @property
    def count(self) -> int:
        """Positions in the set."""

    def some(self, start: int, stop: int) -> Positions:
        """Return positions number `start` to `stop` of the set, int64, ascending."""


def all_of(positions: PositionSet) -> Iterator[Positions]:
    """Yield all positions of a set, ascending, as many at a time as memory hardly notices."""
    for start in range(0, positions.count, AT_ONCE):
        yield positions.some(start, min(start + AT_ONCE, positions.count))


class Bits:
    """A bitmap of `n` words, and before it a directory of how many bits are set up to every `DIRECTORY_WORDS` words.

    Both are in `words`, uint64 (Bits.n_words(n),).
    """

    def __init__(self, words: Words, n: int) -> None:
        self._directory = words[:-n].view(np.int64) if n else words.view(np.int64)
        self.bitmap = words[len(words) - n :]

    @staticmethod
    def n_words(n: int) -> int:
        """Return how many words a bitmap of `n` words and its directory need."""
        return 1 - (-n // DIRECTORY_WORDS) + n

    def count_bits(self, first: int, stop: int) -> None:
        """Take down how many bits are set in words `first` to `stop`, as they are now, for the directory."""
        low, high = first // DIRECTORY_WORDS, -(-stop // DIRECTORY_WORDS)
        words = self.bitmap[low * DIRECTORY_WORDS : high * DIRECTORY_WORDS]
        block_counts(words, DIRECTORY_WORDS, self._directory[1 + low : 1 + high])

    def index(self) -> None:
        """Draw up the directory, all bits having been counted."""
        self._directory[0] = 0
        np.cumsum(self._directory, out=self._directory)

    @property
    def count(self) -> int:
        """Positions in the set."""
        return int(self._directory[-1])

    def some(self, start: int, stop: int) -> Positions:
        """Return positions number `start` to `stop` of the set, int64, ascending."""
        block = int(np.searchsorted(self._directory, start, side="right")) - 1
        first = block * DIRECTORY_WORDS
        return decode(self.bitmap[first:], 64 * first, start - int(self._directory[block]), stop - start)


class Pieces:
    """Stretches of positions that follow one another; in each, some positions of every period are in the set.

    Parameters
    ----------
    table
        int64 (6, n): of each stretch, of which at least one position is in the set: positions of the set up to its end;
        where its periods begin and how long they are; positions of the set in a period and where these stand in
        `members`; and what is to be added to a position's number in the set to number it from where periods begin.
    members
        int64: positions of the set in a period, from where it begins, of all stretches that differ.
    """

    ROWS = 6

    def __init__(self, table: Positions, members: Positions) -> None:
        self._table = table
        self._members = members

    @classmethod
    def of_words(cls, words: Words) -> Pieces:
        """Return the set that `to_words` wrote, as a view of the words."""
        numbers = words.view(np.int64)
        end = 1 + cls.ROWS * int(numbers[0])
        return cls(numbers[1:end].reshape(cls.ROWS, -1), numbers[end:])

    def to_words(self) -> Words:
        """Return the set as words."""
        n = np.array([self._table.shape[1]], dtype=np.int64)
        return np.concatenate([n, self._table.ravel(), self._members]).view(np.uint64)

    @property
    def count(self) -> int:
        """Positions in the set."""
        return int(self._table[0, -1]) if self._table.shape[1] else 0

    def some(self, start: int, stop: int) -> Positions:
        """Return positions number `start` to `stop` of the set, int64, ascending."""
        numbers = np.arange(start, min(stop, self.count), dtype=np.int64)
        at = np.searchsorted(self._table[0], numbers, side="right")
        _, origin, period, per_period, first, add = self._table[:, at]
        turn, member = np.divmod(numbers + add, per_period)
        chosen: Positions = origin + turn * period + self._members[first + member]
        return chosen
