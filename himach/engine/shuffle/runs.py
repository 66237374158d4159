"""`Runs`: holds blocks until the shuffle, in memory and, beyond `Memory.limit`, on disk.

Blocks of one kind form a list. `Runs.part()` joins the same shards of all blocks of a list into one block, so that
later steps handle few blocks, however many chunks there were.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from himach.engine.pairs.block import SHARDS, Arena, Block, Bounds, ColumnSpec, Kind, Raw, by_shard, reshard
from himach.engine.shuffle.spill import Scratch, spill
from himach.engine.shuffle.stack import MergedBlocks

#: Number of parts of a shard, to detect whether one key has most of its bytes.
KEY_PARTS = 64


class OnDisk(Protocol):
    """A block on disk, whose shards are read on demand."""

    @property
    def kind(self) -> Kind:
        """Kind of the blocks of its list."""

    @property
    def bounds(self) -> Bounds:
        """Bounds as in a `Block`."""

    @property
    def specs(self) -> Mapping[str, ColumnSpec]:
        """Types of its columns."""

    def part(self, start: int, stop: int) -> Block:
        """Read the shards from `start` to `stop`."""


@dataclass(frozen=True, slots=True)
class _Divided:
    """A block on disk, divided into more shards than it has there."""

    whole: OnDisk
    shards: int

    @property
    def kind(self) -> Kind:
        return self.whole.kind

    @property
    def specs(self) -> Mapping[str, ColumnSpec]:
        return self.whole.specs

    @property
    def bounds(self) -> Bounds:
        """Approximate bounds, as if each shard were divided into equal parts."""
        parts = self.shards // (len(self.whole.bounds) - 1)
        return np.concatenate([[0], np.cumsum(np.repeat(-(-np.diff(self.whole.bounds) // parts), parts))])

    def part(self, start: int, stop: int) -> Block:
        return _finer(self.whole, start, stop, self.shards // (len(self.whole.bounds) - 1))


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
        self._arena = Arena()
        self._scratch: Scratch | None = None
        self._refers = False

    def room(self, nbytes: int) -> Raw:
        """Return memory for a future block, uint8 (nbytes,)."""
        return self._arena.take(nbytes)

    def put(self, blocks: Sequence[Block]) -> list[Block]:
        """Add the blocks of a chunk, with any number of shards; return them as stored."""
        stored = [reshard(block, self.shards) for block in blocks]
        if stored:
            self.memory.add(self, sum(self._lists[piece.kind].put(piece) for piece in stored))
        return stored

    def refer(self, parts: Sequence[OnDisk]) -> None:
        """Add blocks that stay on disk; they precede all blocks in memory."""
        for part in parts:
            same = len(part.bounds) - 1 == self.shards
            self._lists[part.kind].refer(part if same else _Divided(part, self.shards))
            self._refers = True

    def exchange(self, blocks: Sequence[Block], parts: Sequence[OnDisk]) -> None:
        """Replace blocks by `parts` on disk, if all these blocks are still in memory."""
        places = set(map(id, blocks))
        lists = [self._lists[kind] for kind in {block.kind for block in blocks}]
        if blocks and sum(pool.count(places) for pool in lists) == len(blocks):
            self.memory.subtract(self, sum(pool.drop(places) for pool in lists))
            self.refer(parts)

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return int64 (shards,): approximate bytes of each shard in the shuffle."""
        return sum((pool.sizes() for pool in self._lists.values()), np.zeros(self.shards, dtype=np.int64))

    def sizes_within(self, shard: int, parts: int) -> npt.NDArray[np.int64]:
        """Return int64 (parts,): approximate bytes of each part of a shard that is divided further."""
        return sum((pool.sizes_within(shard, parts) for pool in self._lists.values()), np.zeros(parts, dtype=np.int64))

    def largest(self) -> int:
        """Return the approximate bytes of the largest key; with very many keys, of several together."""
        sizes = self.sizes()
        return int(self.sizes_within(int(sizes.argmax()), KEY_PARTS).max()) if sizes.any() else 0

    def part(self, start: int, stop: int, shards: int | None = None) -> list[Block]:
        """Return the shards from `start` to `stop`, one block per kind with pairs; `shards` sets a finer division."""
        parts = [pool.part(start, stop, (shards or self.shards) // self.shards) for pool in self._lists.values()]
        return [part for part in parts if part is not None]

    def spill(self, directory: Path) -> int:
        """Write all blocks in memory to disk; return the number of bytes."""
        if self._scratch is None:
            self._scratch = Scratch(directory)
        before = self._scratch.size
        for pool in self._lists.values():
            pool.spill(self._scratch)
        self._arena = Arena()
        return self._scratch.size - before

    @property
    def spilled(self) -> bool:
        """Whether some blocks are on disk."""
        return self._scratch is not None or self._refers

    def clear(self) -> None:
        """Drop all blocks."""
        self._lists.clear()
        self._arena = Arena()
        self.memory.release(self)
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None


def _finer(whole: OnDisk | MergedBlocks, start: int, stop: int, finer: int) -> Block:
    """Return some shards in the numbering that divides each shard of `whole` into `finer` ones."""
    if finer == 1:
        return whole.part(start, stop)
    shards = finer * (whole.bounds.shape[-1] - 1)
    part = whole.part(start // finer, -(-stop // finer))
    return by_shard(part.form, part.width, part.columns(), shards).part(start, stop)


def _nothing(text: str = "") -> None:
    """Do nothing."""


class _BlockList:
    """Blocks of one kind in the order of addition: those on disk, then those in memory."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._spilled: list[OnDisk] = []
        self._stacked: MergedBlocks | None = None
        self._nbytes = 0  # of the blocks in memory
        self._put_bytes = self._put_rows = 0  # of all added blocks; also used to estimate objects on disk

    def put(self, block: Block) -> int:
        """Append a block; return its bytes."""
        nbytes = block.nbytes
        self._blocks.append(block)
        self._stacked = None
        self._nbytes += nbytes
        self._put_bytes += nbytes
        self._put_rows += len(block)
        return nbytes

    def refer(self, part: OnDisk) -> None:
        """Add a block on disk."""
        self._spilled.append(part)

    def count(self, places: Collection[int]) -> int:
        """Return the number of blocks with these ids in memory."""
        return sum(id(block) in places for block in self._blocks)

    def drop(self, places: Collection[int]) -> int:
        """Drop the blocks with these ids; return their bytes."""
        self._blocks = [block for block in self._blocks if id(block) not in places]
        remaining = sum(block.nbytes for block in self._blocks)
        before, self._nbytes, self._stacked = self._nbytes, remaining, None
        return before - self._nbytes

    def _stack(self) -> MergedBlocks:
        if self._stacked is None:
            self._stacked = MergedBlocks(self._blocks)
        return self._stacked

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return int64 (shards,): approximate bytes of each shard."""
        rows = sum(part.bounds for part in self._spilled)
        if self._blocks:
            rows = rows + self._stack().bounds.sum(axis=0)
        sizes: npt.NDArray[np.int64] = np.diff(rows) * self._row()
        return sizes

    def sizes_within(self, shard: int, parts: int) -> npt.NDArray[np.int64]:
        """Return int64 (parts,): approximate bytes of each part of a shard."""
        span = shard * parts, (shard + 1) * parts
        rows = sum((np.diff(_finer(block, *span, parts).bounds) for block in self._all()), np.zeros(parts, np.int64))
        return rows * self._row()

    def _all(self) -> list[MergedBlocks | OnDisk]:
        return [*self._spilled, *([self._stack()] if self._blocks else [])]

    def _row(self) -> int:
        """Return the approximate bytes of a row."""
        specs = {name: spec for part in self._all() for name, spec in part.specs.items()}
        row = sum(spec.nbytes for spec in specs.values())
        if any(spec.dtype.hasobject for spec in specs.values()):
            row = max(row, self._put_bytes // max(self._put_rows, 1))
        return row

    def part(self, start: int, stop: int, finer: int = 1) -> Block | None:
        """Return the shards from `start` to `stop`, in a division `finer` times as fine, as one block, or None."""
        parts = [part for part in (_finer(block, start, stop, finer) for block in self._all()) if len(part)]
        return MergedBlocks(parts).part(0, stop - start) if parts else None

    def spill(self, scratch: Scratch) -> None:
        """Move the blocks in memory to the disk."""
        if self._blocks:
            self._spilled.append(spill(scratch, self._stack()))
        self._blocks, self._stacked, self._nbytes = [], None, 0
