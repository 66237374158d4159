"""`Bits`: a set of positions, from which tasks are taken, as a bitmap with a directory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from himach.parallel.communicator import Words
from himach.zazen.bitmaps import block_counts, decode

DIRECTORY_WORDS = 512  # words of the bitmap between two entries of its directory

Positions = npt.NDArray[np.int64]


def n_words(n_positions: int) -> int:
    """Return how many words hold `n_positions` bits."""
    return -(-n_positions // 64)


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
