"""Rows of a table on the first rank, in chunks: `Spread`, and `gather()`, which moves them there.

`table_layout()` tells the columns, `chunk_cells()` gives a chunk's cells in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.analysis import FRAME, TIME
from himach.engine.rows import RowChunk, RowStore
from himach.output.cells import BINS, EDGE_CELLS, EXACT_INTEGERS, Cells
from himach.output.table import Column, Table
from himach.ranks.communicator import Communicator

Counts = npt.NDArray[np.int64]
#: Ordered columns with the dtype of their cells; None for objects.
Layout = Mapping[str, np.dtype[Any] | None]
#: dtypes of Python numbers.
_PLAIN = {float: np.dtype(np.float64), int: np.dtype(np.int64), bool: np.dtype(np.bool_), complex: np.dtype(complex)}


def table_layout(store: RowStore) -> Layout:
    """Return the columns that a `Table` of a store's rows has."""
    together = sorted(store.names, key=store.names.__getitem__)
    layout: dict[str, np.dtype[Any] | None] = {TIME: np.dtype(np.float64)}
    for name in dict.fromkeys(name for names in together for name in names):
        missing = any(name not in names for names in together)
        layout[name] = None if missing else _dtype(*store.kinds[name])
    return {**layout, FRAME: np.dtype(np.int64)}


def _dtype(kinds: set[Any], largest: int) -> np.dtype[Any] | None:
    """Return the common dtype of cells of these types, by the rules of `himach.output.table.Table`."""
    types = {_PLAIN.get(kind, kind) for kind in kinds}
    if not all(isinstance(kind, np.dtype) or issubclass(kind, np.number | np.bool_) for kind in types):
        return None
    dtypes = [np.dtype(kind) for kind in types]
    letters = {kind.kind for kind in dtypes}
    whole = letters <= set("iu")
    if (letters & set("b") and letters != {"b"}) or not letters <= set("biufc"):
        return None
    if largest >= 1 << 63 or (letters & set("iu") and not whole and largest > EXACT_INTEGERS):
        return None
    dtype = np.result_type(*dtypes)
    return None if whole and dtype.kind not in "iu" else dtype


def chunk_cells(chunk: RowChunk, layout: Layout, names: Sequence[str]) -> dict[str, Cells]:
    """Return some columns of a chunk."""
    cells: dict[str, Cells] = {}
    own = chunk.columns([name for name in names if name not in (TIME, FRAME)])
    for name in names:
        if name in (TIME, FRAME):
            cells[name] = chunk.times if name == TIME else chunk.frames
            continue
        column, dtype = own[name], layout[name]
        if dtype is not None:
            cells[name] = np.ascontiguousarray(column, dtype=dtype)
        else:
            numbers = isinstance(column, np.ndarray) and column.dtype in _PLAIN.values()
            cells[name] = np.asarray(column).tolist() if numbers else list(column)
    return cells


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
        columns = {
            name: [None] * size if (kind := self.layout[name]) is None else np.empty(size, kind) for name in names
        }
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
            count, total, squares, low, high = zip(*(chunk[name] for chunk in sums), strict=True)
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
