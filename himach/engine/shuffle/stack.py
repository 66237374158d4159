"""`MergedBlocks`: blocks of one kind as one block, sorted by shard, then by block."""

from collections.abc import Iterator, Sequence

import numpy as np

from himach.engine.pairs.block import Array, Block, Bounds, ColumnSpec, raw
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

    def column(self, name: str, start: int, stop: int) -> Array:
        """Return some shards of a column of all blocks."""
        bounds = np.ascontiguousarray(self.bounds[:, start : stop + 1])
        rows = int((bounds[:, -1] - bounds[:, 0]).sum())
        return self._join_column(name, self.specs[name], bounds, rows)

    def column_by_block(self, name: str, start: int, stop: int) -> Iterator[Array]:
        """Yield some shards of a column, block by block."""
        for column, bounds in zip(self._columns[name], self.bounds, strict=True):
            yield column[bounds[start] : bounds[stop]]

    def _join_column(self, name: str, spec: ColumnSpec, bounds: Bounds, rows: int) -> Array:
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
    """Return some shards of a column of objects, which `join_shards` cannot move."""
    slices = zip(columns, bounds[:, 0].tolist(), bounds[:, -1].tolist(), strict=True)
    joined = np.concatenate([column[start:stop] for column, start, stop in slices])
    sizes = np.diff(bounds)
    shards = np.repeat(np.tile(np.arange(sizes.shape[1]), len(sizes)), sizes.reshape(-1))
    result: Array = joined[np.argsort(shards, kind="stable")]
    return result
