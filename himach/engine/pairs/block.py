"""Pairs as columns: `Block`, the plain value that travels, and how rows of it move.

A block holds pairs of one width of key and one layout of values, ordered by shard; the rows of a shard are in the order
of emission. Blocks are never modified. What `at` says of a row's frame is a row of the table of frames of the rank that
emitted it (`himach.engine.stamps`).

Whoever stores, sends or joins blocks asks for their `columns()`, and makes blocks of such columns again, without a need
to know what each of them is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from sys import getsizeof
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from himach.engine.pairs.keys import ENCODED, ROWS, decode
from himach.engine.pairs.sharding import count_places, scatter, shard_rows
from himach.engine.pairs.values import restore

#: Into how many shards keys are divided, unless there are many ranks; and the most, which count as uint16.
SHARDS, MOST_SHARDS = 512, 1 << 16
#: Shards for each rank, at least.
OF_RANK = 4

Array = npt.NDArray[Any]
#: A column that need not be there.
Column = Array | None
#: Columns by name, all of equally many rows, each C-contiguous: numbers, or Python objects that are the engine's own.
Columns = Mapping[str, Array]
Bounds = npt.NDArray[np.int64]
Raw = npt.NDArray[np.uint8]


class Form(IntEnum):
    """What a row of a block stands for."""

    PAIR = 0  #: one pair
    BITS = 1  #: the presence of a key at frames from `at` on: bit b of word j of `values` is the frame 64 j + b later
    INTERVAL = 2  #: the presence of a key at as many frames from `at` on as `values` says


class Kind(NamedTuple):
    """What blocks have in common that can be put behind one another."""

    width: int
    form: Form
    dtype: np.dtype[Any] | None  #: of the values
    shape: tuple[int, ...]  #: of a row of the values


class ColumnSpec(NamedTuple):
    """What the rows of a column are."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of a row."""
        return self.dtype.itemsize * int(np.prod(self.shape))

    def empty(self, rows: int) -> Array:
        """Return a column of so many rows."""
        return np.empty((rows, *self.shape), dtype=self.dtype)


@dataclass(frozen=True, slots=True)
class Block:
    """Pairs as columns, ordered by shard."""

    form: Form  # what a row stands for
    width: int  # 0: keys are ints
    bounds: Bounds  # int64 (shards + 1,): shard s is the rows ``bounds[s]:bounds[s + 1]``
    keys: Array  # int64 (n,) or (n, k); for encoded keys an object array (n,) of bytes
    at: npt.NDArray[np.uint32]  # uint32 (n,), the frame of each pair: its row in the table of frames
    order: Column = None  # uint32 (n,), the place in the chunk's emission
    values: Column = None  # array (n, ...), object array (n,) of snapshots, or None for presence

    def __len__(self) -> int:
        return len(self.at)

    @property
    def kind(self) -> Kind:
        """What blocks have in common that can be put behind one another."""
        return block_kind(self.form, self.width, self.specs)

    @property
    def specs(self) -> dict[str, ColumnSpec]:
        """What its columns are."""
        return {name: ColumnSpec(column.dtype, column.shape[1:]) for name, column in self.columns().items()}

    def columns(self) -> dict[str, Array]:
        """Return the columns of n rows that are there, by name: what `Block` is called with to make it again."""
        columns = {"keys": self.keys, "at": self.at, "order": self.order, "values": self.values}
        return {name: column for name, column in columns.items() if column is not None}

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the block takes, Python's objects by estimate."""
        size = self.bounds.nbytes + sum(column.nbytes for column in self.columns().values())
        if self.keys.dtype.hasobject:
            size += sum(map(getsizeof, set(self.keys.tolist())))  # a key is one object for many rows
        if self.values is not None and self.values.dtype.hasobject:
            values = self.values.tolist()
            size += sum(map(getsizeof, values))
            if self.width == ROWS:  # names, which rows have together, and cells
                size += sum(sum(map(getsizeof, cells)) for _, cells in values)
        return size

    def part(self, start: int, stop: int) -> Block:
        """Return the shards from `start` to `stop` as a block of their own, its columns views of this one's."""
        first, last = self.bounds[[start, stop]].tolist()
        columns = {name: column[first:last] for name, column in self.columns().items()}
        return Block(self.form, self.width, self.bounds[start : stop + 1] - first, **columns)

    def plain_keys(self) -> list[Any]:
        """Return the keys as plain Python values."""
        return plain_keys(self.width, self.keys)

    def plain_values(self) -> list[Any]:
        """Return the values as plain Python values."""
        return [None] * len(self) if self.values is None else [restore(value) for value in self.values]


def block_kind(form: Form, width: int, specs: Mapping[str, ColumnSpec]) -> Kind:
    """Return the kind of blocks of such columns."""
    return Kind(width, form, *specs.get("values", (None, ())))


def shards_for(ranks: int) -> int:
    """Return into how many shards keys are divided."""
    shards = SHARDS
    while shards < min(OF_RANK * ranks, MOST_SHARDS):
        shards *= 2
    return shards


def reshard(block: Block, shards: int) -> Block:
    """Return a block in another number of shards, both powers of two: each shard is divided, or some are joined."""
    now = len(block.bounds) - 1
    if now < shards:
        return by_shard(block.form, block.width, block.columns(), shards)
    return block if now == shards else replace(block, bounds=block.bounds[:: now // shards])


def plain_keys(width: int, keys: Array) -> list[Any]:
    """Return keys of one width, as they are in a block, as plain Python values."""
    plain: list[Any] = keys.tolist()
    if width == ENCODED:
        return [decode(key) for key in plain]
    return plain if width in (0, ROWS) else [tuple(key) for key in plain]


def by_shard(form: Form, width: int, columns: Columns, shards: int) -> Block:
    """Return rows, which have come in any order of shards, as a block."""
    keys = columns["keys"]
    hashed = np.fromiter(map(crc32, keys), dtype=np.int64, count=len(keys)) if width == ENCODED else keys
    places, bounds = count_places(
        shard_rows(np.ascontiguousarray(hashed).reshape(len(keys), max(width, 1)), shards), shards
    )
    return Block(form, width, bounds, **{name: _moved(column, places) for name, column in columns.items()})


def objects(values: Sequence[Any]) -> Array:
    """Return Python objects as a column."""
    return np.fromiter(values, dtype=object, count=len(values))


def row_bytes(column: Array) -> int:
    """Return how many bytes a row of `column` (n, ...) has."""
    return column.dtype.itemsize * int(np.prod(column.shape[1:]))


def raw(column: Array) -> Raw:
    """Return the bytes of a column, uint8 (nbytes,); a view if it is C-contiguous."""
    if column.nbytes == 0:
        return np.empty(0, dtype=np.uint8)
    return np.ascontiguousarray(column).reshape(-1).view(np.uint8)


def _moved(column: Array, places: npt.NDArray[np.uint32]) -> Array:
    """Return `column` (n, ...) with its row i at row ``places[i]``."""
    out = np.empty_like(column, order="C")
    if column.dtype.hasobject:
        out[places] = column
    elif column.nbytes:
        scatter(raw(column), places, raw(out))
    return out
