"""What a node's store holds of a selection, in the forms that the protocol asks for.

`Holdings` keeps the two sets of a `Cached` and tells how long it worked on them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from himach.parallel.communicator import Words
from himach.zazen.cached import Cached
from himach.zazen.patterns import Pattern, Search
from himach.zazen.selection import count_frames, mark_frames

__all__ = ["Holdings"]


class Holdings:
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
    seconds
        Time spent on the sets.
    """

    def __init__(self, cached: Cached, frames: range, budget: int) -> None:
        self.seconds = 0.0
        self.frames = frames
        with self._timed():
            self.native, self.alien = cached.native, cached.alien
            self._searches = [Search(held, frames, budget) for held in (self.native, self.alien)] if budget else []

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

    def counts(self, size: int) -> npt.NDArray[np.int64]:
        """Return how many frames of every `size` of the selection are native and alien, int64 (2, n)."""
        with self._timed():
            parts = [self.frames[first : first + size] for first in range(0, len(self.frames), size)]
            return np.array(
                [[count_frames(held, part) for part in parts] for held in (self.native, self.alien)], dtype=np.int64
            )

    def fill(self, first: int, native: Words, alien: Words) -> None:
        """Set the bits of native and alien frames in zeroed words, of which the first is number `first`."""
        with self._timed():
            part = self.frames[64 * first : 64 * (first + len(native))]
            mark_frames(self.native, part, native)
            mark_frames(self.alien, part, alien)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - start
