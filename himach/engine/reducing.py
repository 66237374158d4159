"""The reduce loop: shuffle, combine() and reduce() of every stage of a chain; the last one's results go to rank 0."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import GeneratorType
from typing import Any, Protocol, TypeVar

import numpy as np

from himach.analysis import Analysis
from himach.comm import Communicator
from himach.engine.clock import Clock
from himach.engine.failures import RAISED, failure
from himach.engine.mapping import CHUNK
from himach.engine.merging.merge import Keyed, Merge
from himach.engine.merging.series import Series
from himach.engine.pairs.block import SHARDS, Block, Form
from himach.engine.pairs.emission import Emission
from himach.engine.pairs.keys import ENCODED, encode
from himach.engine.pairs.stamps import Stamps
from himach.engine.pairs.values import IMMUTABLE, keep
from himach.engine.results import Results
from himach.engine.shuffle import exchange as moving
from himach.engine.shuffle.runs import Memory, Runs
from himach.engine.shuffle.waves import Shuffle
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


class Reducer:
    """Takes one chain of analyses from its mapped pairs to its results.

    Attributes
    ----------
    pairs
        How many pairs the reduce() of a stage yielded for the next.
    """

    def __init__(
        self, comm: Communicator, frames: range, clock: Clock, memory: Memory, together: Together = unguarded
    ) -> None:
        self.pairs = 0
        self._exchange = moving.Exchange(comm, moving.ROUND)
        self._comm = comm
        self._frames = frames
        self._clock = clock
        self._memory = memory
        self._together = together

    @property
    def shuffled(self) -> int:
        """Bytes that this rank sent to others."""
        return self._exchange.sent

    def run(self, chain: Sequence[Analysis], runs: Runs, stamps: Stamps) -> Results | None:
        """Shuffle and reduce, stage after stage (collective); return the results on rank 0, None elsewhere."""
        *earlier, last = chain
        later = False
        for analysis in earlier:
            stage = _Chaining(analysis, self._comm.rank, later, Runs(self._memory))
            self._reduce(stage, runs, stamps)
            self.pairs += stage.pairs
            runs, stamps = stage.runs, stage.stamps
            later = True
        end = _Concluding(last, self._comm.rank, later)
        self._reduce(end, runs, stamps)
        with self._clock("reduce"):
            return self._gather(end.results())

    def _reduce(self, stage: _Stage, runs: Runs, stamps: Stamps) -> None:
        """Reduce every key of this rank's shards, wave by wave (collective)."""
        with self._clock("shuffle"):
            shuffle = Shuffle(self._comm, self._exchange, runs, stamps, self._frames, self._memory.limit)
            self._together(partial(shuffle.prepare, 0))
        for wave in range(shuffle.waves):
            with self._clock("shuffle"):
                merge = Merge(shuffle.move(), shuffle.frames, self._frames)
            self._together(partial(self._reduce_wave, stage, merge, shuffle, wave))

    def _reduce_wave(self, stage: _Stage, merge: Merge, shuffle: Shuffle, wave: int) -> None:
        with self._clock("reduce"):
            stage.reduce(merge)
        with self._clock("shuffle"):
            shuffle.prepare(wave + 1)

    def _gather(self, found: list[Block]) -> Results | None:
        gathered = self._exchange.blocks([found, *[[] for _ in range(self._comm.size - 1)]])
        if self._comm.rank != 0:
            return None
        return Results([block for blocks in gathered for block in blocks])


class _Stage(ABC):
    """What is done with the series of one stage of a chain.

    Parameters
    ----------
    analysis
        The stage.
    rank
        This rank.
    later
        Whether it is not the first of its chain.
    """

    def __init__(self, analysis: Analysis, rank: int, later: bool) -> None:
        self._analysis = analysis
        self._rank = rank
        self._later = later
        self._combines = analysis.defines("combine")
        self._many = analysis.defines("reduce_many") and not self._combines
        self._width = 0

    def begin(self, width: int) -> None:
        """Begin some keys, all of one width."""
        self._width = width

    def reduce(self, merge: Merge) -> None:
        """Reduce all keys of a merge."""
        for group in merge.many():
            self.begin(group.width)
            if self._many:
                self._reduce_many(group)
            else:
                self._reduce_each(group)

    def _reduce_each(self, group: Keyed) -> None:
        reduce, take = self._analysis.reduce, self.take
        pairs = self._combined(group) if self._combines else zip(group.plain, group.series, strict=True)
        for key, series in pairs:
            try:
                items = None
                items = reduce(key, series)
                take(key, series, items)
            except RAISED as error:
                raise failure(self._analysis, "reduce", error, self._rank, key=(key,), items=items) from error

    @abstractmethod
    def take(self, key: Any, series: Series, items: Any) -> None:
        """Take what reduce() returned for a key."""

    def _combined(self, group: Keyed) -> Iterator[tuple[Any, Series]]:
        """Give every key with a series of one value."""
        for key, series in zip(group.plain, group.series, strict=True):
            # What map() yielded is combined already, chunk by chunk; what an earlier stage yielded is not.
            if self._later or len(series) > 1:
                try:
                    value = self._analysis.combine(key, series)
                except RAISED as error:
                    raise failure(self._analysis, "combine", error, self._rank, key=(key,)) from error
                yield key, series.folded(value)
            else:
                yield key, series

    def _reduce_many(self, group: Keyed) -> None:
        """Reduce many keys by one call, which is for each what reduce() would be."""
        plain, series = group.plain, group.series
        done, results = 0, None
        try:
            results = self._analysis.reduce_many(group.keys, series)
            given = iter(results)
            for key, one, items in zip(plain, series, given):  # noqa: B905 - told below, in words
                self.take(key, one, items)
                done += 1
            done += sum(1 for _ in given)
            if done != len(plain):
                raise AnalysisError(f"it gave {done} results for {len(plain)} keys; None says that a key has none")
        except RAISED as error:
            key = plain[min(done, len(plain) - 1)]
            raise failure(self._analysis, "reduce_many", error, self._rank, key=(key,), items=results) from error


class _Chaining(_Stage):
    """Reduces every key to pairs for the next stage."""

    def __init__(self, analysis: Analysis, rank: int, later: bool, runs: Runs) -> None:
        super().__init__(analysis, rank, later)
        self.pairs = 0
        self.runs = runs
        self.stamps = Stamps()
        self._emission = Emission(self.stamps, runs.room)

    def reduce(self, merge: Merge) -> None:
        """Reduce all keys of a merge."""
        super().reduce(merge)
        self._freeze()

    def take(self, key: Any, series: Series, items: Any) -> None:
        """Take the pairs that reduce() yielded; they carry the key's first frame."""
        self._emission.begin(*series.first(), source=encode(key))
        self._emission.extend(items)
        if self._emission.nbytes >= CHUNK:
            self._freeze()

    def _freeze(self) -> None:
        self.pairs += self._emission.pairs
        self.runs.put(self._emission.freeze(SHARDS))


class _Concluding(_Stage):
    """Reduces every key to its result."""

    def __init__(self, analysis: Analysis, rank: int, later: bool) -> None:
        super().__init__(analysis, rank, later)
        self._keys: list[Any] = []
        self._results: list[Any] = []
        self._blocks: list[Block] = []

    def begin(self, width: int) -> None:
        """Begin some keys; there may be a great many groups of one width."""
        if width != self._width:
            self._freeze()
        super().begin(width)

    def reduce(self, merge: Merge) -> None:
        """Reduce all keys of a merge."""
        super().reduce(merge)
        self._freeze()

    def take(self, key: Any, series: Series, items: Any) -> None:
        """Take the result of a key."""
        if items is None:
            return
        kind = type(items)
        if kind is GeneratorType:
            raise AnalysisError("it yields, as only a reduce() with `then` does; return the result of the key")
        self._keys.append(key)
        self._results.append(items if kind in IMMUTABLE else keep(items))

    def _freeze(self) -> None:
        """Turn the results into pairs."""
        n, width = len(self._keys), self._width
        if n == 0:
            return
        names = None
        keys = np.arange(n) if width == ENCODED else np.array(self._keys, dtype=np.int64)
        if width == ENCODED:
            names = [encode(key) for key in self._keys]
        values, bounds = np.fromiter(self._results, dtype=object, count=n), np.array([0, n])
        self._blocks.append(Block(Form.PAIR, width, keys, np.zeros(n, np.uint32), None, values, bounds, names))
        self._keys, self._results = [], []

    def results(self) -> list[Block]:
        """Return keys and results as pairs."""
        return self._blocks
