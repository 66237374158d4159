"""What a node holds of a selection, as the words that the protocol exchanges: bit p is frame ``frames[p]``.

`Cached` is the interface of a store, `InMemory` one whose frames are given, `NOTHING` an empty one. `NodeFrames` is
what a store says of one selection, asked once, and the patterns in that.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from himach.parallel.communicator import Words
from himach.zazen.bitmaps import block_counts
from himach.zazen.patterns import Pattern, Search
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


NOTHING = InMemory()


class NodeFrames:
    """Native and alien frames of a node, of one selection.

    Parameters
    ----------
    cached
        What the store says; asked once.
    frames
        The selection; numbers not negative.
    budget
        How much a pattern may deviate, see `Search`; 0: no patterns are sought.

    Attributes
    ----------
    native, alien
        Bitmaps of the selection, uint64.
    n_frames
        Frames in the selection.
    seconds
        Time spent on marking, on patterns, and on counting.
    """

    def __init__(self, cached: Cached, frames: Selection, budget: int) -> None:
        self.seconds = 0.0
        self.n_frames = len(frames)
        with self._timed():
            self.native, self.alien = (np.zeros(n_words(len(frames)), dtype=np.uint64) for _ in range(2))
            _mark(cached, frames, self.native, self.alien)
            both = (self.native, self.alien) if budget else ()
            self._searches = [Search(words, self.n_frames, budget) for words in both]

    def promising(self) -> bool:
        """Tell whether what is held at the beginning of the selection follows a pattern."""
        with self._timed():
            return bool(self._searches) and all(search.step() for search in self._searches)

    def patterns(self) -> tuple[Pattern, Pattern] | None:
        """Return the patterns of native and alien frames, or None if not both have one."""
        with self._timed():
            native = self._searches[0].finish()
            alien = self._searches[1].finish() if native else None
            return (native, alien) if native and alien else None

    def counts(self, chunk_words: int) -> Numbers:
        """Return how many frames of each chunk of words are native and alien, int64 (2, n)."""
        with self._timed():
            return count_chunks(self.native, self.alien, chunk_words)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - start


def _mark(cached: Cached, frames: Selection, native: Words, alien: Words) -> None:
    """Set the bits of those `frames` that are native, and of those that are alien (see `Cached.mark`)."""
    if isinstance(frames, Remaining):
        of_all = [np.zeros(n_words(len(frames.frames)), dtype=np.uint64) for _ in range(2)]
        cached.mark(frames.frames, *of_all)
        for words, out in zip(of_all, (native, alien), strict=True):
            frames.choose(words, out)
    else:
        cached.mark(frames, native, alien)


def count_chunks(native: Words, alien: Words, chunk_words: int) -> Numbers:
    """Return how many bits are set in each chunk of `chunk_words` words of two bitmaps, int64 (2, n)."""
    counts = np.empty((2, -(-len(native) // chunk_words)), dtype=np.int64)
    block_counts(native, chunk_words, counts[0])
    block_counts(alien, chunk_words, counts[1])
    return counts
