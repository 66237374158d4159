"""`Runs`: holds blocks until the shuffle, in memory and, beyond `Memory.limit`, on disk.

Blocks of one kind form a list. `Runs.part()` joins the same shards of all blocks of a list into one block, so that
later steps handle few blocks, however many chunks there were.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from himach.engine.pairs.block import SHARDS, Block, Bounds, Kind, by_shard, reshard
from himach.engine.shuffle.block_file import FileBlock
from himach.engine.shuffle.spill import Scratch
from himach.engine.shuffle.stack import MergedBlocks

#: Number of parts of a shard, to detect whether one key has most of its bytes.
KEY_PARTS = 64


class Memory:
    """Memory limit, in bytes, of this rank's pairs over all its `Runs`.

    Excess pairs go to `directory`, on a local disk of this node; `spilled` counts their bytes. `relieve` is called
    first and may free memory (`Runs.exchange`). `warn` is called with a message about what will not fit, including a
    table of rows, whose limit is `table` bytes.
    """

    def __init__(self, limit: int, directory: Path) -> None:
        self.limit = limit
        self.directory = directory
        self.spilled = 0
        self.relieve: Callable[[], object] = _nothing
        self.warn: Callable[[str], object] = _nothing
        self.table = sys.maxsize
        self._bytes: dict[Runs, int] = {}

    def add(self, runs: Runs, nbytes: int) -> None:
        """Record that `runs` holds `nbytes` more; beyond the limit, spill the largest of all `Runs`."""
        self._bytes[runs] = self._bytes.get(runs, 0) + nbytes
        if self._full:
            self.relieve()
        if self._full:
            largest = max(self._bytes, key=self._bytes.__getitem__)
            self._bytes[largest] = 0
            self.spilled += largest.spill(self.directory)

    @property
    def _full(self) -> bool:
        # The other half is for the shuffle, which holds its blocks twice, and for the merge.
        return sum(self._bytes.values()) > self.limit // 2

    def subtract(self, runs: Runs, nbytes: int) -> None:
        """Record that `runs` holds `nbytes` less."""
        self._bytes[runs] -= nbytes

    def release(self, runs: Runs) -> None:
        """Record that `runs` holds nothing."""
        self._bytes.pop(runs, None)


class Runs:
    """The blocks of finished chunks."""

    def __init__(self, memory: Memory, shards: int = SHARDS) -> None:
        self.shards = shards
        self.memory = memory
        self._lists: defaultdict[Kind, _BlockList] = defaultdict(_BlockList)
        self._scratch: Scratch | None = None
        self._refers = False

    def put(self, blocks: Sequence[Block]) -> list[Block]:
        """Add the blocks of a chunk, with any number of shards; return them as stored."""
        stored = [reshard(block, self.shards) for block in blocks]
        if stored:
            self.memory.add(self, sum(self._lists[piece.kind].put(piece) for piece in stored))
        return stored

    def refer(self, parts: Sequence[FileBlock]) -> None:
        """Add blocks that stay on disk; they precede all blocks in memory."""
        for part in parts:
            self._lists[part.kind].on_disk.append(part)
            self._refers = True

    def exchange(self, blocks: Sequence[Block], parts: Sequence[FileBlock]) -> None:
        """Replace blocks by `parts` on disk, if all these blocks are still in memory."""
        if blocks and all(self._lists[block.kind].has(block) for block in blocks):
            self.memory.subtract(self, sum(self._lists[block.kind].drop(block) for block in blocks))
            self.refer(parts)

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return int64 (shards,): approximate bytes of each shard in the shuffle."""
        lists = self._lists.values()
        return sum((pool.sizes(self.shards) for pool in lists), np.zeros(self.shards, dtype=np.int64))

    def sizes_within(self, shard: int, parts: int) -> npt.NDArray[np.int64]:
        """Return int64 (parts,): approximate bytes of each part of a shard that is divided further."""
        span, shards = (shard * parts, (shard + 1) * parts), self.shards * parts
        lists = self._lists.values()
        return sum((pool.sizes_within(*span, shards) for pool in lists), np.zeros(parts, dtype=np.int64))

    def largest(self) -> int:
        """Return the approximate bytes of the largest key; with very many keys, of several together."""
        sizes = self.sizes()
        return int(self.sizes_within(int(sizes.argmax()), KEY_PARTS).max()) if sizes.any() else 0

    def part(self, start: int, stop: int, shards: int | None = None) -> list[Block]:
        """Return the shards from `start` to `stop`, one block per kind with pairs; `shards` sets a finer division."""
        parts = [pool.part(start, stop, shards or self.shards) for pool in self._lists.values()]
        return [part for part in parts if part is not None]

    def spill(self, directory: Path) -> int:
        """Write all blocks in memory to disk; return the number of bytes."""
        if self._scratch is None:
            self._scratch = Scratch(directory)
        before = self._scratch.size
        for pool in self._lists.values():
            pool.spill(self._scratch)
        return self._scratch.size - before

    @property
    def spilled(self) -> bool:
        """Whether some blocks are on disk."""
        return self._scratch is not None or self._refers

    def clear(self) -> None:
        """Drop all blocks."""
        self._lists.clear()
        self.memory.release(self)
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None


def _part(whole: FileBlock | MergedBlocks, start: int, stop: int, shards: int) -> Block:
    """Return some shards in a division of all keys into `shards` shards, which may be finer than that of `whole`."""
    finer = shards // (whole.bounds.shape[-1] - 1)
    if finer == 1:
        return whole.part(start, stop)
    part = whole.part(start // finer, -(-stop // finer))
    return by_shard(part.form, part.width, part.columns(), shards).part(start, stop)


def _counts(bounds: Bounds, shards: int) -> npt.NDArray[np.int64]:
    """Return the rows of each shard; in a finer division, as if each shard were divided into equal parts."""
    finer = shards // (len(bounds) - 1)
    counts: npt.NDArray[np.int64] = np.repeat(-(-np.diff(bounds) // finer), finer)
    return counts


def _nothing(text: str = "") -> None:
    """Do nothing."""


class _BlockList:
    """Blocks of one kind in the order of addition: those on disk, then those in memory."""

    def __init__(self) -> None:
        self._blocks: dict[int, Block] = {}  # in memory, by id
        self.on_disk: list[FileBlock] = []
        self._stacked: MergedBlocks | None = None
        self._put_bytes = self._put_rows = 0  # of all added blocks; used to estimate objects on disk

    def put(self, block: Block) -> int:
        """Append a block; return its bytes."""
        nbytes = block.nbytes
        self._blocks[id(block)] = block
        self._stacked = None
        self._put_bytes += nbytes
        self._put_rows += len(block)
        return nbytes

    def has(self, block: Block) -> bool:
        """Return whether a block is in memory."""
        return id(block) in self._blocks

    def drop(self, block: Block) -> int:
        """Drop a block in memory; return its bytes."""
        self._stacked = None
        return self._blocks.pop(id(block)).nbytes

    def _stack(self) -> MergedBlocks:
        if self._stacked is None:
            self._stacked = MergedBlocks([*self._blocks.values()])
        return self._stacked

    def sizes(self, shards: int) -> npt.NDArray[np.int64]:
        """Return int64 (shards,): approximate bytes of each shard."""
        counts = (_counts(np.atleast_2d(block.bounds).sum(axis=0), shards) for block in self._all())
        return sum(counts, np.zeros(shards, np.int64)) * self._row()

    def sizes_within(self, start: int, stop: int, shards: int) -> npt.NDArray[np.int64]:
        """Return int64 (stop - start,): bytes of some shards, approximate but for the division of their rows."""
        parts = (_part(block, start, stop, shards) for block in self._all())
        rows = sum((np.diff(part.bounds) for part in parts), np.zeros(stop - start, np.int64))
        return rows * self._row()

    def _all(self) -> list[MergedBlocks | FileBlock]:
        return [*self.on_disk, *([self._stack()] if self._blocks else [])]

    def _row(self) -> int:
        """Return the approximate bytes of a row."""
        specs = {name: spec for part in self._all() for name, spec in part.specs.items()}
        row = sum(spec.nbytes for spec in specs.values())
        if any(spec.dtype.hasobject for spec in specs.values()):
            row = max(row, self._put_bytes // max(self._put_rows, 1))
        return row

    def part(self, start: int, stop: int, shards: int) -> Block | None:
        """Return some shards in a division of all keys into `shards` shards, as one block, or None if it is empty."""
        parts = [part for part in (_part(block, start, stop, shards) for block in self._all()) if len(part)]
        return MergedBlocks(parts).part(0, stop - start) if parts else None

    def spill(self, scratch: Scratch) -> None:
        """Move the blocks in memory to the disk."""
        if self._blocks:
            self.on_disk.append(scratch.spill(self._stack()))
        self._blocks, self._stacked = {}, None
