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
from himach.selection import FrameList, span
from himach.zazen.bitmaps import block_counts
from himach.zazen.patterns import Pattern, Runs, Search, pattern_of
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

    def runs(self, low: int, high: int, most: int) -> tuple[Runs, Runs] | None:
        """Return the same of the frames from `low` to `high` as runs, which ascend and are apart, or None.

        Both are int64 (n, 3): first frame, step, and how many. None if they are more than `most`, or not known.
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

    def runs(self, low: int, high: int, most: int) -> tuple[Runs, Runs] | None:
        """Return no runs if there are no frames; else None."""
        none = np.empty((0, 3), dtype=np.int64)
        return None if len(self.native) or len(self.alien) else (none, none)


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
    n_frames
        Frames in the selection.
    seconds
        Time spent on marking, on patterns, and on counting.
    """

    def __init__(self, cached: Cached, frames: Selection, budget: int) -> None:
        self.seconds = 0.0
        self.n_frames = len(frames)
        self._cached, self._frames = cached, frames
        self._marked: tuple[Words, Words] | None = None
        self._searches: list[Search] = []
        with self._timed():
            self._told = _patterns(cached, frames, budget) if budget else None
        if self._told is None:
            both = (self.native, self.alien) if budget else ()
            with self._timed():
                self._searches = [Search(words, self.n_frames, budget) for words in both]

    @property
    def native(self) -> Words:
        """Bitmap of the native frames, uint64."""
        return self._bitmaps()[0]

    @property
    def alien(self) -> Words:
        """Bitmap of the alien frames, uint64."""
        return self._bitmaps()[1]

    def _bitmaps(self) -> tuple[Words, Words]:
        """Return both, marked when they are first asked for: where patterns will do, they never are."""
        if self._marked is None:
            with self._timed():
                native, alien = (np.zeros(n_words(self.n_frames), dtype=np.uint64) for _ in range(2))
                mark(self._cached, self._frames, native, alien)
                self._marked = native, alien
        return self._marked

    def promising(self) -> bool:
        """Tell whether what is held at the beginning of the selection follows a pattern."""
        if self._told is not None:
            return True
        with self._timed():
            return bool(self._searches) and all(search.step() for search in self._searches)

    def patterns(self) -> tuple[Pattern, Pattern] | None:
        """Return the patterns of native and alien frames, or None if not both have one."""
        if self._told is not None:
            return self._told
        with self._timed():
            native = self._searches[0].finish()
            alien = self._searches[1].finish() if native else None
            return (native, alien) if native and alien else None

    def counts(self, chunk_words: int) -> Numbers:
        """Return how many frames of each chunk of words are native and alien, int64 (2, n)."""
        both = self._bitmaps()
        with self._timed():
            return count_chunks(*both, chunk_words)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - start


def _patterns(cached: Cached, frames: Selection, budget: int) -> tuple[Pattern, Pattern] | None:
    """Return the patterns of native and alien frames as the store itself tells them, or None."""
    if not isinstance(frames, range):
        return None
    runs = cached.runs(min(frames[0], frames[-1]), max(frames[0], frames[-1]), budget)
    native, alien = (pattern_of(some, frames, budget) for some in runs) if runs else (None, None)
    return (native, alien) if native and alien else None


def mark(cached: Cached, frames: Selection, native: Words, alien: Words) -> None:
    """Set the bits of those `frames` that are native, and of those that are alien (see `Cached.mark`)."""
    if isinstance(frames, Remaining):
        of_all = [np.zeros(n_words(len(frames.frames)), dtype=np.uint64) for _ in range(2)]
        mark(cached, frames.frames, *of_all)
        for words, out in zip(of_all, (native, alien), strict=True):
            frames.choose(words, out)
    elif isinstance(frames, FrameList):
        among = span(frames)
        there = np.zeros(len(among), dtype=np.bool_)
        there[frames.numbers - among.start] = True
        mark(cached, Remaining.of(among, there), native, alien)
    else:
        cached.mark(frames, native, alien)


def count_chunks(native: Words, alien: Words, chunk_words: int) -> Numbers:
    """Return how many bits are set in each chunk of `chunk_words` words of two bitmaps, int64 (2, n)."""
    counts = np.empty((2, -(-len(native) // chunk_words)), dtype=np.int64)
    block_counts(native, chunk_words, counts[0])
    block_counts(alien, chunk_words, counts[1])
    return counts
