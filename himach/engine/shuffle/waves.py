"""The shuffle: `Shuffle` brings each shard to the rank that it belongs to, wave by wave, each small enough for memory.

All ranks know the size of every shard on every rank, and so agree without a word how many shards go in each wave. What
lies on disk is read wave by wave, too, so that a rank never holds more than a wave of what it gets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from himach.engine.pairs.block import Block
from himach.engine.pairs.stamps import Frames, Stamps
from himach.engine.shuffle.exchange import Exchange, shards_of
from himach.engine.shuffle.runs import Runs
from himach.parallel.communicator import Communicator

__all__ = ["WAVE", "Shuffle", "plan_waves"]

#: Bytes that a rank gets in a wave, at most: with smaller ones, ranks wait for one another more often. What has been on
#: disk travels in larger ones, for long reads.
WAVE = 1 << 25
#: The part of a rank's memory that such a large wave may have: it is there twice, as it leaves and as it came.
DISK_WAVE = 16

# For each rank the shards of one wave, from the first to the one that is no longer in it.
Wave = list[tuple[int, int]]


def plan_waves(sizes: npt.NDArray[np.int64], ranks: int, limit: int) -> list[Wave]:
    """Divide every rank's shards into waves.

    Parameters
    ----------
    sizes
        int64 (shards,), bytes of each shard over all ranks.
    ranks
        Number of ranks.
    limit
        Bytes that a rank gets in a wave; more only where one shard has more.
    """
    cuts = [_cut(sizes, *shards_of(rank, ranks, len(sizes)), limit) for rank in range(ranks)]
    waves = max(len(cut) for cut in cuts)
    return [[cut[wave] if wave < len(cut) else (0, 0) for cut in cuts] for wave in range(waves)]


def _cut(sizes: npt.NDArray[np.int64], start: int, stop: int, limit: int) -> list[tuple[int, int]]:
    cut = []
    first, nbytes = start, 0
    for shard, size in enumerate(sizes[start:stop].tolist(), start):
        if nbytes + size > limit and nbytes:
            cut.append((first, shard))
            first, nbytes = shard, 0
        nbytes += size
    if nbytes:
        cut.append((first, stop))
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

    Attributes
    ----------
    waves
        How many waves there are, the same on all ranks.
    frames
        The frames of all ranks.
    """

    def __init__(
        self, comm: Communicator, exchange: Exchange, runs: Runs, stamps: Stamps, numbers: range, memory: int
    ) -> None:
        known = comm.allgather((runs.sizes(), runs.spilled, memory))
        large = min(rank[2] for rank in known) // DISK_WAVE
        limit = max(1, large if any(rank[1] for rank in known) else min(large, WAVE))
        self._plan: Sequence[Wave] = plan_waves(sum(rank[0] for rank in known), comm.size, limit)
        self.waves = len(self._plan)
        self._exchange = exchange
        self._runs = runs
        self.frames = Frames.joined(exchange.tables(stamps.table()), forward=numbers.step > 0)
        self._outgoing: list[list[Block]] = []

    def prepare(self, wave: int) -> None:
        """Put together what this rank sends in a wave; after the last one its runs are cleared."""
        if wave < self.waves:
            self._outgoing = [self._runs.part(start, stop) if stop else [] for start, stop in self._plan[wave]]
        else:
            self._runs.clear()

    def move(self) -> list[list[Block]]:
        """Exchange the wave that was prepared (collective).

        Returns
        -------
        list
            For each rank the blocks that it sent here. Their columns hold until the next wave is moved.
        """
        outgoing, self._outgoing = self._outgoing, []
        return self._exchange.blocks(outgoing)
