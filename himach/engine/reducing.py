"""The reduce loop: shuffle, combine() and reduce() of every stage of a chain; the last one's results go to rank 0."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from himach.analysis import Analysis
from himach.comm import Communicator
from himach.engine import exchange as moving
from himach.engine.clock import Clock
from himach.engine.columns import SHARDS, Block
from himach.engine.emission import Emission
from himach.engine.failures import RAISED, failure
from himach.engine.keys import encode
from himach.engine.mapping import CHUNK
from himach.engine.merge import Merge
from himach.engine.results import Results
from himach.engine.runs import Runs
from himach.engine.series import Series
from himach.engine.values import keep
from himach.errors import AnalysisError

__all__ = ["Reducer", "Together", "unguarded"]

T = TypeVar("T")


class Together(Protocol):
    """Runs one rank's part of a phase, and lets all ranks know if another's part failed."""

    def __call__(self, part: Callable[[], T]) -> T:
        """Run the part and return what it returns."""


def unguarded(part: Callable[[], T]) -> T:
    """Run the part; an error stays with this rank."""
    return part()


NO_STEPS = np.empty(0, dtype=np.int64)


class Reducer:
    """Takes one chain of analyses from its mapped pairs to its results.

    Attributes
    ----------
    pairs
        How many pairs the reduce() of a stage yielded for the next.
    shuffled
        Bytes that this rank sent to others.
    """

    def __init__(self, comm: Communicator, frames: range, clock: Clock, together: Together = unguarded) -> None:
        self.pairs = 0
        self.shuffled = 0
        self._comm = comm
        self._frames = frames
        self._clock = clock
        self._together = together

    def run(self, chain: Sequence[Analysis], runs: Runs) -> Results | None:
        """Shuffle and reduce, stage after stage (collective); return the results on rank 0, None elsewhere."""
        *earlier, last = chain
        later = False
        for analysis in earlier:
            merge = self._shuffle(runs)
            with self._clock("reduce"):
                runs = self._together(partial(self._chain, analysis, merge, later))
            later = True
        merge = self._shuffle(runs)
        with self._clock("reduce"):
            found = self._together(partial(self._conclude, last, merge, later))
            return self._gather(found)

    def _shuffle(self, runs: Runs) -> Merge:
        """Bring each shard to the rank that it belongs to."""
        with self._clock("shuffle"):
            size = self._comm.size
            outgoing = [list(runs.blocks(*moving.shards_of(rank, size, SHARDS))) for rank in range(size)]
            runs.clear()
            return Merge(self._exchange(outgoing), self._frames)

    def _exchange(self, outgoing: list[list[Block]]) -> list[Block]:
        blocks, sent = moving.exchange(self._comm, outgoing, moving.ROUND)
        self.shuffled += sent
        return blocks

    def _groups(self, analysis: Analysis, merge: Merge, later: bool) -> Iterator[tuple[Any, Series]]:
        """Give every key with its series, of one value where there is a combine()."""
        if not analysis.defines("combine"):
            yield from merge.groups()
            return
        for key, series in merge.groups():
            # What map() yielded is combined already, chunk by chunk; what an earlier stage yielded is not.
            if later or len(series) > 1:
                try:
                    value = analysis.combine(key, series)
                except RAISED as error:
                    raise failure(analysis, "combine", error, self._comm.rank, key=(key,)) from error
                yield key, series.folded(value)
            else:
                yield key, series

    def _chain(self, analysis: Analysis, merge: Merge, later: bool) -> Runs:
        """Reduce every key to pairs for the next stage."""
        emission, runs = Emission(), Runs()
        for key, series in self._groups(analysis, merge, later):
            emission.begin(*series.first(), source=encode(key))
            items = None
            try:
                items = analysis.reduce(key, series)
                emission.extend(items)
            except RAISED as error:
                raise failure(analysis, "reduce", error, self._comm.rank, key=(key,), items=items) from error
            if emission.pairs >= CHUNK:
                self.pairs += emission.pairs
                runs.put(NO_STEPS, emission.freeze(SHARDS))
        self.pairs += emission.pairs
        runs.put(NO_STEPS, emission.freeze(SHARDS))
        return runs

    def _conclude(self, analysis: Analysis, merge: Merge, later: bool) -> list[Block]:
        """Reduce every key to its result; return keys and results as pairs."""
        emission = Emission()
        emission.begin(0, 0.0, None)
        for key, series in self._groups(analysis, merge, later):
            try:
                result = analysis.reduce(key, series)
                if inspect.isgenerator(result):
                    raise AnalysisError("it yields, as only a reduce() with `then` does; return the result of the key")
                if result is not None:
                    emission.add_kept(key, keep(result))
            except RAISED as error:
                raise failure(analysis, "reduce", error, self._comm.rank, key=(key,)) from error
        return emission.freeze(1)

    def _gather(self, found: list[Block]) -> Results | None:
        outgoing = [found, *[[] for _ in range(self._comm.size - 1)]]
        blocks = self._exchange(outgoing)
        if self._comm.rank != 0:
            return None
        return Results(blocks)
