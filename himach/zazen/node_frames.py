"""What a node holds of a selection, as the words that the protocol exchanges: bit p is frame ``frames[p]``.

`Cached` is the interface of a store, `InMemory` one whose frames are given, `NOTHING` an empty one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from himach.parallel.communicator import Words
from himach.selection import FrameList, is_sparse, span
from himach.zazen.bitmaps import block_counts
from himach.zazen.positions import n_words
from himach.zazen.remaining import Remaining, Selection

Numbers = npt.NDArray[np.int64]


class Cached(Protocol):
    """Which frames of a dataset a node's store holds."""

    @property
    def identity(self) -> str | None:
        """What tells this store from others; nodes that give the same one see one directory. None: not shared."""

    def mark(self, frames: range, native: Words, alien: Words) -> None:
        """Set the bits of those `frames` that a writer pushed to this node, and of those that a read miss brought.

        Both are uint64 (n_words(len(frames)),): bit ``p % 64`` of word ``p // 64`` is ``frames[p]``. Other bits stay,
        so that several stores may mark theirs one after another.
        """

    def holds(self, numbers: Numbers, native: bool = False) -> npt.NDArray[np.bool_]:
        """Return which frames are held, or were pushed to this node, bool (n,)."""


@dataclass(frozen=True)
class InMemory:
    """A cache whose frames are given, int64 (n,); for `identity` see `Cached`."""

    native: Numbers = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    alien: Numbers = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    identity: str | None = None

    @classmethod
    def of(cls, native: Iterable[int] = (), alien: Iterable[int] = (), identity: str | None = None) -> InMemory:
        """Return a cache of frames given as integers."""
        return cls(np.fromiter(native, dtype=np.int64), np.fromiter(alien, dtype=np.int64), identity)

    def mark(self, frames: range, native: Words, alien: Words) -> None:
        """Set the bits of natives and of aliens."""
        for numbers, words in ((self.native, native), (self.alien, alien)):
            positions, rest = np.divmod(numbers - frames.start, frames.step)
            positions = positions[(rest == 0) & (positions >= 0) & (positions < len(frames))].astype(np.uint64)
            np.bitwise_or.at(words, positions // 64, np.uint64(1) << positions % 64)

    def holds(self, numbers: Numbers, native: bool = False) -> npt.NDArray[np.bool_]:
        """Return which frames are held, or held natively."""
        return np.isin(numbers, self.native if native else np.concatenate([self.native, self.alien]))


NOTHING = InMemory()


def bitmaps_of(cached: Cached, frames: Selection, native: Words | None = None) -> tuple[Words, Words]:
    """Return the bitmaps of those `frames` that are native, and of those that are alien (see `Cached.mark`).

    The first is made in `native` if that is given, of any content.
    """
    if native is None:
        native = np.empty(n_words(len(frames)), dtype=np.uint64)
    alien = np.zeros_like(native)
    native[...] = 0
    if isinstance(frames, FrameList):
        among = span(frames)
        if is_sparse(len(among), len(frames)):
            natives = cached.holds(frames.numbers, native=True)
            native[...] = _packed(natives)
            alien[...] = _packed(cached.holds(frames.numbers) & ~natives)
            return native, alien
        there = np.zeros(len(among), dtype=np.bool_)
        there[frames.numbers - among.start] = True
        return bitmaps_of(cached, Remaining.of(among, there), native)
    if isinstance(frames, Remaining):
        for words, out in zip(bitmaps_of(cached, frames.frames), (native, alien), strict=True):
            frames.choose(words, out)
    else:
        cached.mark(frames, native, alien)
    return native, alien


def _packed(bits: npt.NDArray[np.bool_]) -> Words:
    words: Words = np.packbits(np.pad(bits, (0, -len(bits) % 64)), bitorder="little").view(np.uint64)
    return words


def count_chunks(native: Words, alien: Words, chunk_words: int) -> Numbers:
    """Return how many bits are set in each chunk of `chunk_words` words of two bitmaps, int64 (2, n)."""
    counts = np.empty((2, -(-len(native) // chunk_words)), dtype=np.int64)
    block_counts(native, chunk_words, counts[0])
    block_counts(alien, chunk_words, counts[1])
    return counts
