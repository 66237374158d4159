"""The reduce loop: shuffle, combine() and reduce() of each stage of a chain; the last results go to rank 0."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from himach.analysis import Analysis
from himach.engine.clock import Clock
from himach.engine.merging.merge import Merge
from himach.engine.pairs.block import Block
from himach.engine.results import Results, collect_results
from himach.engine.rows import RowStore
from himach.engine.shuffle.exchange import Exchange
from himach.engine.shuffle.runs import Memory, Runs
from himach.engine.shuffle.waves import Shuffle
from himach.engine.stages import Chaining, Concluding, Stage
from himach.engine.stamps import Stamps
from himach.selection import Selected

T = TypeVar("T")

#: Number of groups of shards in the record; a power of two, like the number of shards.
SHARD_GROUPS = 64


class SharedReduce(Protocol):
    """Runs one rank's part of a phase and reports failures to all ranks."""

    def __call__(self, part: Callable[[], T]) -> T:
        """Run the part and return its result."""


def run_alone(part: Callable[[], T]) -> T:
    """Run the part; an error stays with this rank."""
    return part()


class Reducer:
    """Takes one chain of analyses from its mapped pairs to its results."""

    def __init__(
        self, exchange: Exchange, frames: Selected, clock: Clock, memory: Memory, together: SharedReduce
    ) -> None:
        self.pairs = 0
        self.keys = 0
        self.rows = RowStore(memory)
        self.parts: npt.NDArray[np.int64] = np.zeros(SHARD_GROUPS, dtype=np.int64)
        self._exchange = exchange
        self._comm = exchange.world.comm
        self._frames = frames
        self._clock = clock
        self._memory = memory
        self._together = together

    def run(self, chain: Sequence[Analysis], runs: Runs, stamps: Stamps) -> Results | None:
        """Shuffle and reduce, stage after stage (collective); return the results on rank 0, None elsewhere."""
        *earlier, last = chain
        later = False
        for analysis in earlier:
            stage = Chaining(analysis, self._comm.rank, later, Runs(self._memory, runs.shards))
            self._reduce(stage, runs, stamps)
            self.pairs += stage.pairs
            runs, stamps = stage.runs, stage.stamps
            later = True
        concluding = Concluding(last, self._comm.rank, later, self.rows)
        self._reduce(concluding, runs, stamps)
        with self._clock("reduce"):
            return self._gather(concluding.results())

    def _reduce(self, stage: Stage, runs: Runs, stamps: Stamps) -> None:
        """Reduce every key of this rank's shards, wave by wave (collective)."""
        with self._clock("shuffle"):
            shuffle = Shuffle(self._exchange, runs, stamps, self._frames, self._memory.limit)
            self.parts += shuffle.sizes.reshape(SHARD_GROUPS, -1).sum(axis=1)
            self._together(partial(shuffle.prepare, 0))
        for wave in range(shuffle.waves):
            with self._clock("shuffle"):
                merge = Merge(*shuffle.move(), self._frames)
            self._together(partial(self._reduce_wave, stage, merge, shuffle, wave + 1))
        self.keys += stage.keys

    def _reduce_wave(self, stage: Stage, merge: Merge, shuffle: Shuffle, following: int) -> None:
        with self._clock("reduce"):
            stage.reduce(merge)
        with self._clock("shuffle"):
            shuffle.prepare(following)

    def _gather(self, results: list[Block]) -> Results | None:
        received, _ = self._exchange.move([results, *[[] for _ in range(self._comm.size - 1)]])
        blocks = [block for blocks in received for block in blocks]
        return self._together(lambda: collect_results(blocks) if self._comm.rank == 0 else None)
