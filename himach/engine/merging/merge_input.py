"""Input of a merge: `KeyBatch`, blocks of one kind; `MergeInput`, rows of one rank's block. Output: `Group`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.engine.merging.bitmaps import Bitmaps, expand_bits
from himach.engine.pairs.block import Array, Block, Bounds, Column, Form, Kind, row_bytes
from himach.engine.stamps import Places
from himach.errors import AnalysisError

#: Most pairs merged at a time: row numbers are uint32.
MAX_PAIRS = 2**32 - 1

Keys = npt.NDArray[np.int64]
Rows = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Group:
    """Some keys with their rows: those of key i are ``bounds[i]:bounds[i + 1]``, in the order of frames.

    Encoded keys are represented by the numbers that the merge assigned.
    """

    width: int
    keys: Keys
    bounds: Bounds
    at: Rows
    values: Any


@dataclass(frozen=True, slots=True)
class MergeInput:
    """Some rows of one rank; ``places[at]`` are the positions of their frames among those of all ranks."""

    form: Form
    keys: Keys
    at: Rows
    order: Column
    values: Any
    places: Places

    def __len__(self) -> int:
        return len(self.at)

    def counts(self) -> npt.NDArray[np.uint32]:
        """Return the number of frames of each row."""
        counts: npt.NDArray[np.uint32] = np.ones(len(self), dtype=np.uint32)
        if self.form == Form.BITS:
            counts = np.bitwise_count(self.values).sum(axis=1, dtype=np.uint32)
        elif self.form == Form.INTERVAL:
            counts = self.values
        return counts

    def chosen(self, rows: npt.NDArray[np.int64]) -> "MergeInput":
        """Return some of the rows of presence."""
        values = None if self.values is None else self.values[rows]
        return MergeInput(self.form, self.keys[rows], self.at[rows], None, values, self.places)

    def frames(self) -> Rows:
        """Return the frames of all rows, row by row."""
        counts = self.counts()
        stops = np.cumsum(counts, dtype=np.int64)
        if self.form == Form.BITS:
            out = np.empty(int(stops[-1]) if len(stops) else 0, dtype=np.uint32)
            expand_bits(self.at, self.values, self.places, out)
            return out
        at = np.repeat(self.at - (stops - counts), counts)
        return self.places.take(at + np.arange(len(at)))

    def place(self, ids: Rows, bitmaps: Bitmaps) -> None:
        """Set the frames of row i, bits or an interval, in the bitmap of ``ids[i]``."""
        if self.form == Form.BITS:
            bitmaps.place_bits(ids, self.at, self.values, self.places)
        else:
            bitmaps.place_intervals(ids, self.at, self.values, self.places)


class KeyBatch:
    """Blocks of one kind, one or more per rank, each with its rank and with numeric keys."""

    def __init__(self, kind: Kind, blocks: Sequence[tuple[int, Block]], places: Sequence[Places]) -> None:
        self._form = kind.form
        self._blocks = blocks
        self._places = places
        self.presence = kind.form != Form.PAIR or kind.dtype is None
        self.weights = np.diff(sum(block.bounds for _, block in blocks)) * (16 if kind.form == Form.BITS else 1)
        values = blocks[0][1].values
        self.row_bytes = 0 if values is None or values.dtype.hasobject else row_bytes(values)

    def has(self, start: int, stop: int) -> bool:
        """Return whether the shards have rows."""
        return bool(self.weights[start:stop].any())

    def parts(self, start: int, stop: int) -> Iterator[MergeInput]:
        """Yield the shards' rows, by rank."""
        for rank, block in self._blocks:
            part = block.part(start, stop)
            yield MergeInput(self._form, part.keys, part.at, part.order, part.values, self._places[rank])

    def pairs(self, start: int, stop: int) -> tuple[Keys, Rows, Rows, Column]:
        """Return the shards' keys, frames, order of emission and values, each as one column of pairs.

        The order is 0 for chunks with one layout, whose rows are in order.
        """
        parts = list(self.parts(start, stop))
        keys = joined([part.keys for part in parts])
        if self._form != Form.PAIR:
            counts = np.concatenate([part.counts() for part in parts])
            at = np.concatenate([part.frames() for part in parts])
            return np.repeat(keys, counts, axis=0), at, np.zeros(len(at), np.uint32), None
        at = joined([part.places.take(part.at) for part in parts])
        order = [np.zeros(len(part), np.uint32) if part.order is None else part.order for part in parts]
        values = None if self.presence else joined([part.values for part in parts])
        return keys, at, joined(order), values


def as_rows(keys: Keys) -> Keys:
    """Return keys as (n, k)."""
    return np.ascontiguousarray(keys).reshape(len(keys), 1 if keys.ndim == 1 else keys.shape[1])


def as_keys(rows: Keys, width: int) -> Keys:
    """Return keys (n, k) in the shape of a block."""
    return rows if width > 0 else rows[:, 0]


def joined(columns: Sequence[Array]) -> Array:
    """Return the concatenated columns."""
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def check_rows(n: int) -> None:
    """Raise an error if there are too many rows to number."""
    if n > MAX_PAIRS:
        raise AnalysisError(
            f"one key, or few, have {n} pairs, and at most {MAX_PAIRS} can be put into order at a time; yield them "
            "under more keys, or make fewer of them in combine()"
        )
