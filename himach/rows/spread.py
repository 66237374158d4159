"""Rows of a table on the first rank, in chunks: `Spread`, and `gather()`, which moves them there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.analysis import TIME
from himach.engine.rows import RowChunk, RowStore
from himach.output.cells import BINS, EDGE_CELLS, Cells
from himach.output.table import Column, Table
from himach.ranks.communicator import Communicator
from himach.rows.layout import Layout, chunk_cells, table_layout

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Moments:
    """Count, mean, variance (mean squared deviation), minimum and maximum of a column of numbers."""

    count: int
    mean: float
    variance: float
    least: Any
    most: Any


@dataclass(frozen=True)
class Bins:
    """A column in bins of equal numbers of rows: `firsts`, and for numbers `least`, `most` and `means`, float64."""

    firsts: Cells
    least: Cells
    most: Cells
    means: npt.NDArray[np.float64] | None


@dataclass(frozen=True)
class ColumnSummary:
    """First and last few cells, moments (for real numbers) and bins of a column."""

    ends: tuple[Cells, Cells]
    moments: Moments | None
    bins: Bins


@dataclass(frozen=True)
class Spread:
    """All rows of a table, on the first rank."""

    store: RowStore
    layout: Layout  # the columns
    keys: list[int]  # of the chunks, ascending, thus in the order of their frames
    starts: Counts  # int64 (chunks + 1,): the first row of each chunk

    @classmethod
    def from_store(cls, store: RowStore) -> Spread:
        """Return the rows of a store."""
        keys = sorted(store.counts)
        starts = np.cumsum([0, *(store.counts[key] for key in keys)], dtype=np.int64)
        return cls(store, table_layout(store), keys, starts)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.starts[-1])

    def cells(self, place: int, names: Sequence[str]) -> Mapping[str, Cells]:
        """Return columns of a chunk."""
        return chunk_cells(self.store.chunk(self.keys[place]), self.layout, names)

    def table(self) -> Table:
        """Return the whole table."""
        columns = self.collect(list(self.layout), 0, self.rows)
        return Table({**columns, TIME: Column(columns[TIME], "ps")})

    def collect(
        self, names: Sequence[str], start: int, stop: int, read: Callable[[int], Mapping[str, Cells]] | None = None
    ) -> dict[str, Cells]:
        """Return columns of the rows from `start` to `stop`; `read` returns those of a chunk."""
        read = read or partial(self.cells, names=names)
        size = max(stop - start, 0)
        columns = {name: _room(self.layout[name], size) for name in names}
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        for place in range(first, int(np.searchsorted(self.starts, stop, side="left")) if size else first):
            chunk_start, chunk_stop = self.starts[place : place + 2].tolist()
            cut = slice(max(start - chunk_start, 0), min(stop, chunk_stop) - chunk_start)
            at = chunk_start + cut.start - start
            for name, cells in read(place).items():
                columns[name][at : at + cut.stop - cut.start] = cells[cut]
        return columns

    @cached_property
    def summary(self) -> dict[str, ColumnSummary]:
        """Summary of each column."""
        names = list(self.layout)
        first = self.collect(names, 0, min(EDGE_CELLS, self.rows))
        last = self.collect(names, max(0, self.rows - EDGE_CELLS), self.rows)
        moments = self.moments([name for name, kind in self.layout.items() if kind is not None and kind.kind in "biuf"])
        bins = self.bins(names, BINS)
        return {name: ColumnSummary((first[name], last[name]), moments.get(name), bins[name]) for name in names}

    def moments(self, names: Sequence[str]) -> dict[str, Moments]:
        """Return moments of columns of numbers, bitwise equal for any number of ranks."""
        sums = [self._sums(place, names) for place in range(len(self.keys))]
        moments = {}
        for name in names:
            count, total, squares, low, high = zip(*(some[name] for some in sums), strict=True)
            mean = _sum(total) / sum(count)
            with np.errstate(all="ignore"):
                apart = np.array(count) * np.square(np.divide(total, count) - mean)
            moments[name] = Moments(sum(count), mean, _sum((*squares, *apart)) / sum(count), np.min(low), np.max(high))
        return moments

    def _sums(self, place: int, names: Sequence[str]) -> dict[str, tuple[int, float, float, Any, Any]]:
        sums = {}
        for name, cells in self.cells(place, names).items():
            values = np.asarray(cells, np.float64)
            with np.errstate(all="ignore"):
                total = float(values.sum())
                squares = float(np.square(values - total / len(values)).sum())
            sums[name] = len(values), total, squares, np.min(cells), np.max(cells)
        return sums

    def bins(self, names: Sequence[str], count: int) -> dict[str, Bins]:
        """Return columns in at most `count` bins, whose numbers of rows differ by at most one."""
        count = max(1, min(count, self.rows))
        edges = (np.arange(count + 1) * self.rows // count).tolist()
        read = lru_cache(1)(partial(self.cells, names=names))  # a chunk has rows of several bins
        columns: dict[str, list[tuple[Any, ...]]] = {name: [] for name in names}
        for start, stop in pairwise(edges):
            for name, cells in self.collect(names, start, stop, read).items():
                columns[name].append(_summarize(cells))
        return {name: _join_bins(rows, self.layout[name]) for name, rows in columns.items()}


def _summarize(cells: Cells) -> tuple[Any, ...]:
    """Return the first cell, and of numbers the least, the most and the mean."""
    if not isinstance(cells, np.ndarray) or cells.dtype.kind not in "iuf":
        return (cells[0],)
    with np.errstate(all="ignore"):
        return cells[0], np.fmin.reduce(cells), np.fmax.reduce(cells), np.mean(cells, dtype=np.float64)


def _join_bins(rows: Sequence[tuple[Any, ...]], kind: np.dtype[Any] | None) -> Bins:
    firsts, *numbers = zip(*rows, strict=True)
    if not numbers:
        return Bins(list(firsts), list(firsts), list(firsts), None)
    least, most, means = numbers
    return Bins(np.array(firsts, kind), np.array(least, kind), np.array(most, kind), np.array(means))


def _room(kind: np.dtype[Any] | None, size: int) -> Cells:
    return [None] * size if kind is None else np.empty(size, kind)


def _sum(values: Sequence[float]) -> float:
    """Return a correctly rounded sum; with infinities, of either or both signs, that of numpy."""
    try:
        return math.fsum(values)
    except (ValueError, OverflowError):
        with np.errstate(all="ignore"):
            return float(np.sum(values))


def gather(comm: Communicator, store: RowStore) -> Exception | None:
    """Move all ranks' rows into the store of the first one (collective); return an error there if that failed."""
    failed: Exception | None = None
    for rank, keys in enumerate(comm.allgather(list(store.counts))):
        for key in keys if rank else ():
            chunks = comm.gather(_chunk(store, key) if comm.rank == rank else None)
            try:
                if chunks is not None and failed is None:
                    if isinstance(chunks[rank], Exception):
                        raise chunks[rank]
                    store.put(key, chunks[rank])
            except Exception as error:  # continue: the other ranks still send their chunks
                failed = error
    if comm.rank:
        store.close()  # frees its disk space
    return failed


def _chunk(store: RowStore, key: int) -> RowChunk | Exception:
    try:
        return store.chunk(key)
    except Exception as error:  # sent to the first rank, which waits for the chunk
        return error
