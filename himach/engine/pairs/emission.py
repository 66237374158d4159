"""From what map() yields to blocks: `Emission` copies pairs at the yield and sorts them by shard.

Pairs of one key width and one layout of values form a stream (`himach.engine.pairs.streams`).
`Emission.close_chunk()` turns the streams of a chunk into `Block`s. `RowEmission` also takes table rows; a range of
frame numbers shares a key, so that the rows of one key are a piece of the table.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from himach.analysis import Pairs, Row
from himach.engine.pairs.block import Block
from himach.engine.pairs.keys import ENCODED, split
from himach.engine.pairs.streams import ArrayStream, ItemStream, PresenceStream, RowStream, cells_bytes
from himach.engine.pairs.values import snapshot
from himach.engine.stamps import Stamps
from himach.errors import AnalysisError
from himach.selection import Selected

Box = npt.NDArray[np.float32]
ALLOWED = "yield pairs (key, value) or himach.Pairs(keys, values)"
#: Most pairs of one chunk: their positions are uint32.
MAX_PAIRS = 2**32 - 1
#: log2 of the number of frame numbers per piece of a table. It affects kept pairs (`FORMAT` of
#: `himach.checkpoint.sources`) and the last bits of sums over tables.
ROW_BITS = 14
#: Approximate bytes of presence per pair as a bit, and per frame with few pairs.
BIT, FEW = 2, 16


class Emission:
    """Pairs of one chunk of frames, copied at the yield: `pairs` is their number, `nbytes` their approximate size.

    Frames with pairs are added to the table `stamps`. `tabled` tells whether there were rows of a table.
    """

    def __init__(self, stamps: Stamps) -> None:
        self.pairs = 0
        self.nbytes = 0
        self.tabled = False
        self.stamps = stamps
        self._row = -1
        self._stamp: tuple[int, float, Box | None, bytes | None] = (0, 0.0, None, None)
        self._streams: dict[Any, ArrayStream | ItemStream] = {}
        self._bits = _Bits()
        self._note = self._bits[0].note
        self._encoded: dict[bytes, bytes] = {}

    def begin(self, step: int, time: float, box: Box | None, source: bytes | None = None) -> None:
        """Begin a frame: pairs added from now on carry this stamp (and the key of their source series)."""
        self._stamp = (step, time, box, source)
        self._row = -1

    def resume(self, row: int) -> None:
        """Continue an earlier frame."""
        self._row = row

    def row(self) -> int:
        """Return the row of the current frame in the table of stamps."""
        if self._row < 0:
            self._row = self.stamps.add(*self._stamp)
        return self._row

    def extend(self, items: Any) -> None:
        """Add what map() yields; copy each item before requesting the next."""
        if items is None:
            return
        if isinstance(items, Pairs | Row):
            items = (items,)
        if type(items) is tuple and len(items) == 2 and not any(isinstance(item, Pairs | tuple) for item in items):
            raise AnalysisError("it returned a pair, and map() yields them: yield key, value")
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
            elif isinstance(item, Row):
                self.add_table_row(item)
            else:
                raise AnalysisError(f"it yielded {_describe(item)}; {ALLOWED}")

    def add(self, key: Any, value: Any) -> None:
        """Add one pair."""
        try:
            copied = snapshot(value)
        except AnalysisError as error:
            raise AnalysisError(f"key {key!r}: {error}") from error.__cause__
        width, plain = split(key)
        if width == ENCODED:
            plain = self._encoded.setdefault(plain, plain)  # one object for all pairs of a key
        stream = self._streams.get(width)
        if stream is None:
            stream = self._streams[width] = ItemStream(width)
        stream.add(plain, copied, self._row if self._row >= 0 else self.row(), self.pairs)
        self.pairs += 1
        self.nbytes += stream.row_bytes + (len(copied) if type(copied) is bytes else getattr(copied, "nbytes", 0))

    def add_columns(self, pairs: Pairs) -> None:
        """Add many pairs."""
        keys, values = pairs.keys, pairs.values
        n = len(keys)
        if n == 0:
            return
        row = self._row
        if row < 0:
            row = self._row = self.stamps.add(*self._stamp)
        self.pairs += n
        # Fast path for most presence: avoid function calls.
        if values is None and keys.ndim == 1 and not self._streams and self._note(keys, row):
            self.nbytes += n * BIT + FEW
            return
        width = 0 if keys.ndim == 1 else keys.shape[1]
        if values is None and (not self._streams or self._takes_bits(width)) and self._bits[width].add(keys, row):
            self.nbytes += n * BIT + FEW
        else:
            layout = (width, None) if values is None else (width, values.dtype, values.shape[1:])
            stream = self._streams.get(layout)
            if stream is None:
                stream = self._streams[layout] = ArrayStream(width, values)
            stream.add(keys, values, row, self.pairs - n)
            self.nbytes += n * stream.row_bytes

    def add_table_row(self, row: Row) -> None:
        """Add a row of a table by frame."""
        raise AnalysisError(
            "it yielded a himach.Row, and there is a combine() or a `then`, which take pairs: leave them out, or yield "
            "pairs"
        )

    def add_row(self, key: int | tuple[int, ...], value: npt.NDArray[Any]) -> None:
        """Add one pair whose value is a row of a column, as if it came in `Pairs`."""
        values = value[np.newaxis]
        self.add_columns(Pairs(np.array([key], dtype=np.int64), values))

    def _takes_bits(self, width: int) -> bool:
        """Return whether presence of this width may be stored as bits.

        Bits lose the order of emission within a frame and sort before all else. So a width uses no bits once it has
        other streams in this chunk.
        """
        return not any(stream.width == width and len(stream) for stream in self._streams.values())

    def close_chunk(self, shards: int, last: bool = True) -> list[Block]:
        """Return the chunk's pairs sorted by shard, and begin a new chunk."""
        if self.pairs > MAX_PAIRS:
            raise AnalysisError(f"one frame, or one key, yielded {self.pairs} pairs; at most {MAX_PAIRS} are possible")
        blocks = [block for bits in self._bits.values() for block in bits.blocks(shards, last)]
        # A layout not used in this chunk may never occur again.
        self._streams = {layout: stream for layout, stream in self._streams.items() if len(stream)}
        widths = [stream.width for stream in self._streams.values()]
        blocks += [stream.block(shards, widths.count(stream.width) > 1) for stream in self._streams.values()]
        self.pairs = self.nbytes = 0
        self._encoded = {}
        return blocks


class RowEmission(Emission):
    """Pairs, and at most one row of a table per frame; `frames` are the selected frame numbers.

    The key of a row is its frame number without the last `ROW_BITS` bits. Its value is an element of a structured array
    if all cells are numbers; else the tuples of names and cells.
    """

    def __init__(self, stamps: Stamps, frames: Selected) -> None:
        super().__init__(stamps)
        self._frames = frames
        self._rows: dict[Any, RowStream] = {}  # by names and types of cells
        self._last = -1  # stamp row of the last frame with a table row

    def add_table_row(self, row: Row) -> None:
        """Add a row of a table by frame."""
        at = self.row()
        if at == self._last:
            raise AnalysisError("it yielded a second himach.Row of one frame; put all its columns into one")
        self._last, self.tabled = at, True
        key = self._frames[self._stamp[0]] >> ROW_BITS
        names, cells = row.names, row.values
        layout = (names, *map(type, cells))
        stream = self._rows.get(layout)
        if stream is None:
            stream = self._rows[layout] = RowStream(names, cells)
        if not stream.add(key, at, cells):
            stream = self._rows.setdefault(names, RowStream(names))
            stream.add(key, at, cells)
        self.pairs += 1
        self.nbytes += cells_bytes(cells) if stream.row_bytes is None else stream.row_bytes

    def close_chunk(self, shards: int, last: bool = True) -> list[Block]:
        """Return the chunk's pairs and rows sorted by shard, and begin a new chunk."""
        blocks = super().close_chunk(shards, last)
        return blocks + [stream.block(shards) for stream in self._rows.values() if len(stream)]


class TableEmission(RowEmission):
    """Rows of a table by frame, without pairs."""

    def add(self, key: Any, value: Any) -> None:
        """Refuse a pair."""
        raise AnalysisError(
            "it yielded a pair, and there is no reduce() that takes it: write one, or yield a row of a table by frame, "
            "himach.Row(name=value)"
        )

    def add_columns(self, pairs: Pairs) -> None:
        """Refuse pairs."""
        self.add(None, None)


class _Bits(dict[int, PresenceStream]):
    """The presence of keys of each width."""

    def __missing__(self, width: int) -> PresenceStream:
        stream = self[width] = PresenceStream(width)
        return stream


def _describe(item: Any) -> str:
    return f"a tuple of {len(item)}" if type(item) is tuple else f"an object of type {type(item).__name__}"
