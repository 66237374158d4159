"""Merges presence, as bits, intervals or single rows, into the frames of each key."""

from collections.abc import Iterator, Sequence

import numpy as np

from himach.engine.merging.bitmaps import Bitmaps
from himach.engine.merging.grouping import group_rows
from himach.engine.merging.merge_input import Group, MergeInput, Rows, as_keys, as_rows
from himach.engine.pairs.block import Bounds, Form

#: Most frames of presence expanded at a time, unless a single key has more.
EXPANDED_FRAMES = 1 << 23


def merge_presence(width: int, parts: Sequence[MergeInput], frames: int) -> Iterator[Group]:
    """Yield every key with its frames, many keys at a time; `frames` is the number on all ranks."""
    ids, keys = group_rows(as_rows(np.concatenate([part.keys for part in parts])))
    counts = np.concatenate([part.counts() for part in parts])
    frame_stops = np.cumsum(np.bincount(ids, weights=counts, minlength=len(keys)).astype(np.int64))
    row_ends = np.cumsum([len(part) for part in parts]).tolist()
    rows = [(part, ids[end - len(part) : end]) for part, end in zip(parts, row_ends, strict=True)]
    start = 0
    while start < len(keys):
        # Usually all keys fit.
        done = int(frame_stops[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(frame_stops, done + EXPANDED_FRAMES, side="right")))
        bounds = np.concatenate([[0], frame_stops[start:stop] - done])
        chosen = rows if stop - start == len(keys) else [_select_keys(part, own, start, stop) for part, own in rows]
        yield Group(width, as_keys(keys[start:stop], width), bounds, _expand_frames(chosen, bounds, frames), None)
        start = stop


def _expand_frames(rows: Sequence[tuple[MergeInput, Rows]], bounds: Bounds, frames: int) -> Rows:
    """Return the frames of some keys, sorted by key and frame, from rows and their key numbers."""
    keys, total = len(bounds) - 1, int(bounds[-1])
    # Use bitmaps if they take at most twice the memory of the frames.
    if keys * frames <= 64 * total and all(part.form != Form.PAIR for part, _ in rows):
        bitmaps = Bitmaps(keys, frames)
        for part, ids in rows:
            part.place(ids, bitmaps)
        return bitmaps.frames(bounds)
    numbers = [np.repeat(ids.astype(np.uint64) << np.uint64(32), part.counts()) | part.frames() for part, ids in rows]
    by_key = np.concatenate(numbers)
    by_key.sort()
    return by_key.astype(np.uint32)


def _select_keys(part: MergeInput, ids: Rows, start: int, stop: int) -> tuple[MergeInput, Rows]:
    """Return the rows of the keys from `start` to `stop`, with key numbers from 0."""
    rows = np.flatnonzero((ids >= start) & (ids < stop))
    return part.chosen(rows), ids[rows] - np.uint32(start)
