"""Streams: pairs of one key width and one layout of values, collected over the frames of a chunk.

There are four: `ArrayStream` for `Pairs`, `PresenceStream` for `Pairs` without values, `ItemStream` for pairs yielded
one by one, and `RowStream` for rows of a table.
"""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.engine.pairs.block import Array, Block, Column, Columns, Form, Raw, by_shard, objects, raw, row_bytes
from himach.engine.pairs.keys import ENCODED, ROWS
from himach.engine.pairs.presence import Presence
from himach.engine.pairs.sharding import shard_pairs

#: Most rows of presence in the first of several spans that become one block.
JOINED_ROWS = 1 << 12


class PresenceStream:
    """The presence of keys of one width, as bits."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._presence = Presence(max(width, 1))
        self.note = self._presence.add
        self._full: dict[tuple[Form, int], list[Columns]] = {}

    def add(self, keys: npt.NDArray[np.int64], row: int) -> bool:
        """Add a frame's keys; return False and add none if a key occurs twice."""
        if self._width > 0:
            keys = np.ascontiguousarray(keys).reshape(-1)
        added = self.note(keys, row)
        if added is None:
            self._flush()
            added = self.note(keys, row)
        return added is True

    def blocks(self, shards: int, last: bool) -> list[Block]:
        """Return presence as bits and as intervals; unless `last`, only spans whose bits are full."""
        if last and self._presence.pairs:
            self._flush()
        full, self._full = self._full, {}
        return [
            by_shard(form, self._width, columns, shards)
            for (form, _), spans in full.items()
            for columns in (spans if len(spans[0]["at"]) > JOINED_ROWS else [_join_spans(spans)])
        ]

    def _flush(self) -> None:
        first = self._presence.first
        bit_keys, bits, interval_keys, starts, lengths = self._presence.take()
        firsts = np.full(len(bits), first, dtype=np.uint32)
        for form, keys, at, values in (
            (Form.BITS, bit_keys, firsts, bits),
            (Form.INTERVAL, interval_keys, starts + np.uint32(first), lengths),
        ):
            if len(keys):
                columns = {"keys": keys if self._width else keys[:, 0], "at": at, "values": values}
                self._full.setdefault((form, values.nbytes // len(values)), []).append(columns)


class ArrayStream:
    """Growing columns for `Pairs` of one layout."""

    def __init__(self, width: int, values: Column) -> None:
        self.width = width
        self._size = 0
        self._keys = np.empty((1024, width) if width else 1024, dtype=np.int64)
        self._values = None if values is None else np.empty((1024, *values.shape[1:]), dtype=values.dtype)
        self.row_bytes = 4 + row_bytes(self._keys) + (0 if self._values is None else row_bytes(self._values))
        self._frames: list[tuple[int, int, int]] = []  # count, at, first position in the emission

    def __len__(self) -> int:
        return self._size

    def add(self, keys: npt.NDArray[np.int64], values: Column, at: int, emitted: int) -> None:
        """Add pairs of the frame in row `at`; `emitted` is the first one's position in the chunk's emission."""
        start, stop = self._size, self._size + len(keys)
        if stop > len(self._keys):
            self._grow(stop)
        self._keys[start:stop] = keys
        if self._values is not None:
            self._values[start:stop] = values
        self._frames.append((stop - start, at, emitted))
        self._size = stop

    def block(self, shards: int, ordered: bool) -> Block:
        """Return the pairs, with their order of emission if `ordered`, and reset the stream."""
        n, self._size = self._size, 0
        keys, values = self._keys[:n], None if self._values is None else self._values[:n]
        counts, rows, emitted = np.array(self._frames, dtype=np.int64).T.copy()
        self._frames = []
        if not ordered:  # most pairs: as `by_shard()` does, in one call
            target = np.empty(n * self.row_bytes, dtype=np.uint8)
            value_bytes = raw(np.empty(0) if values is None else values)
            bounds = shard_pairs(keys.reshape(n, -1), counts, rows, value_bytes, shards, target)
            edges = np.cumsum([keys.nbytes, 4 * n]).tolist()
            return Block(
                form=Form.PAIR,
                width=self.width,
                bounds=bounds,
                keys=_view_as(keys, target[: edges[0]]),
                at=target[edges[0] : edges[1]].view(np.uint32),
                values=None if values is None else _view_as(values, target[edges[1] :]),
            )
        starts = np.cumsum(counts) - counts
        columns = {
            "keys": keys,
            "at": np.repeat(rows.astype(np.uint32), counts),
            "order": (np.arange(n) + np.repeat(emitted - starts, counts)).astype(np.uint32),
        }
        return by_shard(Form.PAIR, self.width, columns if values is None else columns | {"values": values}, shards)

    def _grow(self, rows: int) -> None:
        rows = max(rows, 2 * len(self._keys))
        self._keys = _enlarge(self._keys, self._size, rows)
        if self._values is not None:
            self._values = _enlarge(self._values, self._size, rows)


class ItemStream:
    """Lists of pairs yielded one by one."""

    row_bytes = 64  # approximate size of a pair in four lists, without its value

    def __init__(self, width: int) -> None:
        self.width = width
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._at: list[int] = []
        self._order: list[int] = []

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: Any, value: Any, at: int, emitted: int) -> None:
        """Add a pair of the frame in row `at`; `emitted` is its position in the chunk's emission."""
        self._keys.append(key)
        self._values.append(value)
        self._at.append(at)
        self._order.append(emitted)

    def block(self, shards: int, ordered: bool) -> Block:
        """Return the pairs, with their order of emission if `ordered`, and reset the stream."""
        columns = {
            "keys": objects(self._keys) if self.width == ENCODED else np.array(self._keys, dtype=np.int64),
            "at": np.array(self._at, dtype=np.uint32),
            "values": objects(self._values),
        }
        if ordered:
            columns["order"] = np.array(self._order, dtype=np.uint32)
        self._keys, self._values, self._at, self._order = [], [], [], []
        return by_shard(Form.PAIR, self.width, columns, shards)


def _join_spans(spans: Sequence[Columns]) -> Columns:
    return {name: np.concatenate([columns[name] for columns in spans]) for name in spans[0]}


def _enlarge(column: Array, used: int, rows: int) -> Array:
    larger = np.empty((rows, *column.shape[1:]), dtype=column.dtype)
    larger[:used] = column[:used]
    return larger


def _view_as(column: Array, data: Raw) -> Array:
    """Return bytes as a column of the dtype and shape of another."""
    return data.view(column.dtype).reshape(column.shape) if column.nbytes else column


class RowStream:
    """Rows of a table with the same cell names; cells are numbers of the same types, or anything; keys are ints."""

    def __init__(self, names: tuple[str, ...], cells: Sequence[Any] = ()) -> None:
        """Accept rows with the types of these cells if all are numbers; else any rows."""
        kinds = [_PLAIN.get(type(cell)) or getattr(cell, "dtype", None) for cell in cells]
        numbers = bool(cells) and all(names) and all(kind is not None and kind.kind in "biufc" for kind in kinds)
        self._names = names
        self._dtype = np.dtype(list(zip(names, kinds, strict=True))) if numbers else None
        # Positions of Python integers, which may exceed 64 bits.
        self._whole = [place for place, cell in enumerate(cells) if numbers and type(cell) is int]
        #: Bytes of a row; None if `cells_bytes` estimates them.
        self.row_bytes = None if self._dtype is None else 8 + 4 + self._dtype.itemsize
        self._keys, self._at = array("q"), array("I")
        self._rows: list[tuple[Any, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, key: int, at: int, cells: tuple[Any, ...]) -> bool:
        """Add a row of the frame in row `at`; return False and add nothing if an integer exceeds 64 bits."""
        for place in self._whole:
            if not -(1 << 63) <= cells[place] < 1 << 63:
                return False
        self._keys.append(key)
        self._at.append(at)
        self._rows.append(cells)
        return True

    def block(self, shards: int) -> Block:
        """Return the rows and reset the stream."""
        rows, names = self._rows, self._names
        numbers = self._dtype is not None
        columns: dict[str, Array] = {
            "keys": np.array(self._keys, dtype=np.int64),
            "at": np.array(self._at, dtype=np.uint32),
            "values": np.array(rows, dtype=self._dtype) if numbers else objects([(names, cells) for cells in rows]),
        }
        self._keys, self._at, self._rows = array("q"), array("I"), []
        return by_shard(Form.PAIR, ROWS, columns, shards)


#: Approximate bytes of an object cell; a string adds its characters.
CELL_BYTES = 64


def cells_bytes(cells: Sequence[Any]) -> int:
    """Return the approximate bytes of a row's cells as objects."""
    return CELL_BYTES * (1 + len(cells)) + sum(len(cell) for cell in cells if isinstance(cell, str))


#: dtypes of Python numbers.
_PLAIN = {float: np.dtype(np.float64), int: np.dtype(np.int64), bool: np.dtype(np.bool_), complex: np.dtype(complex)}
