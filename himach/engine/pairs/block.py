"""Pairs as columns: `Block`, the plain value that travels, and how rows of it move.

A block holds pairs of one width of key and one layout of values, ordered by shard; the rows of a shard are in the order
of emission. Blocks are never modified. What `at` says of a row's frame is a row of the table of frames of the rank that
emitted it (`himach.engine.pairs.stamps`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from sys import getsizeof
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.engine.merging.grouping import gather
from himach.engine.pairs.keys import decode
from himach.engine.pairs.sharding import scatter
from himach.engine.pairs.values import thaw

__all__ = ["SHARDS", "Block", "Bounds", "Column", "Form", "Kind", "gathered", "moved", "raw", "row_bytes"]

#: Into how many shards keys are divided, whatever the number of ranks; more ranks than shards have nothing to reduce.
SHARDS = 512

#: Values of pairs: an array (n, ...), an object array of kept Python values, or None for presence.
Column = npt.NDArray[Any] | None
Bounds = npt.NDArray[np.int64]
Raw = npt.NDArray[np.uint8]


class Form(IntEnum):
    """What a row of a block stands for."""

    PAIR = 0  #: one pair
    BITS = 1  #: the presence of a key at frames from `at` on: bit b of word j of `values` is the frame 64 j + b later
    INTERVAL = 2  #: the presence of a key at as many frames from `at` on as `values` says


#: What tells blocks apart that cannot be put behind one another: width of keys, form, dtype and row shape of values.
Kind = tuple[int, Form, np.dtype[Any] | None, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Block:
    """Pairs as columns, ordered by shard.

    Attributes
    ----------
    form
        What a row stands for.
    width
        0: keys are ints; k > 0: tuples of k ints; -1 (`himach.engine.pairs.keys.ENCODED`): all other keys.
    keys
        int64 (n,) or (n, k); for encoded keys (n,) places in `names`.
    at
        uint32 (n,), the frame of each pair: its row in the table of frames.
    order
        uint32 (n,), the place in the chunk's emission; only there if a chunk has pairs of the same width in other
        blocks too, so that the order within a frame could not be told otherwise.
    values
        Array (n, ...), object array (n,) of kept values, or None for presence.
    bounds
        int64 (shards + 1,): shard s is the rows ``bounds[s]:bounds[s + 1]``.
    names, name_bounds
        The encoded keys and where each shard's start (None if `names` are not ordered by shard); None for other widths.
    """

    form: Form
    width: int
    keys: npt.NDArray[np.int64]
    at: npt.NDArray[np.uint32]
    order: npt.NDArray[np.uint32] | None
    values: Column
    bounds: Bounds
    names: list[bytes] | None = None
    name_bounds: Bounds | None = None

    def __len__(self) -> int:
        return len(self.at)

    @property
    def kind(self) -> Kind:
        """What blocks have in common that can be put behind one another."""
        if self.values is None:
            return self.width, self.form, None, ()
        return self.width, self.form, self.values.dtype, self.values.shape[1:]

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the block takes, Python's objects by estimate."""
        size = self.keys.nbytes + self.at.nbytes + self.bounds.nbytes
        size += 0 if self.order is None else self.order.nbytes
        if self.values is not None:
            size += self.values.nbytes
            if self.values.dtype.hasobject:
                size += sum(map(getsizeof, self.values))
        return size if self.names is None else size + sum(map(getsizeof, self.names))

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

    def plain_keys(self) -> list[Any]:
        """Return the keys as plain Python values."""
        keys: list[Any] = self.keys.tolist()
        if self.names is not None:
            return [decode(self.names[place]) for place in keys]
        return keys if self.width <= 0 else [tuple(key) for key in keys]

    def plain_values(self) -> list[Any]:
        """Return the values as plain Python values."""
        return [None] * len(self) if self.values is None else [thaw(kept) for kept in self.values]


def row_bytes(column: npt.NDArray[Any]) -> int:
    """Return how many bytes a row of `column` (n, ...) has."""
    return column.dtype.itemsize * int(np.prod(column.shape[1:]))


def raw(column: npt.NDArray[Any]) -> Raw:
    """Return the bytes of a column, uint8 (nbytes,); a view if it is C-contiguous."""
    if column.nbytes == 0:
        return np.empty(0, dtype=np.uint8)
    return np.ascontiguousarray(column).reshape(-1).view(np.uint8)


def moved(column: npt.NDArray[Any], places: npt.NDArray[np.uint32]) -> npt.NDArray[Any]:
    """Return `column` (n, ...) with its row i at row ``places[i]``."""
    out = np.empty_like(column, order="C")
    if column.dtype.hasobject:
        out[places] = column
    elif column.nbytes:
        scatter(raw(column), places, raw(out))
    return out


def gathered(column: npt.NDArray[Any], rows: npt.NDArray[np.uint32]) -> npt.NDArray[Any]:
    """Return the rows of `column` (n, ...) that `rows` names, in that order."""
    if column.dtype.hasobject:
        return column[rows]
    out = np.empty((len(rows), *column.shape[1:]), dtype=column.dtype)
    if out.nbytes:
        gather(raw(column), rows, raw(out), row_bytes(column))
    return out
