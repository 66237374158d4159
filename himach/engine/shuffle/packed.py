"""`CompactBlock`: a block of intervals in few bytes, for frames of few pairs, of which there may be a great many."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from himach.engine.pairs.block import Array, Block, Bounds, Form, Kind
from himach.engine.shuffle.stack import ColumnSpec

#: Frames for each interval of a block that is worth the time, and intervals for each of its keys.
FRAMES, INTERVALS = 1 / 8, 4


@dataclass(frozen=True, slots=True, eq=False)
class CompactBlock:
    """A block of intervals whose rows are by key in each shard; their order means nothing.

    Keys are there once, frames as what they are after those of the interval before. `bounds` are those of the `Block`.
    """

    bounds: Bounds
    _keys: Array
    _counts: Array  # intervals of each key
    _firsts: Array  # `at` of the first
    _after: Array
    _lengths: Array  # one row if all are as long
    _of_shards: Bounds  # the keys of each shard

    @property
    def kind(self) -> Kind:
        """What it has in common with blocks of its lot."""
        return Kind(0, Form.INTERVAL, np.dtype(np.uint32), ())

    @property
    def specs(self) -> dict[str, ColumnSpec]:
        """What its columns are."""
        number = ColumnSpec(np.dtype(np.uint32), ())
        return {"keys": ColumnSpec(np.dtype(np.int64), ()), "at": number, "values": number}

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes."""
        columns = self.bounds, self._keys, self._counts, self._firsts, self._after, self._lengths, self._of_shards
        return sum(column.nbytes for column in columns)

    def part(self, start: int, stop: int) -> Block:
        """Return the shards from `start` to `stop`."""
        first, last = self.bounds[[start, stop]].tolist()
        keys = slice(*self._of_shards[[start, stop]].tolist())
        counts = self._counts[keys]
        at = np.cumsum(self._after[first:last], dtype=np.uint32)
        starts = np.cumsum(counts) - counts
        at += np.repeat(self._firsts[keys] - at[starts], counts)
        lengths = np.repeat(self._lengths, last - first) if len(self._lengths) == 1 else self._lengths[first:last]
        bounds = self.bounds[start : stop + 1] - first
        return Block(
            Form.INTERVAL, 0, bounds, np.repeat(self._keys[keys], counts), at, values=lengths.astype(np.uint32)
        )


def packed(block: Block) -> Block | CompactBlock:
    """Return a block in fewer bytes, if it is one of intervals of few pairs a frame; else itself."""
    n = len(block)
    if block.form != Form.INTERVAL or block.width != 0 or n < len(block.bounds) or block.values is None:
        return block
    if int(np.ptp(block.at)) < n * FRAMES:
        return block
    shards = np.repeat(np.arange(len(block.bounds) - 1), np.diff(block.bounds))
    order = np.lexsort((block.at, block.keys, shards))
    keys, at, lengths = block.keys[order], block.at[order], block.values[order]
    new = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    if len(new) * INTERVALS > n:
        return block
    after = np.diff(at, prepend=at[:1])
    after[new] = 0
    same = lengths[:1] if (lengths == lengths[0]).all() else lengths
    return CompactBlock(
        block.bounds,
        keys[new],
        np.diff(new, append=n),
        at[new],
        after.astype(np.min_scalar_type(int(after.max()))),
        same.astype(np.min_scalar_type(int(same.max()))),
        np.searchsorted(new, block.bounds),
    )
