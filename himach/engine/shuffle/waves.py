"""The shuffle: `Shuffle` brings each shard to the rank that it belongs to, wave by wave, each small enough for memory.

All ranks know the size of every shard over all ranks, and so agree without a word how many shards go in each wave. What
lies on disk is read wave by wave, too, so that a rank never holds more than a wave of what it gets.

Where there are many frames, a rank learns the stamps of those only that a wave's pairs are of: they come with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from himach.engine.pairs.block import MOST_SHARDS, Block, Form
from himach.engine.shuffle.exchange import Exchange, shards_of
from himach.engine.shuffle.runs import Runs
from himach.engine.shuffle.used import UsedRows
from himach.engine.stamps.growing import Stamps
from himach.engine.stamps.joined import Frames
from himach.engine.stamps.table import FrameTable, no_boxes
from himach.parallel.communicator import Communicator
from himach.selection import Selected, forward

#: Bytes that a rank gets in a wave, at most: with smaller ones, ranks wait for one another more often. What has been on
#: disk travels in larger ones, for long reads.
WAVE_BYTES = 1 << 25
#: The part of a rank's memory that such a large wave may have: it is there twice, as it leaves and as it came.
DISK_WAVE_FACTOR = 16
#: Frames over all ranks whose stamps all ranks get, once; of more, stamps travel with their pairs.
SHARED_STAMP_FRAMES = 1 << 18
#: What stamps that travel make of a wave: they may take several times the bytes of their pairs.
WITH_STAMPS = 8

#: A shard with more bytes than so many waves travels in parts, as far as its keys are in different ones.
LARGE_SHARD_WAVES = 4

#: Some shards: from the first to the one that is no longer among them, and into how many shards all keys are divided
#: where they are counted so: where a large shard travels in parts, these are shards of a finer division.
Span = tuple[int, int, int]
#: Of each rank the shards of its waves, one after another.
Waves = list[list[Span]]
Sizes = npt.NDArray[np.int64]


def plan_waves(sizes: Sizes, finer: Mapping[int, Sizes], ranks: int, limit: int) -> Waves:
    """Divide every rank's shards into waves of at most `limit` bytes for a rank, more only where one key has more.

    `sizes`, int64 (shards,), are the bytes of each shard over all ranks; `finer` are those of the parts of some shards.
    """
    return [_cut(sizes, finer, *shards_of(rank, ranks, len(sizes)), limit) for rank in range(ranks)]


def large_shards(sizes: Sizes, limit: int) -> dict[int, int]:
    """Return the shards that travel in parts, and in how many, as far as their keys are in different ones."""
    shards = len(sizes)
    large = {}
    for shard in np.flatnonzero(sizes > LARGE_SHARD_WAVES * limit).tolist():
        parts = 1
        while parts * limit < sizes[shard] and shards * parts < MOST_SHARDS:
            parts *= 2
        large[shard] = parts
    return large


def _cut(sizes: Sizes, finer: Mapping[int, Sizes], start: int, stop: int, limit: int) -> list[Span]:
    """Divide the shards of one rank."""
    cut: list[Span] = []
    for large in sorted(shard for shard in finer if start <= shard < stop):
        parts = finer[large]
        cut += _fill(sizes[start:large], start, len(sizes), limit)
        cut += _fill(parts, large * len(parts), len(sizes) * len(parts), limit)
        start = large + 1
    return cut + _fill(sizes[start:stop], start, len(sizes), limit)


def _fill(sizes: Sizes, start: int, shards: int, limit: int) -> list[Span]:
    """Divide neighbouring shards, from `start` on, of all `shards`."""
    cut = []
    first, nbytes = start, 0
    for shard, size in enumerate(sizes.tolist(), start):
        if nbytes + size > limit and nbytes:
            cut.append((first, shard, shards))
            first, nbytes = shard, 0
        nbytes += size
    if nbytes:
        cut.append((first, start + len(sizes), shards))
    return cut


class Shuffle:
    """One shuffle of this rank's runs (collective).

    Parameters
    ----------
    comm
        All ranks.
    exchange
        Moves the blocks.
    runs
        This rank's blocks.
    stamps
        The frames of this rank's blocks.
    numbers
        The selected frame numbers.
    memory
        Bytes that this rank may use.
    together
        Calls a function on all ranks, and raises an error of one of them on all.

    Attributes
    ----------
    waves
        How many waves there are, the same on all ranks.
    sizes
        int64 (shards,): about how many bytes each shard has over all ranks.
    """

    def __init__(
        self,
        comm: Communicator,
        exchange: Exchange,
        runs: Runs,
        stamps: Stamps,
        numbers: Selected,
        memory: int,
        together: Callable[[Callable[[], dict[int, Sizes]]], dict[int, Sizes]],
    ) -> None:
        self._comm = comm
        self._exchange = exchange
        self._runs = runs
        self._stamps = stamps
        self._forward = forward(numbers)
        told = comm.allgather((runs.spilled, memory, len(stamps), stamps.boxed))
        spilled, memories, rows, boxed = zip(*told, strict=True)
        self._boxed = any(boxed)
        self._frames: Frames | None = None  # of all waves
        if sum(rows) <= SHARED_STAMP_FRAMES:
            self._frames = Frames.joined(comm.allgather(stamps.table()), self._forward)
        disk_wave = min(memories) // DISK_WAVE_FACTOR
        limit = max(1, disk_wave if any(spilled) else min(disk_wave, WAVE_BYTES))
        if self._frames is None:
            limit = max(1, min(disk_wave, WAVE_BYTES) // WITH_STAMPS)
        self.sizes: Sizes = comm.allreduce(runs.sizes())
        sizes = self.sizes
        finer: dict[int, Sizes] = {}
        if large := large_shards(sizes, limit):
            own = together(lambda: {shard: runs.sizes_within(shard, parts) for shard, parts in large.items()})
            finer = {shard: comm.allreduce(parts) for shard, parts in own.items()}
        self._plan = plan_waves(sizes, finer, comm.size, limit)
        self.waves = max(map(len, self._plan))
        self._outgoing: list[list[Block]] = []
        self._tables: list[FrameTable] = []

    def prepare(self, wave: int) -> None:
        """Put together what this rank sends in a wave; after the last one its runs are cleared."""
        if wave >= self.waves:
            self._runs.clear()
            return
        self._outgoing = [self._runs.part(*cut[wave]) if wave < len(cut) else [] for cut in self._plan]
        if self._frames is None:
            stamped = [self._stamped(blocks) for blocks in self._outgoing]
            self._outgoing, self._tables = [blocks for blocks, _ in stamped], [table for _, table in stamped]

    def move(self) -> tuple[list[list[Block]], Frames]:
        """Exchange the wave that was prepared (collective).

        Returns
        -------
        blocks
            For each rank the blocks that it sent here. Their columns hold until the next wave is moved.
        frames
            Their frames, and maybe others.
        """
        outgoing, self._outgoing = self._outgoing, []
        tables, self._tables = self._tables, []
        blocks, tables = self._exchange.move(outgoing, tables)
        return blocks, self._frames or Frames.joined(tables, self._forward)

    def _stamped(self, blocks: list[Block]) -> tuple[list[Block], FrameTable]:
        """Return blocks with the table of those frames only that their rows are of."""
        if not blocks:
            return [], FrameTable.joined([])
        used = UsedRows(len(self._stamps))
        for block in blocks:
            if block.form == Form.PAIR or block.values is None:
                used.mark(block.at, 1)
            elif block.form == Form.INTERVAL:
                used.mark_intervals(block.at, block.values)
            else:
                used.mark(block.at, 64 * block.values.shape[1])
        table = self._stamps.chosen(used.close())
        if self._boxed and table.boxes is None:  # what a series says of boxes does not depend on what came with it
            table = replace(table, boxes=no_boxes(len(table)))
        return [replace(block, at=used.renumber(block.at)) for block in blocks], table
