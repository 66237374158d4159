"""`Claims`: what a node has after the rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from himach.parallel.communicator import Words
from himach.zazen.bitmaps import copy_some, decode, popcount
from himach.zazen.positions import Bits

Positions = npt.NDArray[np.int64]


@dataclass
class Claims:
    """What one node has after the rounds.

    Attributes
    ----------
    share
        Frames that this node claims.
    native, alien, contested
        Number of frames in `share` by native copy, by the one alien copy, and by one of several alien copies.
    residue
        First word, words and number of bits of those chunks in which frames are that no node claims, the same on every
        node.
    shed
        First bit and bits of those chunks in which alien frames of this node are needed no more.
    """

    share: Bits
    native: int = 0
    alien: int = 0
    contested: int = 0
    residue: list[tuple[int, Words, int]] = field(default_factory=list)
    shed: list[tuple[int, Words]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Number of frames in `share`, before `take`."""
        return self.native + self.alien + self.contested

    @property
    def n_nowhere(self) -> int:
        """Frames that no node claims, the same on every node."""
        return sum(count for _, _, count in self.residue)

    def nowhere(self, count: int) -> Positions:
        """Return the first `count` positions that no node claims, int64."""
        parts = [decode(words, 64 * first, 0, count) for first, words, _ in self.residue]
        return np.concatenate([*parts, np.empty(0, dtype=np.int64)])[:count]

    def take(self, start: int, amount: int) -> None:
        """Claim of what no node has `amount` frames, from number `start` on; the rest is others', and forgotten."""
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
        """Yield positions of alien frames of this node that are needed no more."""
        for first, words in self.shed:
            yield decode(words, first, 0, popcount(words))
