"""A stage of a chain: turns the output of reduce() into pairs of the next stage, or into results."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from types import GeneratorType
from typing import Any

import numpy as np

from himach.analysis import Analysis
from himach.engine.failures import RAISED, failure, for_key
from himach.engine.mapping import CHUNK_BYTES
from himach.engine.merging.merge import Keyed, Merge
from himach.engine.merging.series import Series
from himach.engine.pairs.block import Block, Form, objects
from himach.engine.pairs.emission import Emission
from himach.engine.pairs.keys import ENCODED, ROWS, encode
from himach.engine.pairs.values import IMMUTABLE, snapshot
from himach.engine.rows import RowChunk, RowStore
from himach.engine.shuffle.runs import Runs
from himach.engine.stamps import Stamps
from himach.errors import AnalysisError


class Stage(ABC):
    """Processes the series of one stage of a chain; `later` is False for the chain's first stage."""

    def __init__(self, analysis: Analysis, rank: int, later: bool, rows: RowStore | None = None) -> None:
        self._rows = rows
        self._analysis = analysis
        self._rank = rank
        self._later = later
        self._combines = analysis.defines("combine")
        self._many = analysis.defines("reduce_many") and not self._combines
        self._width = 0
        self.keys = 0

    def begin(self, width: int) -> None:
        """Begin a group of keys of one width."""
        self._width = width

    def reduce(self, merge: Merge) -> None:
        """Reduce all keys of a merge."""
        for group in merge.many():
            if group.width == ROWS and self._rows is not None:
                for key, series in zip(group.plain, group.series, strict=True):
                    self._rows.put(key, RowChunk.from_values(series.frames, series.times, series.values))
            else:
                self.begin(group.width)
                self.keys += len(group.plain)
                if self._many:
                    self._reduce_many(group)
                else:
                    self._reduce_each(group)

    def _reduce_each(self, group: Keyed) -> None:
        reduce, take = self._analysis.reduce, self.take
        pairs = self._combine(group) if self._combines else zip(group.plain, group.series, strict=True)
        for key, series in pairs:
            try:
                items = None
                items = reduce(key, series)
                take(key, series, items)
            except RAISED as error:
                raise failure(self._analysis, "reduce", error, self._rank, for_key(key), items=items) from error

    @abstractmethod
    def take(self, key: Any, series: Series, items: Any) -> None:
        """Take what reduce() returned for a key."""

    def _combine(self, group: Keyed) -> Iterator[tuple[Any, Series]]:
        """Yield every key with a series of one value."""
        for key, series in zip(group.plain, group.series, strict=True):
            # Pairs of map() are already combined per chunk; those of an earlier stage are not.
            if self._later or len(series) > 1:
                try:
                    value = self._analysis.combine(key, series)
                except RAISED as error:
                    raise failure(self._analysis, "combine", error, self._rank, for_key(key)) from error
                yield key, series.folded(value)
            else:
                yield key, series

    def _reduce_many(self, group: Keyed) -> None:
        """Reduce many keys by one call, with the same results as reduce()."""
        plain, series = group.plain, group.series
        done, results = 0, None
        try:
            results = self._analysis.reduce_many(group.keys, series)
            outputs = iter(results)
            for key, values, items in zip(plain, series, outputs):  # noqa: B905 - told below, in words
                self.take(key, values, items)
                done += 1
            done += sum(1 for _ in outputs)
            if done != len(plain):
                raise AnalysisError(f"it gave {done} results for {len(plain)} keys; None says that a key has none")
        except RAISED as error:
            key = plain[min(done, len(plain) - 1)]
            raise failure(self._analysis, "reduce_many", error, self._rank, for_key(key), items=results) from error


class Chaining(Stage):
    """Reduces every key to pairs for the next stage."""

    def __init__(self, analysis: Analysis, rank: int, later: bool, runs: Runs) -> None:
        super().__init__(analysis, rank, later)
        self.pairs = 0
        self.runs = runs
        self.stamps = Stamps()
        self._emission = Emission(self.stamps)

    def reduce(self, merge: Merge) -> None:
        """Reduce all keys of a merge."""
        super().reduce(merge)
        self._close_chunk()

    def take(self, key: Any, series: Series, items: Any) -> None:
        """Take the pairs that reduce() yielded, stamped with the key's first frame."""
        self._emission.begin(*series.first(), source=encode(key))
        self._emission.extend(items)
        if self._emission.nbytes >= CHUNK_BYTES:
            self._close_chunk()

    def _close_chunk(self) -> None:
        self.pairs += self._emission.pairs
        self.runs.put(self._emission.close_chunk(self.runs.shards))


class Concluding(Stage):
    """Reduces every key to its result."""

    def __init__(self, analysis: Analysis, rank: int, later: bool, rows: RowStore | None = None) -> None:
        super().__init__(analysis, rank, later, rows)
        self._keys: list[Any] = []
        self._results: list[Any] = []
        self._blocks: list[Block] = []

    def begin(self, width: int) -> None:
        """Begin a group of keys; many groups of one width share a block."""
        if width != self._width:
            self._close_block()
        super().begin(width)

    def reduce(self, merge: Merge) -> None:
        """Reduce all keys of a merge."""
        super().reduce(merge)
        self._close_block()

    def take(self, key: Any, series: Series, items: Any) -> None:
        """Take the result of a key."""
        if items is None:
            return
        kind = type(items)
        if kind is GeneratorType:
            raise AnalysisError("it yields, as only a reduce() with `then` does; return the result of the key")
        self._keys.append(key)
        self._results.append(items if kind in IMMUTABLE else snapshot(items))

    def _close_block(self) -> None:
        n, width = len(self._keys), self._width
        if n == 0:
            return
        encoded = width == ENCODED
        keys = objects([encode(key) for key in self._keys]) if encoded else np.array(self._keys, dtype=np.int64)
        at, values = np.zeros(n, np.uint32), objects(self._results)
        self._blocks.append(Block(Form.PAIR, width, np.array([0, n]), keys, at, values=values))
        self._keys, self._results = [], []

    def results(self) -> list[Block]:
        """Return keys and results as pairs."""
        return self._blocks
