"""Rows of a table over all ranks: `Spread` knows which there are, and brings some of them to the first rank.

Its methods are for all ranks together, each of which has a part of the rows; the first one gets what they return.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from himach.analysis import TIME
from himach.engine.rows import RowStore
from himach.output.cells import Cells
from himach.output.table import Column, Table
from himach.parallel.communicator import Communicator
from himach.rows.layout import Layout, agreed, cells_of, told

__all__ = ["Bins", "Moments", "Spread", "Summary"]

T = TypeVar("T")
Counts = npt.NDArray[np.int64]

#: Bytes of cells that travel to the first rank at a time, about.
TRAVEL_BYTES = 1 << 24


@dataclass(frozen=True)
class Moments:
    """Of a column of numbers: how many, their mean, the mean of squared differences from it, and the limits."""

    count: int
    mean: float
    variance: float
    least: Any
    most: Any


@dataclass(frozen=True)
class Bins:
    """Of a column, by bins of as many rows: `firsts`, and of numbers `least`, `most` and `means`, float64."""

    firsts: Cells
    least: Cells
    most: Cells
    means: npt.NDArray[np.float64] | None


@dataclass(frozen=True)
class Summary:
    """Of a column its first and last few cells, of real numbers the moments, and the bins."""

    ends: tuple[Cells, Cells]
    moments: Moments | None
    bins: Bins


@dataclass(frozen=True)
class Spread:
    """Rows of a table, of which this rank has some.

    Attributes
    ----------
    comm
        All ranks.
    store
        Those of this rank.
    layout
        The columns.
    keys
        Of the chunks of all ranks, ascending: in the order of their frames.
    starts
        int64 (chunks + 1,): the first row of each.
    nbytes
        Bytes of all rows, about.
    """

    comm: Communicator
    store: RowStore
    layout: Layout
    keys: list[int]
    starts: Counts
    nbytes: int

    @classmethod
    def of(cls, comm: Communicator, store: RowStore) -> Spread:
        """Return the rows of which each rank gives its own (collective)."""
        counts = np.array(list(store.counts.items()), dtype=np.int64).reshape(-1, 2)
        stores, everyone, nbytes = zip(*comm.allgather((told(store), counts, store.nbytes)), strict=True)
        keys, sizes = np.concatenate(everyone).T
        order = np.argsort(keys)
        starts = np.concatenate([[0], np.cumsum(sizes[order])])
        return cls(comm, store, agreed(stores), keys[order].tolist(), starts, sum(nbytes))

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.starts[-1])

    def row_bytes(self, names: Sequence[str]) -> int:
        """Return about how many bytes the cells of a row take."""
        numbers = [kind.itemsize for name in names if (kind := self.layout[name]) is not None]
        return sum(numbers) + (self.nbytes // max(self.rows, 1) if len(numbers) < len(names) else 0)

    def windows(self, first: int, last: int, rows: int) -> Iterator[range]:
        """Give chunks, from one to before another, some at a time, which have about so many rows."""
        while first < last:
            end = int(np.searchsorted(self.starts, self.starts[first] + rows, side="right")) - 1
            window = range(first, min(max(end, first + 1), last))
            yield window
            first = window.stop

    def own(self, window: range) -> Iterator[int]:
        """Give the places of chunks among these that this rank has."""
        return (place for place in window if self.keys[place] in self.store.counts)

    def cells(self, place: int, names: Sequence[str]) -> Mapping[str, Cells]:
        """Return columns of a chunk that this rank has."""
        return cells_of(self.store.chunk(self.keys[place]), self.layout, names)

    def table(self) -> Table | None:
        """Return the whole table (collective)."""
        columns = self.collect(list(self.layout), 0, self.rows)
        return None if columns is None else Table({**columns, TIME: Column(columns[TIME], "ps")})

    def collect(self, names: Sequence[str], start: int, stop: int) -> dict[str, Cells] | None:
        """Return columns of the rows from `start` to `stop` (collective)."""
        size = max(stop - start, 0)
        found: dict[str, Cells] = {}
        errors: list[Exception] = []
        if self.comm.rank == 0:
            try:
                found = {name: _room(self.layout[name], size) for name in names}
            except MemoryError as error:  # the other ranks give their parts all the same
                errors.append(error)
        first, last = self._places(start, stop) if size else (0, 0)
        for window in self.windows(first, last, max(1, TRAVEL_BYTES // self.row_bytes(names))):
            for given in self._gather(partial(self._parts, names, window, start, stop)):
                if isinstance(given, Exception):
                    errors.append(given)
                for at, columns in [] if isinstance(given, Exception) or errors else given:
                    for name, cells in columns.items():
                        found[name][at : at + len(cells)] = cells
        if errors:
            raise errors[0]
        return found if self.comm.rank == 0 else None

    def _parts(self, names: Sequence[str], window: range, start: int, stop: int) -> list[tuple[int, dict[str, Cells]]]:
        """Return what this rank has of some rows, and where in these it begins."""
        parts = []
        for place in self.own(window):
            begin, end = self.starts[place : place + 2].tolist()
            cut = slice(max(start - begin, 0), min(stop, end) - begin)
            parts.append(
                (begin + cut.start - start, {name: cells[cut] for name, cells in self.cells(place, names).items()})
            )
        return parts

    def _places(self, start: int, stop: int) -> tuple[int, int]:
        """Return the chunks that have some rows: the first, and the one behind the last."""
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        return first, int(np.searchsorted(self.starts, stop, side="left"))

    def _gather(self, function: Callable[[], T]) -> list[T | Exception]:
        """Return what `function` returned or raised on each rank; nothing but on the first one (collective)."""
        given: T | Exception
        try:
            given = function()
        except Exception as error:
            given = error
        return self.comm.gather(given) or []

    def summary(self, bins: int, edge: int) -> dict[str, Summary] | None:
        """Return what is known of all columns without the table: `edge` cells at either end, and bins (collective)."""
        names = list(self.layout)
        numbers = [name for name, kind in self.layout.items() if kind is not None and kind.kind in "biuf"]
        found: list[Any] = []
        failed: Exception | None = None
        for part in (
            partial(self.collect, names, 0, min(edge, self.rows)),
            partial(self.collect, names, max(0, self.rows - edge), self.rows),
            partial(self.moments, numbers),
            partial(self.bins, names, bins),
        ):
            try:
                found.append(part())
            except Exception as error:  # the other ranks go on with the next part
                failed = failed or error
        if failed is not None:
            raise failed
        if self.comm.rank:
            return None
        first, last, moments, binned = found
        return {name: Summary((first[name], last[name]), moments.get(name), binned[name]) for name in names}

    def moments(self, names: Sequence[str]) -> dict[str, Moments] | None:
        """Return moments of columns of numbers (collective): the same for any ranks, to the last bit."""
        everyone = self._gather(partial(self._sums, names))
        if self.comm.rank:
            return None
        sums: dict[int, Any] = {}
        for given in everyone:
            if isinstance(given, Exception):
                raise given
            sums.update(given)
        found = {}
        for name in names:
            count, total, squares, least, most = zip(*(sums[place][name] for place in sorted(sums)), strict=True)
            mean = _sum(total) / sum(count)
            with np.errstate(all="ignore"):
                apart = np.array(count) * np.square(np.divide(total, count) - mean)
            found[name] = Moments(sum(count), mean, _sum((*squares, *apart)) / sum(count), np.min(least), np.max(most))
        return found

    def _sums(self, names: Sequence[str]) -> dict[int, dict[str, tuple[int, float, float, Any, Any]]]:
        sums: dict[int, dict[str, tuple[int, float, float, Any, Any]]] = {}
        for place in self.own(range(len(self.keys))):
            sums[place] = {}
            for name, cells in self.cells(place, names).items():
                values = np.asarray(cells, np.float64)
                with np.errstate(all="ignore"):
                    total = float(values.sum())
                    squares = float(np.square(values - total / len(values)).sum())
                sums[place][name] = len(values), total, squares, np.min(cells), np.max(cells)
        return sums

    def bins(self, names: Sequence[str], count: int) -> dict[str, Bins] | None:
        """Return columns by at most so many bins, of as many rows each, but for one more or less (collective)."""
        count = min(count, self.rows)
        edges = np.arange(count) * self.rows // max(count, 1)
        everyone = self._gather(partial(self._binned, names, edges))
        if self.comm.rank:
            return None
        parts: dict[int, Any] = {}
        for given in everyone:
            if isinstance(given, Exception):
                raise given
            parts.update(given)
        return {name: self._joined(name, [parts[place] for place in sorted(parts)], edges) for name in names}

    def _binned(self, names: Sequence[str], edges: Counts) -> dict[int, tuple[int, Counts, dict[str, list[Any]]]]:
        parts = {}
        for place in self.own(range(len(self.keys))):
            begin, end = self.starts[place : place + 2].tolist()
            first = int(np.searchsorted(edges, begin, side="right")) - 1
            cuts = np.maximum(edges[first : int(np.searchsorted(edges, end))] - begin, 0)
            found: dict[str, list[Any]] = {}
            for name, cells in self.cells(place, names).items():
                if isinstance(cells, np.ndarray) and cells.dtype.kind in "iuf":
                    with np.errstate(all="ignore"):
                        sums = np.add.reduceat(cells.astype(np.float64), cuts)
                    least, most = np.fmin.reduceat(cells, cuts), np.fmax.reduceat(cells, cuts)
                    found[name] = [cells[cuts], least, most, sums]
                else:
                    found[name] = [[cells[cut] for cut in cuts.tolist()]]
            parts[place] = first, cuts, found
        return parts

    def _joined(self, name: str, parts: Sequence[tuple[int, Counts, dict[str, list[Any]]]], edges: Counts) -> Bins:
        kind = self.layout[name]
        if kind is None or kind.kind not in "iuf":
            firsts: list[Any] = [None] * len(edges)
            for first, _, found in reversed(parts):
                firsts[first : first + len(found[name][0])] = found[name][0]
            return Bins(firsts, firsts, firsts, None)
        begin, least, most = (np.empty(len(edges), kind) for _ in range(3))
        sums, seen = np.zeros(len(edges)), np.zeros(len(edges), np.bool_)
        for first, cuts, found in parts:
            span = slice(first, first + len(cuts))
            some, low, high, total = found[name]
            new = ~seen[span]
            begin[span] = np.where(new, some, begin[span])
            least[span] = np.where(new, low, np.fmin(least[span], low))
            most[span] = np.where(new, high, np.fmax(most[span], high))
            with np.errstate(all="ignore"):
                sums[span] += total
            seen[span] = True
        return Bins(begin, least, most, sums / np.diff(edges, append=self.rows))


def _room(kind: np.dtype[Any] | None, size: int) -> Cells:
    return [None] * size if kind is None else np.empty(size, kind)


def _sum(values: Sequence[float]) -> float:
    """Return a sum, correctly rounded; of infinities what numpy has, also where both signs are there."""
    try:
        return math.fsum(values)
    except (ValueError, OverflowError):
        with np.errstate(all="ignore"):
            return float(np.sum(values))
