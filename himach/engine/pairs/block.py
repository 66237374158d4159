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
#: Rows of presence that are written out as pairs at a time.
EXPANDED_ROWS = 1 << 14

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


@dataclass(frozen=True, slots=True)
class Block:
    """Pairs as columns, ordered by shard.

    Attributes
    ----------
    form
        What a row stands for.
    width
        0: keys are ints; k > 0: tuples of k ints; -1 (`himach.engine.pairs.keys.ENCODED`): all other keys;
        -2 (`ROWS`): rows of a table, by ints.
    bounds
        int64 (shards + 1,): shard s is the rows ``bounds[s]:bounds[s + 1]``.
    keys
        int64 (n,) or (n, k); for encoded keys an object array (n,) of bytes.
    at
        uint32 (n,), the frame of each pair: its row in the table of frames.
    order
        uint32 (n,), the place in the chunk's emission; only there if a chunk has pairs of the same width in other
        blocks too, so that the order within a frame could not be told otherwise.
    values
        Array (n, ...), object array (n,) of snapshots, or None for presence.

    Examples
    --------
    >>> pairs = {"keys": np.array([3, 4, 3]), "at": np.array([0, 0, 1], dtype=np.uint32)}
    >>> block = by_shard(Form.PAIR, 0, pairs, 4)
    >>> list(block.columns())
    ['keys', 'at']
    >>> block.bounds.tolist(), block.keys.tolist(), block.at.tolist()
    ([0, 0, 0, 2, 3], [3, 3, 4], [0, 1, 0])
    >>> block.part(3, 4).plain_keys()
    [4]
    """

    form: Form
    width: int
    bounds: Bounds
    keys: Array
    at: npt.NDArray[np.uint32]
    order: Column = None
    values: Column = None

    def __len__(self) -> int:
        return len(self.at)

    @property
    def kind(self) -> Kind:
        """What blocks have in common that can be put behind one another."""
        if self.values is None:
            return Kind(self.width, self.form, None, ())
        return Kind(self.width, self.form, self.values.dtype, self.values.shape[1:])

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


def shards_for(ranks: int) -> int:
    """Return into how many shards keys are divided.

    Examples
    --------
    >>> [shards_for(ranks) for ranks in (1, 128, 129, 1000)]
    [512, 512, 1024, 4096]
    """
    shards = SHARDS
    while shards < min(OF_RANK * ranks, MOST_SHARDS):
        shards *= 2
    return shards


def of_frames(block: Block, inside: npt.NDArray[np.bool_]) -> Block:
    """Return the pairs of some frames, ``inside[at]`` tells which these are; presence as intervals of one frame.

    Examples
    --------
    >>> at, lengths = np.array([0, 4], dtype=np.uint32), np.array([3, 2], dtype=np.uint32)
    >>> block = Block(Form.INTERVAL, 0, np.array([0, 1, 2]), np.array([7, 8]), at, values=lengths)
    >>> some = of_frames(block, np.array([0, 1, 1, 0, 1, 0], dtype=bool))
    >>> some.bounds.tolist(), some.keys.tolist(), some.at.tolist()
    ([0, 2, 3], [7, 7, 8], [1, 2, 4])
    """
    if block.form == Form.PAIR:
        rows = np.flatnonzero(inside[block.at])
        columns = {name: column[rows] for name, column in block.columns().items()}
        return Block(block.form, block.width, np.searchsorted(rows, block.bounds), **columns)
    assert block.values is not None
    counts, found = np.zeros(len(block), np.int64), [np.empty(0, np.uint32)]
    for start in range(0, len(block), EXPANDED_ROWS):
        some = slice(start, start + EXPANDED_ROWS)
        rows, at = _expanded(block.form, block.at[some], block.values[some])
        kept = inside[at]
        counts[some] = np.bincount(rows[kept], minlength=len(block.at[some]))
        found.append(at[kept])
    ends = np.concatenate([[0], np.cumsum(counts)])
    keys = np.repeat(block.keys, counts, axis=0)
    frames = np.concatenate(found)
    return Block(Form.INTERVAL, block.width, ends[block.bounds], keys, frames, values=np.ones(len(frames), np.uint32))


def _expanded(form: Form, at: Array, values: Array) -> tuple[Array, Array]:
    """Return of the pairs of rows of presence the row of each, and its frame."""
    if form == Form.INTERVAL:
        rows = np.repeat(np.arange(len(at)), values)
        since = np.arange(len(rows)) - np.repeat(np.cumsum(values, dtype=np.int64) - values, values)
    else:
        rows, since = np.nonzero(np.unpackbits(np.ascontiguousarray(values).view(np.uint8), axis=1, bitorder="little"))
    return rows, (at[rows] + since).astype(np.uint32)


def divided(block: Block, shards: int) -> Block:
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
