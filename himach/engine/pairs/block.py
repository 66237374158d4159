"""Pairs as columns: `Block`, the plain value that is sent between ranks, and functions that move its rows.

A block holds pairs of one key width and one layout of values, sorted by shard; the rows of a shard are in the order of
emission. Blocks are never modified. `at` refers to a row of the table of frames of the emitting rank
(`himach.engine.stamps`).

Code that stores, sends or joins blocks uses their `columns()` and makes blocks of such columns again; it need not know
the meaning of a column.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from sys import getsizeof
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from himach.engine.pairs.keys import ENCODED, ROWS, decode
from himach.engine.pairs.sharding import shard_rows
from himach.engine.pairs.values import restore

#: Number of shards of keys, unless there are many ranks; and its maximum, so that shard numbers are uint16.
SHARDS, MOST_SHARDS = 512, 1 << 16
#: Least shards per rank, whose memory a single shard must not fill if its pairs are several times as large.
OF_RANK = 16

Array = npt.NDArray[Any]
#: An optional column.
Column = Array | None
#: Columns by name, of equal length and C-contiguous: numbers, or Python objects of the engine.
Columns = Mapping[str, Array]
Bounds = npt.NDArray[np.int64]
Raw = npt.NDArray[np.uint8]


class Form(IntEnum):
    """Meaning of a row of a block."""

    PAIR = 0  #: one pair
    BITS = 1  #: presence of a key at frames from `at`: bit b of word j of `values` is the frame 64 j + b later
    INTERVAL = 2  #: presence of a key at `values` consecutive frames from `at`


class Kind(NamedTuple):
    """Common properties of blocks that can be concatenated."""

    width: int
    form: Form
    dtype: np.dtype[Any] | None  #: of the values
    shape: tuple[int, ...]  #: of a row of the values


class ColumnSpec(NamedTuple):
    """Type of a column's rows."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of a row."""
        return self.dtype.itemsize * int(np.prod(self.shape))

    def empty(self, rows: int) -> Array:
        """Return an uninitialized column."""
        return np.empty((rows, *self.shape), dtype=self.dtype)


@dataclass(frozen=True, slots=True)
class Block:
    """Pairs as columns, sorted by shard."""

    form: Form
    width: int  # 0: keys are ints
    bounds: Bounds  # int64 (shards + 1,): shard s is the rows ``bounds[s]:bounds[s + 1]``
    keys: Array  # int64 (n,) or (n, k); for encoded keys an object array (n,) of bytes
    at: npt.NDArray[np.uint32]  # uint32 (n,), row of each pair's frame in the table of frames
    order: Column = None  # uint32 (n,), position in the chunk's emission
    values: Column = None  # array (n, ...), object array (n,) of snapshots, or None for presence

    def __len__(self) -> int:
        return len(self.at)

    @property
    def kind(self) -> Kind:
        """Properties shared by blocks that can be concatenated with this one."""
        return block_kind(self.form, self.width, self.specs)

    @property
    def specs(self) -> dict[str, ColumnSpec]:
        """Types of its columns."""
        return {name: ColumnSpec(column.dtype, column.shape[1:]) for name, column in self.columns().items()}

    def columns(self) -> dict[str, Array]:
        """Return the columns that are not None, by name: keyword arguments that make the `Block` again."""
        columns = {"keys": self.keys, "at": self.at, "order": self.order, "values": self.values}
        return {name: column for name, column in columns.items() if column is not None}

    @property
    def nbytes(self) -> int:
        """Bytes of the block in memory; those of Python objects are estimated."""
        size = self.bounds.nbytes + sum(column.nbytes for column in self.columns().values())
        if self.keys.dtype.hasobject:
            size += sum(map(getsizeof, set(self.keys.tolist())))  # one object for all rows of a key
        if self.values is not None and self.values.dtype.hasobject:
            values = self.values.tolist()
            size += sum(map(getsizeof, values))
            if self.width == ROWS:  # names, which rows share, and cells
                size += sum(sum(map(getsizeof, cells)) for _, cells in values)
        return size

    def part(self, start: int, stop: int) -> "Block":
        """Return the shards from `start` to `stop` as a block whose columns are views of this one's."""
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
    """Return the kind of blocks with these columns."""
    return Kind(width, form, *specs.get("values", (None, ())))


def shards_for(ranks: int) -> int:
    """Return the number of shards of keys."""
    shards = SHARDS
    while shards < min(OF_RANK * ranks, MOST_SHARDS):
        shards *= 2
    return shards


def reshard(block: Block, shards: int) -> Block:
    """Return a block with another number of shards, by dividing or joining shards; both are powers of two."""
    now = len(block.bounds) - 1
    if now < shards:
        return by_shard(block.form, block.width, block.columns(), shards)
    return block if now == shards else replace(block, bounds=block.bounds[:: now // shards])


def plain_keys(width: int, keys: Array) -> list[Any]:
    """Return a block's keys, of one width, as plain Python values."""
    plain: list[Any] = keys.tolist()
    if width == ENCODED:
        return [decode(key) for key in plain]
    return plain if width in (0, ROWS) else [tuple(key) for key in plain]


def by_shard(form: Form, width: int, columns: Columns, shards: int) -> Block:
    """Return unsorted rows as a block."""
    keys = columns["keys"]
    hashed = np.fromiter(map(crc32, keys), dtype=np.int64, count=len(keys)) if width == ENCODED else keys
    ids = shard_rows(np.ascontiguousarray(hashed).reshape(len(keys), max(width, 1)), shards)
    order = np.argsort(ids, kind="stable")
    bounds = np.concatenate([[0], np.cumsum(np.bincount(ids, minlength=shards))])
    return Block(form, width, bounds, **{name: column.take(order, axis=0) for name, column in columns.items()})


def objects(values: Sequence[Any]) -> Array:
    """Return Python objects as a column."""
    return np.fromiter(values, dtype=object, count=len(values))


def row_bytes(column: Array) -> int:
    """Return the bytes of a row of `column` (n, ...)."""
    return column.dtype.itemsize * int(np.prod(column.shape[1:]))


def raw(column: Array) -> Raw:
    """Return the bytes of a column, uint8 (nbytes,); a view if it is C-contiguous."""
    if column.nbytes == 0:
        return np.empty(0, dtype=np.uint8)
    return np.ascontiguousarray(column).reshape(-1).view(np.uint8)
