"""Sets of frame numbers as bitmaps of a selection: bit p is frame ``frames[p]``.

`mark_frames()` is the way in, by windows, so that it needs no more memory beside the bitmap than a window's part of the
set. `constant()` and `count_frames()` tell of a set what can be told with less.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyroaring

from himach.parallel.communicator import Words
from himach.zazen.bitmaps import popcount
from himach.zazen.cached import FrameSet
from himach.zazen.roaring import mark

__all__ = ["constant", "count_frames", "mark_frames", "n_words"]

WINDOW = 1 << 21  # positions, and frames between the ends of a window at most 8 times as many
WIDE = (pyroaring.BitMap64, pyroaring.FrozenBitMap64)
LAST_NARROW = 2**32


def n_words(n_positions: int) -> int:
    """Return how many words hold `n_positions` bits."""
    return -(-n_positions // 64)


def mark_frames(held: FrameSet, frames: range, words: Words) -> None:
    """Set in `words` the positions of those `frames` that are in `held`.

    Parameters
    ----------
    held
        Frame numbers.
    frames
        The selection; numbers not negative.
    words
        uint64 (n_words(len(frames)),).
    """
    wide = isinstance(held, WIDE)
    window = max(64, min(WINDOW, 8 * WINDOW // abs(frames.step)) // 64 * 64)
    for first in range(0, len(frames), window):
        part = frames[first : first + window]
        low, high = _bounds(held, part)
        if not _held_between(held, low, high):
            continue
        around: Any = (pyroaring.BitMap64 if wide else pyroaring.BitMap)(range(low, high))
        inside: FrameSet = held & around
        mark(words[first // 64 :], len(part), part.start, part.step, inside.serialize(), wide)


def constant(held: FrameSet, frames: range) -> bool | None:
    """Return whether `held` holds all `frames` (True) or none (False); None if that is not obvious."""
    low, high = _bounds(held, frames)
    count = _held_between(held, low, high)
    if count == 0:
        return False
    return True if count == 1 + abs(frames[-1] - frames[0]) else None


def count_frames(held: FrameSet, frames: range) -> int:
    """Return how many of `frames` are in `held`."""
    if abs(frames.step) == 1:
        return _held_between(held, *_bounds(held, frames))
    count = 0
    words = np.empty(n_words(min(WINDOW, len(frames))), dtype=np.uint64)
    for first in range(0, len(frames), WINDOW):
        words[:] = 0
        mark_frames(held, frames[first : first + WINDOW], words)
        count += popcount(words)
    return count


def _bounds(held: FrameSet, frames: range) -> tuple[int, int]:
    """Return the least of the frames and one more than the greatest, no greater than what `held` can hold."""
    if not frames:
        return 0, 0
    low, high = min(frames[0], frames[-1]), max(frames[0], frames[-1]) + 1
    return low, high if isinstance(held, WIDE) else min(high, LAST_NARROW)


def _held_between(held: FrameSet, low: int, high: int) -> int:
    return held.range_cardinality(low, high) if low < high else 0
