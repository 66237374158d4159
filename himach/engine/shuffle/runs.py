"""`Runs`: holds blocks until the shuffle, in memory and, beyond `Memory.limit`, on disk.

Blocks of one kind form a list. `Runs.part()` joins the same shards of all blocks of a list into one block, so that
later steps handle few blocks, however many chunks there were.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from himach.engine.pairs.block import SHARDS, Block, Kind, reshard
from himach.engine.shuffle.spill import FileBlock, Scratch
from himach.engine.shuffle.stack import MergedBlocks


class Memory:
    """Memory limit, in bytes, of this rank's pairs over all its `Runs`.

    Excess pairs go to `directory`, on a local disk of this node; `spilled` counts their bytes. `warn` is called with a
    message about what will not fit, including a table of rows, whose limit is `table` bytes.
    """

    def __init__(self, limit: int, directory: Path) -> None:
        self.limit = limit
        self.directory = directory
        self.spilled = 0
        self.warn: Callable[[str], object] = _nothing
        self.table = sys.maxsize
        self._bytes: dict[Runs, int] = {}

    def add(self, runs: "Runs", nbytes: int) -> None:
        """Record that `runs` holds `nbytes` more; beyond the limit, spill the largest of all `Runs`."""
        self._bytes[runs] = self._bytes.get(runs, 0) + nbytes
        # The other half is for the shuffle, which holds its blocks twice, and for the merge.
        if sum(self._bytes.values()) > self.limit // 2:
            largest = max(self._bytes, key=self._bytes.__getitem__)
            self._bytes[largest] = 0
            self.spilled += largest.spill(self.directory)

    def release(self, runs: "Runs") -> None:
        """Record that `runs` holds nothing."""
        self._bytes.pop(runs, None)


class Runs:
    """The blocks of finished chunks."""

    def __init__(self, memory: Memory, shards: int = SHARDS) -> None:
        self.shards = shards
        self.memory = memory
        self._lists: defaultdict[Kind, _BlockList] = defaultdict(_BlockList)
        self._scratch: Scratch | None = None

    def put(self, blocks: Sequence[Block]) -> list[Block]:
        """Add the blocks of a chunk, with any number of shards; return them as stored."""
        stored = [reshard(block, self.shards) for block in blocks]
        if stored:
            self.memory.add(self, sum(self._lists[piece.kind].put(piece) for piece in stored))
        return stored

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return int64 (shards,): approximate bytes of each shard in the shuffle."""
        lists = self._lists.values()
        return sum((pool.sizes() for pool in lists), np.zeros(self.shards, dtype=np.int64))

    def part(self, start: int, stop: int) -> list[Block]:
        """Return the shards from `start` to `stop`, one block per kind with pairs."""
        parts = [pool.part(start, stop) for pool in self._lists.values()]
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
        return self._scratch is not None

    def clear(self) -> None:
        """Drop all blocks."""
        self._lists.clear()
        self.memory.release(self)
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None


def _nothing(text: str = "") -> None:
    """Do nothing."""


class _BlockList:
    """Blocks of one kind in the order of addition: those on disk, then those in memory."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._on_disk: list[FileBlock] = []
        self._stacked: MergedBlocks | None = None
        self._put_bytes = self._put_rows = 0  # of all added blocks; used to estimate objects on disk

    def put(self, block: Block) -> int:
        """Append a block; return its bytes."""
        nbytes = block.nbytes
        self._blocks.append(block)
        self._stacked = None
        self._put_bytes += nbytes
        self._put_rows += len(block)
        return nbytes

    def _stack(self) -> MergedBlocks:
        if self._stacked is None:
            self._stacked = MergedBlocks(self._blocks)
        return self._stacked

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return int64 (shards,): approximate bytes of each shard."""
        rows: npt.NDArray[np.int64] = sum(np.diff(np.atleast_2d(block.bounds)).sum(axis=0) for block in self._all())
        return rows * self._row()

    def _all(self) -> list[MergedBlocks | FileBlock]:
        return [*self._on_disk, *([self._stack()] if self._blocks else [])]

    def _row(self) -> int:
        """Return the approximate bytes of a row."""
        specs = {name: spec for part in self._all() for name, spec in part.specs.items()}
        row = sum(spec.nbytes for spec in specs.values())
        if any(spec.dtype.hasobject for spec in specs.values()):
            row = max(row, self._put_bytes // max(self._put_rows, 1))
        return row

    def part(self, start: int, stop: int) -> Block | None:
        """Return some shards as one block, or None if it is empty."""
        parts = [part for part in (block.part(start, stop) for block in self._all()) if len(part)]
        return MergedBlocks(parts).part(0, stop - start) if parts else None

    def spill(self, scratch: Scratch) -> None:
        """Move the blocks in memory to the disk."""
        if self._blocks:
            self._on_disk.append(scratch.spill(self._stack()))
        self._blocks, self._stacked = [], None
