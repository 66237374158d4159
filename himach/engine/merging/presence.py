"""Merges presence, as bits, intervals or single rows, into the frames of each key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from himach.engine.merging.bitmaps import Bitmaps, Plan
from himach.engine.merging.grouping import group_rows
from himach.engine.merging.parts import Group, MergeInput, Rows, as_keys, as_rows
from himach.engine.pairs.block import Bounds, Form
from himach.engine.stamps import Frames

#: Most frames of presence expanded at a time, unless a single key has more.
EXPANDED_FRAMES = 1 << 23


class PresenceMerge:
    """Merges presence over the frames of all ranks."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._plans: list[Plan] = []

    def groups(self, width: int, parts: Sequence[MergeInput]) -> Iterator[Group]:
        """Yield every key with its frames, many keys at a time."""
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
            yield Group(width, as_keys(keys[start:stop], width), bounds, self._expand_frames(chosen, bounds), None)
            start = stop

    def _expand_frames(self, rows: Sequence[tuple[MergeInput, Rows]], bounds: Bounds) -> Rows:
        """Return the frames of some keys, sorted by key and frame, from rows and their key numbers."""
        keys, frames, total = len(bounds) - 1, len(self._frames.table), int(bounds[-1])
        # Use bitmaps if they take at most twice the memory of the frames.
        if keys * frames <= 64 * total and all(part.form != Form.PAIR for part, _ in rows):
            self._plans = self._plans or [Plan(places) for places in self._frames.places]
            bitmaps = Bitmaps(keys, frames)
            for part, ids in rows:
                part.place(ids, self._plans[part.rank], bitmaps)
            return bitmaps.frames(bounds)
        out = np.empty(total, dtype=np.uint32)
        cursor = bounds[:-1].copy()
        for part, ids in rows:
            part.expand(ids, cursor, out)
        by_key = np.repeat(np.arange(keys, dtype=np.uint64) << np.uint64(32), np.diff(bounds))
        by_key |= out
        by_key.sort()
        return by_key.astype(np.uint32)


def _select_keys(part: MergeInput, ids: Rows, start: int, stop: int) -> tuple[MergeInput, Rows]:
    """Return the rows of the keys from `start` to `stop`, with key numbers from 0."""
    rows = np.flatnonzero((ids >= start) & (ids < stop))
    return part.chosen(rows), ids[rows] - np.uint32(start)
