"""`Runs`: where blocks are put until the shuffle, in memory and, beyond `Memory.limit`, on disk.

Blocks of one kind make a lot. `Runs.part()` gives the same shards of all blocks of a lot as one block, so that what
comes later has few blocks to do with, however many chunks there were.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from himach.engine.pairs.arena import Arena
from himach.engine.pairs.block import SHARDS, Block, Bounds, Kind, Raw
from himach.engine.shuffle.spill import Scratch, spill
from himach.engine.shuffle.stack import Spec, Stack

#: Bytes that are ordered at a time on their way to the disk.
PIECE = 1 << 22


class OnDisk(Protocol):
    """A block on a disk, whose shards are read when they are asked for."""

    @property
    def kind(self) -> Kind:
        """What it has in common with blocks of its lot."""

    @property
    def bounds(self) -> Bounds:
        """As those of a `Block`."""

    @property
    def specs(self) -> Mapping[str, Spec]:
        """What its columns are."""

    def part(self, start: int, stop: int) -> Block:
        """Read the shards from `start` to `stop`."""


class Memory:
    """How much memory, in bytes, the pairs of this rank may take, over all its `Runs`.

    What does not fit goes to `directory`, on a local disk of this node; `spilled` bytes went there. Before that,
    `relieve` is called, which may find another place for some (`Runs.exchange`).
    """

    def __init__(self, limit: int, directory: Path) -> None:
        self.limit = limit
        self.directory = directory
        self.spilled = 0
        self.relieve: Callable[[], object] = _nothing
        self._bytes: dict[Runs, int] = {}

    def hold(self, runs: Runs, nbytes: int) -> None:
        """Take note that `runs` holds so many bytes more; if that is too much, the largest goes to the disk."""
        self._bytes[runs] = self._bytes.get(runs, 0) + nbytes
        if self._full:
            self.relieve()
        if self._full:
            largest = max(self._bytes, key=self._bytes.__getitem__)
            self._bytes[largest] = 0
            self.spilled += largest.spill(self.directory)

    @property
    def _full(self) -> bool:
        # The other half is for the shuffle, which has its blocks twice, and for what is merged.
        return sum(self._bytes.values()) > self.limit // 2

    def leave(self, runs: Runs, nbytes: int) -> None:
        """Take note that `runs` holds so many bytes less."""
        self._bytes[runs] -= nbytes

    def release(self, runs: Runs) -> None:
        """Take note that `runs` holds nothing any more."""
        self._bytes.pop(runs, None)


class Runs:
    """The blocks of finished chunks.

    Parameters
    ----------
    memory
        Counts what is held, and asks for it to be spilled.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._lots: defaultdict[Kind, _Lot] = defaultdict(_Lot)
        self._arena = Arena()
        self._scratch: Scratch | None = None
        self._refers = False

    def room(self, nbytes: int) -> Raw:
        """Return memory for a block that will be put, uint8 (nbytes,)."""
        return self._arena.take(nbytes)

    def put(self, blocks: Sequence[Block]) -> int:
        """Put the blocks of a chunk; return how many bytes they take."""
        nbytes = sum(self._lots[block.kind].put(block) for block in blocks)
        if blocks:
            self._memory.hold(self, nbytes)
        return nbytes

    def refer(self, parts: Sequence[OnDisk]) -> None:
        """Put blocks that are on a disk already, and stay there; they come before all that is in memory."""
        for part in parts:
            self._lots[part.kind].refer(part)
            self._refers = True

    def exchange(self, blocks: Sequence[Block], parts: Sequence[OnDisk]) -> None:
        """Refer to `parts`, on a disk, in place of blocks that were put, if all of these are still in memory."""
        places = set(map(id, blocks))
        lots = [self._lots[kind] for kind in {block.kind for block in blocks}]
        if blocks and sum(lot.count(places) for lot in lots) == len(blocks):
            self._memory.leave(self, sum(lot.drop(places) for lot in lots))
            self.refer(parts)

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
        return self._scratch is not None or self._refers

    def clear(self) -> None:
        """Forget everything that was put."""
        self._lots.clear()
        self._arena = Arena()
        self._memory.release(self)
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None


def _nothing() -> None:
    """Relieve nothing."""


class _Lot:
    """Blocks of one kind, in the order in which they were put: those on disk, then those in memory."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._spilled: list[OnDisk] = []
        self._stacked: Stack | None = None
        self._nbytes = 0  # of the blocks in memory

    def put(self, block: Block) -> int:
        """Put a block behind all others; return how many bytes it takes."""
        self._blocks.append(block)
        self._stacked = None
        nbytes = block.nbytes
        self._nbytes += nbytes
        return nbytes

    def refer(self, part: OnDisk) -> None:
        """Put a block that is on a disk."""
        self._spilled.append(part)

    def count(self, places: Collection[int]) -> int:
        """Return how many of the blocks with these ids are in memory."""
        return sum(id(block) in places for block in self._blocks)

    def drop(self, places: Collection[int]) -> int:
        """Forget the blocks with these ids; return how many bytes they took."""
        left = [block for block in self._blocks if id(block) not in places]
        before, self._nbytes = self._nbytes, sum(block.nbytes for block in left)
        self._blocks, self._stacked = left, None
        return before - self._nbytes

    def _stack(self) -> Stack:
        """Return the blocks in memory as one."""
        if self._stacked is None:
            self._stacked = Stack(self._blocks)
        return self._stacked

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return int64 (shards,): about how many bytes each shard takes."""
        parts: list[Stack | OnDisk] = [*self._spilled]
        rows = sum(part.bounds for part in self._spilled)
        if self._blocks:
            parts.append(self._stack())
            rows = rows + self._stack().bounds.sum(axis=0)
        specs = {name: spec for part in parts for name, spec in part.specs.items()}
        row = sum(spec.nbytes for spec in specs.values())
        if self._blocks and any(spec.dtype.hasobject for spec in specs.values()):
            row = max(row, self._nbytes // max(sum(map(len, self._blocks)), 1))
        sizes: npt.NDArray[np.int64] = np.diff(rows) * row
        return sizes

    def part(self, start: int, stop: int) -> Block | None:
        """Return the shards from `start` to `stop` as one block, None if they are empty."""
        parts = [spilled.part(start, stop) for spilled in self._spilled]
        if self._blocks:
            parts.append(self._stack().part(start, stop))
        parts = [part for part in parts if len(part)]
        return Stack(parts).part(0, stop - start) if parts else None

    def spill(self, scratch: Scratch) -> None:
        """Move the blocks in memory to the disk."""
        if self._blocks:
            self._spilled.append(spill(scratch, self._stack(), max(1, SHARDS * PIECE // self._nbytes)))
            self._blocks, self._stacked, self._nbytes = [], None, 0
