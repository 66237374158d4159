"""What map() yields becomes blocks: `Emission` copies pairs at the yield and orders them by shard.

Pairs of one width of key and one layout of values are one stream: growing columns for `Pairs`, lists for pairs that
were yielded one by one. `Emission.freeze()` turns the streams of a chunk into `Block`s.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from himach.analysis import Pairs
from himach.engine.columns import Block, Column, FrameTable, moved
from himach.engine.kernels import count_places, shard_rows
from himach.engine.keys import ENCODED, split
from himach.engine.values import keep
from himach.errors import AnalysisError

__all__ = ["Emission"]

Box = npt.NDArray[np.float32]
ALLOWED = "yield pairs (key, value) or himach.Pairs(keys, values)"
#: Pairs of one chunk, at most: their places are uint32.
MOST = 2**32 - 1
NO_BOX = np.full(6, np.nan, dtype=np.float32).tobytes()


class Emission:
    """Pairs of one chunk of frames, copied as they are yielded.

    Attributes
    ----------
    pairs
        How many pairs this chunk holds.
    """

    def __init__(self) -> None:
        self.pairs = 0
        self._row = -1
        self._streams: dict[Any, _Rows | _Items] = {}
        self._names: dict[bytes, int] = {}
        self._steps: list[int] = []
        self._times: list[float] = []
        self._boxes: list[bytes] = []
        self._sources: list[bytes] | None = None

    def begin(self, step: int, time: float, box: Box | None, source: bytes | None = None) -> int:
        """Begin a frame: what is added from now on carries this stamp (and the key of the series it came from).

        Returns the frame's row, for `resume()`.
        """
        self._steps.append(step)
        self._times.append(time)
        self._boxes.append(NO_BOX if box is None else np.asarray(box, dtype=np.float32).tobytes())
        if source is not None:
            if self._sources is None:
                self._sources = []
            self._sources.append(source)
        self._row = len(self._steps) - 1
        return self._row

    def resume(self, row: int) -> None:
        """Go on with a frame that was begun before."""
        self._row = row

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
        elif not isinstance(items, Iterable):
            raise AnalysisError(f"it returned {_describe(items)}; {ALLOWED}")
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
        stream.add(kept_key, kept, self._row, self.pairs)
        self.pairs += 1

    def add_columns(self, pairs: Pairs) -> None:
        """Add many pairs."""
        keys, values = pairs.keys, pairs.values
        n = len(keys)
        if n == 0:
            return
        width = 0 if keys.ndim == 1 else keys.shape[1]
        layout = (width, None) if values is None else (width, values.dtype, values.shape[1:])
        stream = self._streams.get(layout)
        if stream is None:
            stream = self._streams[layout] = _Rows(width, values)
        stream.add(keys, values, self._row, self.pairs)
        self.pairs += n

    def freeze(self, shards: int) -> list[Block]:
        """Return the chunk's pairs ordered by shard, and begin a new chunk.

        Raises
        ------
        AnalysisError
            If the chunk has more pairs than a block can count.
        """
        if self.pairs > MOST:
            raise AnalysisError(f"one frame, or one key, yielded {self.pairs} pairs; at most {MOST} are possible")
        table = FrameTable(
            steps=np.array(self._steps, dtype=np.int64),
            times=np.array(self._times, dtype=np.float64),
            boxes=self._take_boxes(),
            sources=self._sources,
        )
        # A layout that this chunk did not use may never come again.
        self._streams = {layout: stream for layout, stream in self._streams.items() if len(stream)}
        widths = [stream.width for stream in self._streams.values()]
        blocks = []
        for stream in self._streams.values():
            taken = stream.take(ordered=widths.count(stream.width) > 1)
            blocks.append(_block(table, stream.width, taken, shards, self._names))
        self.pairs = 0
        self._names = {}
        self._steps, self._times, self._sources = [], [], None
        return blocks

    def _take_boxes(self) -> npt.NDArray[np.float32] | None:
        boxes, self._boxes = self._boxes, []
        if all(box == NO_BOX for box in boxes):
            return None
        return np.frombuffer(b"".join(boxes), dtype=np.float32).reshape(-1, 6)


# Keys, rows of the frame table, order of emission if asked for, values.
Taken = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32], npt.NDArray[np.uint32] | None, Column]


class _Rows:
    """Growing columns for the pairs of `Pairs` of one layout."""

    def __init__(self, width: int, values: Column) -> None:
        self.width = width
        self._size = 0
        self._keys = np.empty((1024, width) if width else 1024, dtype=np.int64)
        self._values = None if values is None else np.empty((1024, *values.shape[1:]), dtype=values.dtype)
        self._runs: list[tuple[int, int, int]] = []  # count, at, first place in the emission

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


class _Items:
    """Lists for the pairs that were yielded one by one."""

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


def _block(table: FrameTable, width: int, taken: Taken, shards: int, names: dict[bytes, int]) -> Block:
    """Return the pairs of one stream ordered by shard."""
    keys, at, order, values = taken
    if width == ENCODED:
        keys, shard_of, sorted_names, name_bounds = _order_names(names, keys, shards)
    else:
        shard_of, sorted_names, name_bounds = shard_rows(keys.reshape(len(keys), -1), shards), None, None
    places, bounds = count_places(shard_of, shards)
    return Block(
        frames=table,
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
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint16], list[bytes], npt.NDArray[np.int64]]:
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
