"""Pairs as columns: `FrameTable` and `Block`, the plain values that travel, and how rows of them move.

A block holds pairs of one chunk of frames, of one width of key and one layout of values, ordered by shard; the rows
of a shard are in the order of emission. The chunk's blocks share one frame table. Blocks are never modified.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.engine.kernels import scatter
from himach.engine.keys import decode
from himach.engine.values import thaw

__all__ = ["SHARDS", "Block", "Column", "FrameTable", "Layout", "moved"]

#: Into how many shards keys are divided, whatever the number of ranks; more ranks than shards have nothing to reduce.
SHARDS = 512

#: Values of pairs: an array (n, ...), an object array of kept Python values, or None for presence.
Column = npt.NDArray[Any] | None
#: What tells columns of values apart: dtype and shape of a row, or None for presence.
Layout = tuple[np.dtype[Any], tuple[int, ...]] | None


@dataclass(frozen=True, slots=True)
class FrameTable:
    """Stamps of frames, stored once for all their pairs.

    Attributes
    ----------
    steps
        int64 (n,), positions in the selection.
    times
        float64 (n,), ps.
    boxes
        float32 (n, 6), Å and degrees, rows of NaN where a frame has no box; None if no frame has one.
    sources
        In the later stages of a chain: for each row the encoded key of the series whose reduce() yielded the pairs,
        which are stamped with that series' first frame. Else None.
    """

    steps: npt.NDArray[np.int64]
    times: npt.NDArray[np.float64]
    boxes: npt.NDArray[np.float32] | None
    sources: list[bytes] | None = None

    def __len__(self) -> int:
        return len(self.steps)

    @classmethod
    def joined(cls, tables: Sequence[FrameTable]) -> FrameTable:
        """Return the rows of all `tables`, one table behind the other."""
        boxes = None
        if any(table.boxes is not None for table in tables):
            boxes = np.full((sum(map(len, tables)), 6), np.nan, dtype=np.float32)
            row = 0
            for table in tables:
                if table.boxes is not None:
                    boxes[row : row + len(table)] = table.boxes
                row += len(table)
        sources = None
        if tables and tables[0].sources is not None:
            sources = [source for table in tables for source in table.sources or ()]
        return cls(
            steps=np.concatenate([table.steps for table in tables] or [np.empty(0, np.int64)]),
            times=np.concatenate([table.times for table in tables] or [np.empty(0, np.float64)]),
            boxes=boxes,
            sources=sources,
        )


@dataclass(frozen=True, slots=True)
class Block:
    """Pairs as columns, ordered by shard.

    Attributes
    ----------
    frames
        Stamps of the frames that `at` speaks of.
    width
        0: keys are ints; k > 0: tuples of k ints; -1 (`himach.engine.keys.ENCODED`): all other keys.
    keys
        int64 (n,) or (n, k); for encoded keys (n,) places in `names`.
    at
        uint32 (n,), the row of `frames` of each pair.
    order
        uint32 (n,), the place in the chunk's emission; only there if the chunk has pairs of the same width in other
        blocks too, so that the order within a frame could not be told otherwise.
    values
        Array (n, ...), object array (n,) of kept values, or None for presence.
    bounds
        int64 (shards + 1,): shard s is the rows ``bounds[s]:bounds[s + 1]``.
    names, name_bounds
        The encoded keys, each once and ordered by shard, and where each shard's start; None for other widths.
    """

    frames: FrameTable
    width: int
    keys: npt.NDArray[np.int64]
    at: npt.NDArray[np.uint32]
    order: npt.NDArray[np.uint32] | None
    values: Column
    bounds: npt.NDArray[np.int64]
    names: list[bytes] | None = None
    name_bounds: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.at)

    @property
    def layout(self) -> Layout:
        """Dtype and row shape of the values."""
        return None if self.values is None else (self.values.dtype, self.values.shape[1:])

    def part(self, start: int, stop: int) -> Block:
        """Return the shards from `start` to `stop` as a block of their own, its columns views of this one's."""
        rows = slice(int(self.bounds[start]), int(self.bounds[stop]))
        keys, names, name_bounds = self.keys[rows], self.names, self.name_bounds
        if names is not None and name_bounds is not None:
            first = int(name_bounds[start])
            names = names[first : int(name_bounds[stop])]
            name_bounds = name_bounds[start : stop + 1] - first
            keys = keys - first
        return replace(
            self,
            keys=keys,
            at=self.at[rows],
            order=None if self.order is None else self.order[rows],
            values=None if self.values is None else self.values[rows],
            bounds=self.bounds[start : stop + 1] - rows.start,
            names=names,
            name_bounds=name_bounds,
        )

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Give every key with its value, as plain Python values."""
        keys: list[Any] = self.keys.tolist()
        if self.names is not None:
            keys = [decode(self.names[place]) for place in keys]
        elif self.width > 0:
            keys = [tuple(key) for key in keys]
        values = [None] * len(self) if self.values is None else [thaw(kept) for kept in self.values]
        return zip(keys, values, strict=True)

    def copy(self) -> Block:
        """Return a block that shares no column with this one, so that this one's memory can go."""
        return replace(
            self,
            keys=self.keys.copy(),
            at=self.at.copy(),
            order=None if self.order is None else self.order.copy(),
            values=None if self.values is None else self.values.copy(),
        )


def moved(column: npt.NDArray[Any], places: npt.NDArray[np.uint32]) -> npt.NDArray[Any]:
    """Return `column` (n, ...) with its row i at row ``places[i]``."""
    out = np.empty_like(column, order="C")
    if column.dtype.hasobject:
        out[places] = column
    elif column.nbytes:
        source = np.ascontiguousarray(column).reshape(-1).view(np.uint8)
        scatter(source, places, out.reshape(-1).view(np.uint8))
    return out
