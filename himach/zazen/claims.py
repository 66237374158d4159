"""`Claims`: a node's result of the rounds.

`Bits`: a set of positions, from which tasks are taken, as a bitmap with a directory.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from himach.ranks.communicator import Words

DIRECTORY_WORDS = 512  # bitmap words per directory entry
Positions = npt.NDArray[np.int64]


def n_words(n_positions: int) -> int:
    """Return the number of words that hold `n_positions` bits."""
    return -(-n_positions // 64)


def popcount(words: "Words") -> int:
    """Return the number of set bits."""
    return int(np.bitwise_count(words).sum(dtype=np.int64))


def block_counts(words: "Words", block: int) -> Positions:
    """Return the number of set bits in every `block` words; the last block may be shorter."""
    counts: Positions = np.add.reduceat(np.bitwise_count(words), np.arange(0, len(words), block), dtype=np.int64)
    return counts


def decode(words: "Words", first: int, skip: int, count: int) -> Positions:
    """Return the positions of set bits number `skip` to `skip + count`, ascending; bit 0 is position `first`."""
    filled = np.flatnonzero(words)  # few of a sparse set's: a byte a bit is for these alone
    bits = np.unpackbits(words[filled].view(np.uint8), bitorder="little")
    places = np.flatnonzero(bits)[skip : skip + count]
    positions: Positions = first + 64 * filled[places // 64] + places % 64
    return positions


def copy_some(source: "Words", target: "Words", skip: int, count: int) -> None:
    """Set in `target` the set bits of `source` number `skip` to `skip + count`."""
    stops = np.cumsum(np.bitwise_count(source), dtype=np.int64)
    first, last = np.searchsorted(stops, [skip, skip + count], side="right").tolist()
    target[first + 1 : last] |= source[first + 1 : last]
    for word in {first, last} - {len(source)}:  # only some of their bits may be chosen
        bits = decode(source[word : word + 1], 0, 0, 64)
        numbers = stops[word] - len(bits) + np.arange(len(bits))
        chosen = bits[(numbers >= skip) & (numbers < skip + count)].astype(np.uint64)
        target[word] |= np.bitwise_or.reduce(np.uint64(1) << chosen)


class Bits:
    """A bitmap of `n` words, preceded by a directory: the number of bits set before every `DIRECTORY_WORDS`-th word.

    Both are in `words`, uint64 (Bits.n_words(n),).
    """

    def __init__(self, words: "Words", n: int) -> None:
        self._directory = words[:-n].view(np.int64) if n else words.view(np.int64)
        self.bitmap = words[len(words) - n :]

    @staticmethod
    def n_words(n: int) -> int:
        """Return the size in words of a bitmap of `n` words with its directory."""
        return 1 - (-n // DIRECTORY_WORDS) + n

    def count_bits(self, first: int, stop: int) -> None:
        """Store the number of bits now set in words `first` to `stop` in the directory."""
        low, high = first // DIRECTORY_WORDS, -(-stop // DIRECTORY_WORDS)
        words = self.bitmap[low * DIRECTORY_WORDS : high * DIRECTORY_WORDS]
        self._directory[1 + low : 1 + high] = block_counts(words, DIRECTORY_WORDS)

    def index(self) -> None:
        """Add up the directory after all bits were counted."""
        self._directory[0] = 0
        np.cumsum(self._directory, out=self._directory)

    @property
    def count(self) -> int:
        """Number of positions in the set."""
        return int(self._directory[-1])

    def part(self, start: int, stop: int) -> Positions:
        """Return positions number `start` to `stop` of the set, int64, ascending."""
        block = int(np.searchsorted(self._directory, start, side="right")) - 1
        first, last = block * DIRECTORY_WORDS, int(np.searchsorted(self._directory, stop)) * DIRECTORY_WORDS
        return decode(self.bitmap[first:last], 64 * first, start - int(self._directory[block]), stop - start)


@dataclass
class Claims:
    """One node's result of the rounds."""

    share: Bits  # frames that this node claims
    native: int = 0
    alien: int = 0
    contested: int = 0
    residue: "list[tuple[int, Words, int]]" = field(default_factory=list)
    shed: "list[tuple[int, Words]]" = field(default_factory=list)

    @property
    def size(self) -> int:
        """Number of frames in `share`, before `take`."""
        return self.native + self.alien + self.contested

    @property
    def n_nowhere(self) -> int:
        """Number of frames that no node claims, the same on every node."""
        return sum(count for _, _, count in self.residue)

    def nowhere(self, count: int) -> Positions:
        """Return the first `count` positions that no node claims, int64."""
        parts = [decode(words, 64 * first, 0, count) for first, words, _ in self.residue]
        return np.concatenate([*parts, np.empty(0, dtype=np.int64)])[:count]

    def take(self, start: int, amount: int) -> None:
        """Claim `amount` unclaimed frames from number `start` on; forget the rest, which other nodes take."""
        before = 0
        for first, words, count in self.residue:
            low, high = max(start, before), min(start + amount, before + count)
            if low < high:
                copy_some(words, self.share.bitmap[first : first + len(words)], low - before, high - low)
                self.share.count_bits(first, first + len(words))
            before += count
        self.residue.clear()
        self.share.index()

    def surplus(self) -> Iterator[Positions]:
        """Yield positions of this node's alien frames that are no longer needed."""
        for first, words in self.shed:
            yield decode(words, first, 0, popcount(words))
