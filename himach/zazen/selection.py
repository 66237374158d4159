"""Sets of frame numbers as bitmaps of a selection: bit p is frame ``frames[p]``.

`mark_frames()` is the way in, `frames_of()` the way back. Both go by windows, so that neither needs more memory beside
the bitmap than a window's part of the set.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyroaring

from himach.comm import Words
from himach.zazen.bitmaps import decode, popcount
from himach.zazen.cached import FrameSet
from himach.zazen.roaring import mark

__all__ = ["frames_of", "mark_frames", "n_words"]

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
        low, high = min(part[0], part[-1]), max(part[0], part[-1]) + 1
        if not wide:
            high = min(high, LAST_NARROW)
        if low >= high or not held.range_cardinality(low, high):
            continue
        around: Any = (pyroaring.BitMap64 if wide else pyroaring.BitMap)(range(low, high))
        inside: FrameSet = held & around
        mark(words[first // 64 :], len(part), part.start, part.step, inside.serialize(), wide)


def frames_of(parts: Iterable[tuple[int, Words]], frames: range) -> pyroaring.BitMap64:
    """Return the frame numbers of bitmap parts.

    Parameters
    ----------
    parts
        First position and words of each part.
    frames
        The selection.
    """
    numbers = pyroaring.BitMap64()
    for first, words in parts:
        positions = decode(words, first, 0, popcount(words))
        numbers.update(pyroaring.BitMap64((frames.start + frames.step * positions).astype(np.uint64)))
    return numbers
