"""`MergedBlocks`: blocks of one kind as one block, sorted by shard, then by block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from himach.engine.pairs.block import Array, Block, Bounds, ColumnSpec, raw, row_bytes
from himach.engine.pairs.sharding import join_shards


class MergedBlocks:
    """One or more blocks of one kind, and their column types; a column missing in a block is 0 there."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = blocks
        self.bounds: Bounds = np.array([block.bounds for block in blocks], dtype=np.int64)
        self.specs: dict[str, ColumnSpec] = {}
        for block in blocks:
            self.specs |= block.specs
        columns = [block.columns() for block in blocks]
        self._columns = {name: [_column(named, name, spec) for named in columns] for name, spec in self.specs.items()}
        self._addresses = {
            name: np.array([column.__array_interface__["data"][0] for column in stacked], dtype=np.uint64)
            for name, stacked in self._columns.items()
        }

    def part(self, start: int, stop: int) -> Block:
        """Return the shards from `start` to `stop` as one block."""
        first = self.blocks[0]
        if len(self.blocks) == 1:
            return first.part(start, stop)
        # Fast path for nearly all pairs: no loop over blocks.
        bounds = np.ascontiguousarray(self.bounds[:, start : stop + 1])
        joint = bounds.sum(axis=0)
        joint -= joint[0]
        columns = {name: self._join_column(name, spec, bounds, int(joint[-1])) for name, spec in self.specs.items()}
        return Block(first.form, first.width, joint, **columns)

    def _join_column(self, name: str, spec: ColumnSpec, bounds: Bounds, rows: int) -> Array:
        """Return some shards of a column of all blocks."""
        if spec.dtype.hasobject:
            return _join_objects(self._columns[name], bounds)
        out = spec.empty(rows)
        if out.nbytes:
            join_shards(self._addresses[name], bounds, spec.nbytes, raw(out))
        return out


def _column(columns: dict[str, Array], name: str, spec: ColumnSpec) -> Array:
    column = columns.get(name)
    return np.zeros((len(columns["at"]), *spec.shape), dtype=spec.dtype) if column is None else column


def _join_objects(columns: Sequence[Array], bounds: Bounds) -> Array:
    """Return some shards of a column of objects; sort their indices, as `join_shards` cannot move objects."""
    slices = zip(columns, bounds[:, 0].tolist(), bounds[:, -1].tolist(), strict=True)
    joined = np.concatenate([column[start:stop] for column, start, stop in slices])
    bounds = bounds - bounds[:, :1]
    starts = np.cumsum(bounds[:, -1]) - bounds[:, -1]
    places: npt.NDArray[np.int64] = np.arange(len(joined))
    ordered = np.empty(len(joined), dtype=np.int64)
    addresses = places.ctypes.data + starts.astype(np.uint64) * np.uint64(row_bytes(places))
    join_shards(addresses, np.ascontiguousarray(bounds), row_bytes(places), raw(ordered))
    result: Array = joined[ordered]
    return result
