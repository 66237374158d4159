"""What map() yields becomes blocks: `Emission` copies pairs at the yield and orders them by shard.

Pairs of one width of key and one layout of values are one stream: growing columns for `Pairs`, bits for `Pairs` without
values, lists for pairs that were yielded one by one. `Emission.freeze()` turns the streams of a chunk into `Block`s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from himach.analysis import Pairs
from himach.engine.pairs.arena import fresh
from himach.engine.pairs.block import Block, Bounds, Column, Form, Raw, moved, raw, row_bytes
from himach.engine.pairs.keys import ENCODED, split
from himach.engine.pairs.presence import FRAMES, Presence
from himach.engine.pairs.sharding import count_places, shard_pairs, shard_rows
from himach.engine.pairs.stamps import Stamps
from himach.engine.pairs.values import keep
from himach.errors import AnalysisError

__all__ = ["Emission"]

Box = npt.NDArray[np.float32]
ALLOWED = "yield pairs (key, value) or himach.Pairs(keys, values)"
#: Pairs of one chunk, at most: their places are uint32.
MOST = 2**32 - 1
#: Bytes that presence takes per pair, about, when it is a bit.
BIT = 2
#: Bytes that are ordered in memory of their own, at most.
SPARE = 1 << 21
# Keys, frames, order of emission if asked for, values.
Taken = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32], npt.NDArray[np.uint32] | None, Column]


class Emission:
    """Pairs of one chunk of frames, copied as they are yielded.

    Parameters
    ----------
    stamps
        The table to which the frames are added that have pairs.
    room
        Gives memory for blocks, by bytes.

    Attributes
    ----------
    pairs
        How many pairs this chunk holds.
    nbytes
        About how much memory they take.
    """

    def __init__(self, stamps: Stamps, room: Callable[[int], Raw] = fresh) -> None:
        self.pairs = 0
        self.nbytes = 0
        self.stamps = stamps
        self._room = room
        self._row = -1
        self._stamp: tuple[int, float, Box | None, bytes | None] = (0, 0.0, None, None)
        self._streams: dict[Any, _Rows | _Items] = {}
        self._presences: dict[int, _Bits] = {}
        self._names: dict[bytes, int] = {}

    def begin(self, step: int, time: float, box: Box | None, source: bytes | None = None) -> None:
        """Begin a frame: what is added from now on carries this stamp (and the key of the series it came from)."""
        self._stamp = (step, time, box, source)
        self._row = -1

    def resume(self, row: int) -> None:
        """Go on with a frame that was begun before."""
        self._row = row

    def row(self) -> int:
        """Return the row of the present frame in the table of stamps."""
        if self._row < 0:
            self._row = self.stamps.add(*self._stamp)
        return self._row

    def extend(self, items: Any) -> None:
        """Add what map() yields, each item copied before the next is asked for.

        Raises
        ------
        AnalysisError
            If an item is neither a pair nor `Pairs`, or its key or value is refused.
        """
        if items is None:
            return
        if isinstance(items, Pairs):
            items = (items,)
        try:
            items = iter(items)
        except TypeError:
            raise AnalysisError(f"it returned {_describe(items)}; {ALLOWED}") from None
        for item in items:
            if type(item) is Pairs:
                self.add_columns(item)
            elif type(item) is tuple and len(item) == 2:
                self.add(*item)
            elif isinstance(item, Pairs):
                self.add_columns(item)
            else:
                raise AnalysisError(f"it yielded {_describe(item)}; {ALLOWED}")

    def add(self, key: Any, value: Any) -> None:
        """Add one pair."""
        try:
            kept = keep(value)
        except AnalysisError as error:
            raise AnalysisError(f"key {key!r}: {error}") from error.__cause__
        self.add_kept(key, kept)

    def add_kept(self, key: Any, kept: Any) -> None:
        """Add one pair whose value is kept already."""
        width, kept_key = split(key)
        if width == ENCODED:
            kept_key = self._names.setdefault(kept_key, len(self._names))
        stream = self._streams.get(width)
        if stream is None:
            stream = self._streams[width] = _Items(width)
        stream.add(kept_key, kept, self._row if self._row >= 0 else self.row(), self.pairs)
        self.pairs += 1
        self.nbytes += stream.row_bytes + (len(kept) if type(kept) is bytes else getattr(kept, "nbytes", 0))

    def add_columns(self, pairs: Pairs) -> None:
        """Add many pairs."""
        keys, values = pairs.keys, pairs.values
        n = len(keys)
        if n == 0:
            return
        row = self._row if self._row >= 0 else self.row()
        width = 0 if keys.ndim == 1 else keys.shape[1]
        if values is None and self._add_bits(width, keys, row):
            self.nbytes += n * BIT
        else:
            layout = (width, None) if values is None else (width, values.dtype, values.shape[1:])
            stream = self._streams.get(layout)
            if stream is None:
                stream = self._streams[layout] = _Rows(width, values)
            stream.add(keys, values, row, self.pairs)
            self.nbytes += n * stream.row_bytes
        self.pairs += n

    def _add_bits(self, width: int, keys: npt.NDArray[np.int64], row: int) -> bool:
        """Add presence as bits, if no key is twice in the frame.

        Bits do not tell the order of emission within a frame. So a width that has other streams in this chunk has no
        bits from then on: bits come before everything else.
        """
        for stream in self._streams.values():
            if stream.width == width and len(stream):
                return False
        bits = self._presences.get(width)
        if bits is None:
            bits = self._presences[width] = _Bits(width)
        return bits.add(keys, row)

    def freeze(self, shards: int, last: bool = True) -> list[Block]:
        """Return the chunk's pairs ordered by shard, and begin a new chunk.

        Unless it is the last, bits that have room for more frames are left for the next chunk.

        Raises
        ------
        AnalysisError
            If the chunk has more pairs than a block can count.
        """
        if self.pairs > MOST:
            raise AnalysisError(f"one frame, or one key, yielded {self.pairs} pairs; at most {MOST} are possible")
        blocks = []
        for bits in self._presences.values():
            blocks += [_block(form, bits.width, taken, shards) for form, taken in bits.take(last)]
        # A layout that this chunk did not use may never come again.
        self._streams = {layout: stream for layout, stream in self._streams.items() if len(stream)}
        widths = [stream.width for stream in self._streams.values()]
        for stream in self._streams.values():
            alone = widths.count(stream.width) == 1
            if alone and isinstance(stream, _Rows):
                blocks.append(stream.sharded(shards, self._room))
            else:
                blocks.append(_block(Form.PAIR, stream.width, stream.take(ordered=not alone), shards, self._names))
        self.pairs = self.nbytes = 0
        self._names = {}
        self.stamps.pack()
        return blocks


class _Bits:
    """The presence of keys of one width, as bits."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._columns = max(width, 1)
        self._presence = Presence(self._columns)
        self._first = 0
        self._full: list[tuple[Form, Taken]] = []

    def add(self, keys: npt.NDArray[np.int64], row: int) -> bool:
        """Add a frame's keys; return False, having added none, if one is there twice."""
        if self._presence.pairs and row - self._first >= FRAMES:
            self._full += self._taken()
        if not self._presence.pairs:
            self._first = row
        if self.width > 0 or not keys.flags.c_contiguous:
            keys = np.ascontiguousarray(keys).reshape(-1)
        return self._presence.add(keys, row - self._first)

    def take(self, last: bool) -> list[tuple[Form, Taken]]:
        """Return what was added as bits and as runs; unless it is the `last`, only what fills all bits."""
        if last and self._presence.pairs:
            self._full += self._taken()
        taken, self._full = self._full, []
        return taken

    def _taken(self) -> list[tuple[Form, Taken]]:
        bit_keys, bits, interval_keys, starts, lengths = self._presence.take()
        if self.width == 0:
            bit_keys, interval_keys = bit_keys[:, 0], interval_keys[:, 0]
        taken: list[tuple[Form, Taken]] = []
        if len(bits):
            taken.append((Form.BITS, (bit_keys, np.full(len(bits), self._first, dtype=np.uint32), None, bits)))
        if len(lengths):
            taken.append((Form.INTERVAL, (interval_keys, starts + np.uint32(self._first), None, lengths)))
        return taken


class _Rows:
    """Growing columns for the pairs of `Pairs` of one layout."""

    def __init__(self, width: int, values: Column) -> None:
        self.width = width
        self._size = 0
        self._keys = np.empty((1024, width) if width else 1024, dtype=np.int64)
        self._values = None if values is None else np.empty((1024, *values.shape[1:]), dtype=values.dtype)
        self.row_bytes = 4 + row_bytes(self._keys) + (0 if self._values is None else row_bytes(self._values))
        self._runs: list[tuple[int, int, int]] = []  # count, at, first place in the emission
        self._spare = np.empty(0, dtype=np.uint8)

    def __len__(self) -> int:
        return self._size

    def add(self, keys: npt.NDArray[np.int64], values: Column, at: int, emitted: int) -> None:
        start, stop = self._size, self._size + len(keys)
        if stop > len(self._keys):
            self._grow(stop)
        self._keys[start:stop] = keys
        if self._values is not None:
            self._values[start:stop] = values
        self._runs.append((stop - start, at, emitted))
        self._size = stop

    def sharded(self, shards: int, room: Callable[[int], Raw]) -> Block:
        """Return the pairs ordered by shard."""
        n, self._size = self._size, 0
        counts, rows, _ = np.array(self._runs, dtype=np.int64).T.copy()
        self._runs = []
        keys, values = self._keys[:n], None if self._values is None else self._values[:n]
        target = room(n * self.row_bytes)
        if len(self._spare) < len(target) <= SPARE:
            self._spare = np.empty(len(target), dtype=np.uint8)
        spare = self._spare if len(target) <= SPARE else target
        bytes_of_values = raw(np.empty(0) if values is None else values)
        bounds = shard_pairs(keys.reshape(n, -1), counts, rows, bytes_of_values, shards, spare, target)
        edges = np.cumsum([keys.nbytes, 4 * n]).tolist()
        return Block(
            form=Form.PAIR,
            width=self.width,
            keys=target[: edges[0]].view(np.int64).reshape(keys.shape),
            at=target[edges[0] : edges[1]].view(np.uint32),
            order=None,
            values=None if values is None else _column(target[edges[1] :], values),
            bounds=bounds,
        )

    def take(self, ordered: bool) -> Taken:
        """Return the columns; keys and values are views that hold until the next pair is added."""
        n, self._size = self._size, 0
        counts, rows, emitted = np.array(self._runs, dtype=np.int64).T
        self._runs = []
        order = None
        if ordered:
            starts = np.cumsum(counts) - counts
            order = (np.arange(n) + np.repeat(emitted - starts, counts)).astype(np.uint32)
        at = np.repeat(rows.astype(np.uint32), counts)
        return self._keys[:n], at, order, None if self._values is None else self._values[:n]

    def _grow(self, rows: int) -> None:
        rows = max(rows, 2 * len(self._keys))
        self._keys = _grown(self._keys, self._size, rows)
        if self._values is not None:
            self._values = _grown(self._values, self._size, rows)


def _grown(column: npt.NDArray[Any], used: int, rows: int) -> npt.NDArray[Any]:
    larger = np.empty((rows, *column.shape[1:]), dtype=column.dtype)
    larger[:used] = column[:used]
    return larger


def _column(data: Raw, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return bytes as a column of the same rows as another."""
    return data.view(like.dtype).reshape(like.shape) if like.nbytes else like


class _Items:
    """Lists for the pairs that were yielded one by one."""

    row_bytes = 64  # about what one takes in four lists, beside its value

    def __init__(self, width: int) -> None:
        self.width = width
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._at: list[int] = []
        self._order: list[int] = []

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: Any, value: Any, at: int, emitted: int) -> None:
        self._keys.append(key)
        self._values.append(value)
        self._at.append(at)
        self._order.append(emitted)

    def take(self, ordered: bool) -> Taken:
        """Return the lists as columns."""
        n = len(self._keys)
        taken = (
            np.array(self._keys, dtype=np.int64),
            np.array(self._at, dtype=np.uint32),
            np.array(self._order, dtype=np.uint32) if ordered else None,
            np.fromiter(self._values, dtype=object, count=n),
        )
        self._keys, self._values, self._at, self._order = [], [], [], []
        return taken


def _block(form: Form, width: int, taken: Taken, shards: int, names: dict[bytes, int] | None = None) -> Block:
    """Return the rows of one stream ordered by shard."""
    keys, at, order, values = taken
    sorted_names: list[bytes] | None = None
    name_bounds: Bounds | None = None
    if width == ENCODED and names is not None:
        keys, shard_of, sorted_names, name_bounds = _order_names(names, keys, shards)
    else:
        keys = np.ascontiguousarray(keys)
        shard_of = shard_rows(keys.reshape(len(keys), -1), shards)
    places, bounds = count_places(shard_of, shards)
    return Block(
        form=form,
        width=width,
        keys=moved(keys, places),
        at=moved(at, places),
        order=None if order is None else moved(order, places),
        values=None if values is None else moved(values, places),
        bounds=bounds,
        names=sorted_names,
        name_bounds=name_bounds,
    )


def _order_names(
    names: dict[bytes, int], keys: npt.NDArray[np.int64], shards: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint16], list[bytes], Bounds]:
    """Order encoded keys by shard; return the rows' keys as places in that order, their shards, the keys, bounds."""
    listed = list(names)
    hashes = np.array([hash_bytes(name) for name in listed], dtype=np.int64)
    shard_of = shard_rows(hashes.reshape(-1, 1), shards)
    places, bounds = count_places(shard_of, shards)
    ordered = moved(np.fromiter(listed, dtype=object, count=len(listed)), places).tolist()
    return places.astype(np.int64)[keys], shard_of[keys], ordered, bounds


def hash_bytes(name: bytes) -> int:
    """Return a hash of an encoded key that is the same everywhere."""
    return crc32(name)


def _describe(item: Any) -> str:
    return f"a tuple of {len(item)}" if type(item) is tuple else f"an object of type {type(item).__name__}"
