"""`Runs`: where blocks are put until the shuffle, in memory and, beyond `Memory.limit`, on disk.

Blocks of one kind make a lot. `Runs.part()` gives the same shards of all blocks of a lot as one block, so that what
comes later has few blocks to do with, however many chunks there were.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from himach.engine.pairs.arena import Arena
from himach.engine.pairs.block import SHARDS, Block, Kind, Raw, by_shard, divided
from himach.engine.shuffle.spill import Scratch, Spilled, spill
from himach.engine.shuffle.stack import MergedBlocks

#: Into how many parts a shard is divided to see whether its bytes are those of one key.
KEY_PARTS = 64


class Memory:
    """How much memory, in bytes, the pairs of this rank may take, over all its `Runs`.

    What does not fit goes to `directory`, on a local disk of this node; `spilled` bytes went there. `warn` is told what
    will not fit, also of a table of rows that may have so many bytes, `table`.
    """

    def __init__(self, limit: int, directory: Path) -> None:
        self.limit = limit
        self.directory = directory
        self.spilled = 0
        self.warn: Callable[[str], object] = _nothing
        self.table = sys.maxsize
        self._bytes: dict[Runs, int] = {}

    def hold(self, runs: Runs, nbytes: int) -> None:
        """Take note that `runs` holds so many bytes more; if that is too much, the largest goes to the disk."""
        self._bytes[runs] = self._bytes.get(runs, 0) + nbytes
        # The other half is for the shuffle, which has its blocks twice, and for what is merged.
        if sum(self._bytes.values()) > self.limit // 2:
            largest = max(self._bytes, key=self._bytes.__getitem__)
            self._bytes[largest] = 0
            self.spilled += largest.spill(self.directory)

    def release(self, runs: Runs) -> None:
        """Take note that `runs` holds nothing any more."""
        self._bytes.pop(runs, None)


class Runs:
    """The blocks of finished chunks."""

    def __init__(self, memory: Memory, shards: int = SHARDS) -> None:
        self.shards = shards
        self.memory = memory
        self._lots: defaultdict[Kind, _BlockList] = defaultdict(_BlockList)
        self._arena = Arena()
        self._scratch: Scratch | None = None
        self._refers = False

    def room(self, nbytes: int) -> Raw:
        """Return memory for a block that will be put, uint8 (nbytes,)."""
        return self._arena.take(nbytes)

    def put(self, blocks: Sequence[Block]) -> list[Block]:
        """Put the blocks of a chunk, of any number of shards; return what is held of them."""
        held = [divided(block, self.shards) for block in blocks]
        if held:
            self.memory.hold(self, sum(self._lots[one.kind].put(one) for one in held))
        return held

    def refer(self, parts: Sequence[Spilled]) -> None:
        """Put blocks that are on a disk already, and stay there unless they are of another number of shards."""
        for part in parts:
            shards = len(part.bounds) - 1
            if shards == self.shards:
                self._lots[part.kind].refer(part)
                self._refers = True
            else:
                self.put([part.part(0, shards)])

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return int64 (shards,): about how many bytes each shard will take in the shuffle."""
        return sum((lot.sizes() for lot in self._lots.values()), np.zeros(self.shards, dtype=np.int64))

    def sizes_within(self, shard: int, parts: int) -> npt.NDArray[np.int64]:
        """Return int64 (parts,): about how many bytes each part of a shard will take, where it is divided further."""
        return sum((lot.sizes_within(shard, parts) for lot in self._lots.values()), np.zeros(parts, dtype=np.int64))

    def largest(self) -> int:
        """Return about how many bytes the key has that has most; of very many keys, some together."""
        sizes = self.sizes()
        return int(self.sizes_within(int(sizes.argmax()), KEY_PARTS).max()) if sizes.any() else 0

    def part(self, start: int, stop: int, shards: int | None = None) -> list[Block]:
        """Return the shards from `start` to `stop`, one block of each kind that has pairs in them.

        They may be of a finer division, into so many `shards`.
        """
        parts = [lot.part(start, stop, (shards or self.shards) // self.shards) for lot in self._lots.values()]
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
        return self._scratch is not None or self._refers

    def clear(self) -> None:
        """Forget everything that was put."""
        self._lots.clear()
        self._arena = Arena()
        self.memory.release(self)
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None


def _finer(whole: Spilled | MergedBlocks, start: int, stop: int, finer: int) -> Block:
    """Return some shards of what has them, where each of its shards counts as several that are `finer`."""
    if finer == 1:
        return whole.part(start, stop)
    shards = finer * (whole.bounds.shape[-1] - 1)
    some = whole.part(start // finer, -(-stop // finer))
    return by_shard(some.form, some.width, some.columns(), shards).part(start, stop)


def _nothing(text: str) -> None:
    """Warn nobody."""


class _BlockList:
    """Blocks of one kind, in the order in which they were put: those on disk, then those in memory."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._spilled: list[Spilled] = []
        self._stacked: MergedBlocks | None = None
        self._nbytes = 0  # of the blocks in memory
        self._put_bytes = self._put_rows = 0  # of all that were put, by which objects on the disk are weighed, too

    def put(self, block: Block) -> int:
        """Put a block behind all others; return how many bytes it takes."""
        nbytes = block.nbytes
        self._blocks.append(block)
        self._stacked = None
        self._nbytes += nbytes
        self._put_bytes += nbytes
        self._put_rows += len(block)
        return nbytes

    def refer(self, part: Spilled) -> None:
        """Put a block that is on a disk."""
        self._spilled.append(part)

    def _stack(self) -> MergedBlocks:
        """Return the blocks in memory as one."""
        if self._stacked is None:
            self._stacked = MergedBlocks(self._blocks)
        return self._stacked

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return int64 (shards,): about how many bytes each shard takes."""
        rows = sum(part.bounds for part in self._spilled)
        if self._blocks:
            rows = rows + self._stack().bounds.sum(axis=0)
        sizes: npt.NDArray[np.int64] = np.diff(rows) * self._row()
        return sizes

    def sizes_within(self, shard: int, parts: int) -> npt.NDArray[np.int64]:
        """Return int64 (parts,): about how many bytes each part of a shard takes."""
        span = shard * parts, (shard + 1) * parts
        rows = sum((np.diff(_finer(held, *span, parts).bounds) for held in self._all()), np.zeros(parts, np.int64))
        return rows * self._row()

    def _all(self) -> list[MergedBlocks | Spilled]:
        return [*self._spilled, *([self._stack()] if self._blocks else [])]

    def _row(self) -> int:
        """Return about how many bytes a row takes."""
        specs = {name: spec for part in self._all() for name, spec in part.specs.items()}
        row = sum(spec.nbytes for spec in specs.values())
        if any(spec.dtype.hasobject for spec in specs.values()):
            row = max(row, self._put_bytes // max(self._put_rows, 1))
        return row

    def part(self, start: int, stop: int, finer: int = 1) -> Block | None:
        """Return the shards from `start` to `stop` as one block, None if they are empty.

        Each shard may count as several, that are `finer`.
        """
        parts = [part for part in (_finer(held, start, stop, finer) for held in self._all()) if len(part)]
        return MergedBlocks(parts).part(0, stop - start) if parts else None

    def spill(self, scratch: Scratch) -> None:
        """Move the blocks in memory to the disk."""
        if self._blocks:
            self._spilled.append(spill(scratch, self._stack()))
        self._blocks, self._stacked, self._nbytes = [], None, 0
