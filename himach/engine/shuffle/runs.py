"""`Runs`: where blocks are put until the shuffle, in memory and, beyond `Memory.limit`, on disk.

Blocks of one kind make a lot. `Runs.part()` gives the same shards of all blocks of a lot as one block, so that what
comes later has few blocks to do with, however many chunks there were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.engine.pairs.arena import Arena
from himach.engine.pairs.block import SHARDS, Block, Bounds, Kind, Raw, raw, row_bytes
from himach.engine.pairs.keys import ENCODED
from himach.engine.pairs.sharding import join_shards
from himach.engine.shuffle.spill import Scratch, Spilled, spill

__all__ = ["Memory", "Runs"]

#: Bytes that are ordered at a time on their way to the disk.
PIECE = 1 << 22


class Memory:
    """How much memory the pairs of this rank may take, over all its `Runs`.

    Parameters
    ----------
    limit
        Bytes.
    directory
        Where pairs go that do not fit: on a local disk of this node.

    Attributes
    ----------
    spilled
        Bytes that went to the disk.
    """

    def __init__(self, limit: int, directory: Path) -> None:
        self.limit = limit
        self.directory = directory
        self.spilled = 0
        self._held: dict[Runs, int] = {}

    def hold(self, runs: Runs, nbytes: int) -> None:
        """Take note that `runs` holds so many bytes more; if that is too much, the largest goes to the disk."""
        self._held[runs] = self._held.get(runs, 0) + nbytes
        # The other half is for the shuffle, which has its blocks twice, and for what is merged.
        if sum(self._held.values()) > self.limit // 2:
            largest = max(self._held, key=self._held.__getitem__)
            self._held[largest] = 0
            self.spilled += largest.spill(self.directory)

    def release(self, runs: Runs) -> None:
        """Take note that `runs` holds nothing any more."""
        self._held.pop(runs, None)


class Runs:
    """The blocks of finished chunks.

    Parameters
    ----------
    memory
        Counts what is held, and asks for it to be spilled.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._lots: dict[Kind, _Lot] = {}
        self._arena = Arena()
        self._scratch: Scratch | None = None

    def room(self, nbytes: int) -> Raw:
        """Return memory for a block that will be put, uint8 (nbytes,)."""
        return self._arena.take(nbytes)

    def put(self, blocks: Sequence[Block]) -> None:
        """Put the blocks of a chunk."""
        for block in blocks:
            kind = block.kind
            lot = self._lots.get(kind)
            if lot is None:
                lot = self._lots[kind] = _Lot(kind)
            lot.blocks.append(block)
        if blocks:
            self._memory.hold(self, sum(block.nbytes for block in blocks))

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return int64 (shards,): about how many bytes each shard will take in the shuffle."""
        return sum((lot.sizes() for lot in self._lots.values()), np.zeros(SHARDS, dtype=np.int64))

    def part(self, start: int, stop: int) -> list[Block]:
        """Return the shards from `start` to `stop`, one block of each kind that has pairs in them."""
        parts = [lot.part(start, stop) for lot in self._lots.values()]
        return [part for part in parts if part is not None]

    def spill(self, directory: Path) -> int:
        """Write to the disk what is in memory; return how many bytes that were."""
        if self._scratch is None:
            self._scratch = Scratch(directory)
        before = self._scratch.size
        for lot in self._lots.values():
            lot.spill(self._scratch)
        self._arena = Arena()
        return self._scratch.size - before

    @property
    def spilled(self) -> bool:
        """Whether some of the blocks are on the disk."""
        return self._scratch is not None

    def clear(self) -> None:
        """Forget everything that was put."""
        self._lots.clear()
        self._arena = Arena()
        self._memory.release(self)
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None


class _Lot:
    """Blocks of one kind, in the order in which they were put: those on disk, then those in memory."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.blocks: list[Block] = []
        self._spilled: list[Spilled] = []
        self._bounds = np.zeros((0, SHARDS + 1), dtype=np.int64)
        self._addresses = np.zeros((3, 0), dtype=np.uint64)

    def bounds(self) -> Bounds:
        """Return the bounds of the blocks in memory, int64 (blocks, shards + 1)."""
        if len(self._bounds) != len(self.blocks):
            self._bounds = np.array([block.bounds for block in self.blocks], dtype=np.int64).reshape(-1, SHARDS + 1)
            self._addresses = np.array([_addresses(block) for block in self.blocks], dtype=np.uint64).T.copy()
        return self._bounds

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return int64 (shards,): about how many bytes each shard takes."""
        bounds = self.bounds().sum(axis=0) + sum(part.bounds for part in self._spilled)
        width, _, dtype, shape = self.kind
        row = 4 + 8 * max(width, 1) + (0 if dtype is None else dtype.itemsize * int(np.prod(shape)))
        rows = int(self.bounds()[:, -1].sum())
        if self.blocks and (width == ENCODED or (dtype is not None and dtype.hasobject)):
            row = max(row, sum(block.nbytes for block in self.blocks) // max(rows, 1))
        sizes: npt.NDArray[np.int64] = np.diff(bounds) * row
        return sizes

    def part(self, start: int, stop: int) -> Block | None:
        """Return the shards from `start` to `stop` as one block, None if they are empty."""
        parts = [spilled.part(start, stop) for spilled in self._spilled]
        if self.blocks:
            parts.append(self._held(start, stop))
        parts = [part for part in parts if len(part)]
        if len(parts) > 1:
            return _joined(parts, np.array([part.bounds for part in parts]))
        return parts[0] if parts else None

    def _held(self, start: int, stop: int) -> Block:
        """Return the shards from `start` to `stop` of what is in memory."""
        if len(self.blocks) == 1:
            return self.blocks[0].part(start, stop)
        bounds = np.ascontiguousarray(self.bounds()[:, start : stop + 1])
        width, form, dtype, shape = self.kind
        if self._is_plain():
            # The way of nearly all pairs: nothing is done block by block.
            joint = bounds.sum(axis=0)
            joint -= joint[0]
            n = int(joint[-1])
            keys, at = np.empty((n, width) if width else n, dtype=np.int64), np.empty(n, dtype=np.uint32)
            values = None if dtype is None else np.empty((n, *shape), dtype=dtype)
            for column, addresses in zip((keys, at, values), self._addresses, strict=True):
                if column is not None and column.nbytes:
                    join_shards(addresses, bounds, row_bytes(column), raw(column))
            return Block(form, width, keys, at, None, values, joint)
        some = bounds[:, -1] > bounds[:, 0]
        if not some.any():
            return self.blocks[0].part(start, stop)
        return _joined([block for block, has in zip(self.blocks, some.tolist(), strict=True) if has], bounds[some])

    def _is_plain(self) -> bool:
        """Tell whether the blocks are keys, frames and numbers, and nothing else."""
        width, _, dtype, _ = self.kind
        objects = dtype is not None and dtype.hasobject
        return width != ENCODED and not objects and all(block.order is None for block in self.blocks)

    def spill(self, scratch: Scratch) -> None:
        """Move the blocks in memory to the disk."""
        if not self.blocks:
            return
        width, _, dtype, _ = self.kind
        joint = self.bounds().sum(axis=0)
        one_by_one = width == ENCODED or (dtype is not None and dtype.hasobject)
        step = 1 if one_by_one else max(1, SHARDS * PIECE // max(1, sum(block.nbytes for block in self.blocks)))
        ordered = any(block.order is not None for block in self.blocks)
        self._spilled.append(spill(scratch, self.kind, ordered, joint, self._pieces(step)))
        self.blocks = []
        self._bounds = np.zeros((0, SHARDS + 1), dtype=np.int64)

    def _pieces(self, step: int) -> Iterator[tuple[int, Block]]:
        for start in range(0, SHARDS, step):
            part = self._held(start, min(start + step, SHARDS))
            if len(part):
                yield start, part


def _addresses(block: Block) -> tuple[int, int, int]:
    """Return where keys, frames and values are in memory."""
    columns = (block.keys, block.at, block.at if block.values is None else block.values)
    keys, at, values = (column.__array_interface__["data"][0] for column in columns)
    return keys, at, values


def _joined(blocks: Sequence[Block], bounds: Bounds) -> Block:
    """Return some shards of `blocks` as one block: shard by shard, in each the blocks in their order.

    Parameters
    ----------
    blocks
        Of one kind, at least one.
    bounds
        int64 (blocks, shards + 1): where those shards begin and end in each.
    """
    joint = bounds.sum(axis=0)
    keys, names = _joined_keys(blocks, bounds)
    order = None
    if any(block.order is not None for block in blocks):
        order = _column([np.zeros(len(b), np.uint32) if b.order is None else b.order for b in blocks], bounds)
    return Block(
        form=blocks[0].form,
        width=blocks[0].width,
        keys=keys,
        at=_column([block.at for block in blocks], bounds),
        order=order,
        values=None if blocks[0].values is None else _column([block.values for block in blocks], bounds),
        bounds=joint - joint[0],
        names=names,
    )


def _joined_keys(blocks: Sequence[Block], bounds: Bounds) -> tuple[npt.NDArray[np.int64], list[bytes] | None]:
    """Return keys, and the encoded keys of which they are places."""
    if blocks[0].names is None:
        return _column([block.keys for block in blocks], bounds), None
    names: list[bytes] = []
    keys = []
    for block, start, stop in zip(blocks, bounds[:, 0].tolist(), bounds[:, -1].tolist(), strict=True):
        # Names are in the order of shards, so that those of some shards follow one another.
        column = block.keys[start:stop]
        first, last = int(column.min()), int(column.max())
        keys.append(column + (len(names) - first))
        names += (block.names or [])[first : last + 1]
    return _column(keys, bounds - bounds[:, :1]), names


def _column(columns: Sequence[Any], bounds: Bounds) -> npt.NDArray[Any]:
    """Return some shards of one column of many blocks."""
    first = columns[0]
    rows = bounds[:, -1] - bounds[:, 0]
    if first.dtype.hasobject:
        # Objects are put into order by their places, which are no objects.
        slices = zip(columns, bounds[:, 0].tolist(), bounds[:, -1].tolist(), strict=True)
        joined = np.concatenate([column[start:stop] for column, start, stop in slices])
        ends = np.cumsum(rows)
        places = [np.arange(end - n, end) for end, n in zip(ends.tolist(), rows.tolist(), strict=True)]
        ordered: npt.NDArray[Any] = joined[_column(places, bounds - bounds[:, :1])]
        return ordered
    out = np.empty((int(rows.sum()), *first.shape[1:]), dtype=first.dtype)
    if out.nbytes:
        held = [np.ascontiguousarray(column) for column in columns]
        addresses = np.array([column.ctypes.data for column in held], dtype=np.uint64)
        join_shards(addresses, np.ascontiguousarray(bounds), row_bytes(out), raw(out))
    return out
