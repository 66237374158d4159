"""The shuffle: `Shuffle` moves each shard to its rank, in waves that fit in memory.

All ranks know the total size of every shard, and thus agree on the shards of each wave without communication. Pairs on
disk are read wave by wave, too, so that a rank never holds more than one wave of its input.

With many frames, a rank gets only the stamps of a wave's frames, together with their pairs.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from himach.engine.pairs.block import Block, Form
from himach.engine.shuffle.exchange import Exchange, shard_range
from himach.engine.shuffle.runs import Runs
from himach.engine.stamps import Frames, FrameTable, Stamps, no_boxes
from himach.selection import Selected, forward

#: Most bytes that a rank gets in a wave: with smaller waves, ranks wait for one another more often. Spilled pairs use
#: larger waves, for long reads.
WAVE_BYTES = 1 << 25
#: Inverse fraction of a rank's memory for such a wave, which is held twice: as sent and as received.
DISK_WAVE_FACTOR = 16
#: Most frames over all ranks whose stamps all ranks get once; beyond it, stamps are sent with their pairs.
SHARED_STAMP_FRAMES = 1 << 18
#: Divisor of the wave size if stamps are sent along: they may take several times the bytes of their pairs.
WITH_STAMPS = 8

Sizes = npt.NDArray[np.int64]
#: Per node and wave, the shards of its ranks: rank i gets those from cut i to cut i + 1.
Waves = list[list[list[int]]]


def plan_waves(sizes: Sizes, ranks: Sequence[int], limit: int) -> Waves:
    """Divide every node's shards into waves of at most `limit` bytes per rank, exceeded only by single shards.

    `sizes`: int64 (shards,): bytes of each shard over all ranks.
    """
    planned, first, total = [], 0, sum(ranks)
    for n_ranks in ranks:
        start, _ = shard_range(first, total, len(sizes))
        first += n_ranks
        stop, _ = shard_range(first, total, len(sizes))
        cuts = [start, *_divide(sizes, start, stop, n_ranks, limit)]
        waves = [cuts[at : at + n_ranks + 1] for at in range(0, len(cuts) - 1, n_ranks)]
        planned.append([[*wave, *wave[-1:] * (n_ranks + 1 - len(wave))] for wave in waves])
    return planned


def _divide(sizes: Sizes, start: int, stop: int, ranks: int, limit: int) -> list[int]:
    """Return the ends of about equal pieces of a node's shards, one for each of its ranks in each wave."""
    total = int(sizes[start:stop].sum())
    waves = max(1, -(-total // (ranks * limit)))
    even = -(-total // (ranks * waves))
    ends: list[int] = []
    nbytes = 0
    for shard, size in enumerate(sizes[start:stop].tolist(), start):
        if nbytes and nbytes + size > limit:
            ends.append(shard)
            nbytes = 0
        nbytes += size
        if nbytes >= even > 0:
            ends.append(shard + 1)
            nbytes = 0
    return [*ends, stop] if nbytes else ends


class Shuffle:
    """One shuffle of this rank's runs (collective)."""

    def __init__(
        self,
        exchange: Exchange,
        runs: Runs,
        stamps: Stamps,
        numbers: Selected,
        memory: int,
    ) -> None:
        world = exchange.world
        self._node_ranks = world.node_ranks
        self._exchange = exchange
        self._runs = runs
        self._stamps = stamps
        self._forward = forward(numbers)
        own_totals = np.array([runs.spilled, len(stamps), stamps.boxed], np.int64)
        spilled, rows, boxed = world.total(own_totals).tolist()
        self._boxed = boxed > 0
        self._frames: Frames | None = None  # of all waves
        if rows <= SHARED_STAMP_FRAMES:
            self._frames = Frames.joined(world.comm.allgather(stamps.table()), self._forward)
        disk_wave = world.comm.allreduce(memory, min) // DISK_WAVE_FACTOR
        limit = max(1, disk_wave if spilled else min(disk_wave, WAVE_BYTES))
        if self._frames is None:
            limit = max(1, min(disk_wave, WAVE_BYTES) // WITH_STAMPS)
        self.sizes: Sizes = world.total(runs.sizes())
        self._plan = plan_waves(self.sizes, list(map(len, world.node_ranks)), limit)
        self.waves = max(map(len, self._plan))
        self._outgoing: list[list[Block]] = []
        self._tables: list[FrameTable] = []

    def prepare(self, wave: int) -> None:
        """Collect what this rank sends in a wave; after the last wave, clear its runs."""
        if wave >= self.waves:
            self._runs.clear()
            return
        self._outgoing = [[] for _ in range(sum(map(len, self._node_ranks)))]
        for ranks, waves in zip(self._node_ranks, self._plan, strict=True):
            if wave < len(waves):
                self._take(waves[wave], ranks)
        if self._frames is None:
            stamped = [self._add_stamps(blocks) for blocks in self._outgoing]
            self._outgoing, self._tables = [blocks for blocks, _ in stamped], [table for _, table in stamped]

    def _take(self, cuts: Sequence[int], ranks: Sequence[int]) -> None:
        """Collect what this rank sends to a node's ranks."""
        first = cuts[0]
        for block in self._runs.part(first, cuts[-1]):
            for rank, (start, stop) in zip(ranks, pairwise(cuts), strict=True):
                if block.bounds[start - first] < block.bounds[stop - first]:
                    self._outgoing[rank].append(block.part(start - first, stop - first))

    def move(self) -> tuple[list[list[Block]], Frames]:
        """Exchange the prepared wave (collective).

        Return, per rank, the blocks that it sent here, valid until the next wave is moved, and their frames, and maybe
        others.
        """
        outgoing, self._outgoing = self._outgoing, []
        tables, self._tables = self._tables, []
        blocks, tables = self._exchange.move(outgoing, tables)
        return blocks, self._frames or Frames.joined(tables, self._forward)

    def _add_stamps(self, blocks: list[Block]) -> tuple[list[Block], FrameTable]:
        """Return blocks with the table of only the frames of their rows."""
        if not blocks:
            return [], FrameTable.joined([])
        used = np.zeros(len(self._stamps), np.bool_)
        for block in blocks:
            _mark_frames(block, used)
        rows = np.flatnonzero(used)
        table = self._stamps.chosen(rows)
        if self._boxed and table.boxes is None:  # boxes of a series must not depend on other keys
            table = replace(table, boxes=no_boxes(len(table)))
        return [replace(block, at=np.searchsorted(rows, block.at).astype(np.uint32)) for block in blocks], table


def _mark_frames(block: Block, used: npt.NDArray[np.bool_]) -> None:
    """Mark the frames of a block's rows in the table of this rank."""
    at, values = block.at, block.values
    if block.form == Form.PAIR or values is None:
        used[at] = True
        return
    if block.form == Form.BITS:
        at = np.unique(at)  # bits of many keys begin at the same frame
        stops = np.minimum(at + np.uint32(64 * values.shape[1]), len(used))
    else:
        stops = at + values
    changes = np.zeros(len(used) + 1, np.int32)  # of the number of rows that are of a frame
    np.add.at(changes, at, 1)
    np.subtract.at(changes, stops, 1)
    used |= np.cumsum(changes, out=changes)[:-1] > 0
