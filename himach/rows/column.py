"""Columns of a long table: `RowFile` has its rows on the first rank's disk, `RowColumn` is a column for finish().

After the run a `RowColumn` reads the CSV file to which it was written.
"""

from __future__ import annotations

import csv
import io
import math
import os
import pickle
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.analysis import TIME
from himach.engine.shuffle.spill import Scratch
from himach.errors import UsageError
from himach.files import write_bytes
from himach.output.cells import BINS, EDGE_CELLS, PIECE_CELLS, Cells, LongCells
from himach.output.table import Column, Table
from himach.rows.layout import Layout, join_cells

#: Most bytes of a column read as one array.
TOGETHER_BYTES = 1 << 32


class RowFile:
    """The rows of a long table, by column, in chunks."""

    def __init__(self, directory: Path, layout: Layout) -> None:
        self.layout = layout
        self.starts = [0]  # first row of each chunk, and the number of rows
        self._scratch = Scratch(directory)
        self._places: dict[str, list[tuple[int, int]]] = {name: [] for name in layout}

    def append(self, chunk: Mapping[str, Cells]) -> None:
        """Add the rows of a chunk."""
        for name, cells in chunk.items():
            data = pickle.dumps(cells, protocol=5)
            self._places[name].append((self._scratch.append(data), len(data)))
        self.starts.append(self.starts[-1] + len(chunk[TIME]))

    def cells(self, name: str, chunk: int) -> Cells:
        """Return the cells of a column in a chunk."""
        start, size = self._places[name][chunk]
        data = np.empty(size, np.uint8)
        self._scratch.read(start, data)
        cells: Cells = pickle.loads(data)
        return cells

    def table(self) -> Table:
        """Return the table, whose columns read this file."""
        columns = {name: RowColumn(self, name) for name in self.layout}
        return Table({**columns, TIME: Column(columns[TIME], "ps")})


@dataclass(frozen=True)
class Moments:
    """Mean, variance (mean squared deviation), minimum and maximum of a column of numbers."""

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


class RowColumn(LongCells):
    """A column of a table of rows, read from a `RowFile` until `detach` is called, then from a CSV file."""

    def __init__(self, file: RowFile, name: str) -> None:
        self.dtype = file.layout[name]
        self._name = name
        self._file: RowFile | None = file
        self._starts = file.starts  # of chunks, and the number of rows
        #: A CSV file, the number of this column, and the offsets of its pieces of `PIECE_CELLS` rows.
        self._written: tuple[Path, int, list[int]] | None = None

    def __len__(self) -> int:
        return self._starts[-1]

    @cached_property
    def summary(self) -> ColumnSummary:
        """Summary of the column, which is available after the run without a file."""
        ends = self[:EDGE_CELLS], self[-EDGE_CELLS:]
        is_real = self.dtype is not None and self.dtype.kind in "biuf"
        return ColumnSummary(ends, self._moments() if is_real else None, self._bins(BINS))

    def read(self, start: int, stop: int) -> Cells:
        """Return the cells from `start` to `stop`; after the run, numbers, or text as in the file."""
        width = 64 if self.dtype is None else self.dtype.itemsize
        if (stop - start) * width > TOGETHER_BYTES:
            raise UsageError(
                f"column {self._name!r} has {len(self):,} rows, too many to be read at once: go over its pieces(), or "
                "take its mean(), std(), min(), max() or bins()"
            )
        if self._file is None:
            first, last = self.summary.ends
            behind = len(self) - EDGE_CELLS
            if stop <= len(first):
                return first[start:stop]
            if start >= max(behind, 0):
                return last[start - behind : stop - behind]
        return self._read(start, stop, self._chunk)

    def _read(self, start: int, stop: int, load: Callable[[int], Cells]) -> Cells:
        """Return the cells from `start` to `stop`; `load` returns those of a chunk."""
        starts = self._starts
        chunks = range(bisect_right(starts, start) - 1, bisect_left(starts, stop) if stop > start else 0)
        parts = [load(chunk)[max(start - starts[chunk], 0) : stop - starts[chunk]] for chunk in chunks]
        return join_cells(parts, self.dtype)

    def _chunk(self, chunk: int) -> Cells:
        return self._read_csv(chunk) if self._file is None else self._file.cells(self._name, chunk)

    def _read_csv(self, chunk: int) -> Cells:
        name = f"column {self._name!r}"
        if self._written is None:
            raise UsageError(f"{name} of {len(self):,} rows was not written, and is gone with the ranks")
        path, column, offsets = self._written
        size, cells = 0, self._cells([])
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(offsets[chunk])
                text = file.read(offsets[chunk + 1] - offsets[chunk]).decode()
            cells = self._cells([row[column] for row in csv.reader(io.StringIO(text, newline=""))])
        except OSError as error:
            raise UsageError(f"{name} is in {path}, which cannot be read ({error.strerror})") from None
        except (ValueError, IndexError):
            size = -1
        if size != offsets[-1] or len(cells) != self._starts[chunk + 1] - self._starts[chunk]:
            raise UsageError(f"{name} was written to {path}, which is another file by now")
        return cells

    def _cells(self, texts: list[str]) -> Cells:
        if self.dtype is None:
            return [text or None for text in texts]
        if self.dtype.kind == "b":
            return np.array([text == "True" for text in texts])
        return np.array(texts).astype(self.dtype)

    def moments(self) -> Moments:
        """Return the moments for mean(), std(), min() and max()."""
        if (moments := self.summary.moments) is None:
            raise UsageError(f"column {self._name!r} has no mean: its cells are no real numbers")
        return moments

    def _moments(self) -> Moments:
        """Return the moments, bitwise equal for any number of ranks."""
        sums = []
        with np.errstate(all="ignore"):
            for cells in self.pieces():
                values = np.asarray(cells, np.float64)
                total = float(values.sum())
                squares = float(np.square(values - total / len(values)).sum())
                sums.append((len(values), total, squares, np.min(cells), np.max(cells)))
            counts, totals, squared, low, high = zip(*sums, strict=True)
            mean = _sum(totals) / len(self)
            apart = np.array(counts) * np.square(np.divide(totals, counts) - mean)
        return Moments(mean, _sum((*squared, *apart)) / len(self), np.min(low), np.max(high))

    def bins(self, count: int) -> Bins:
        """Return `firsts`, `least`, `most` and `means` of at most `count` bins with equal numbers of rows."""
        if count == BINS:
            return self.summary.bins
        if self._file is None:
            raise UsageError(f"column {self._name!r}: after the run there are {BINS} bins; take these")
        return self._bins(count)

    def _bins(self, count: int) -> Bins:
        count = max(1, min(count, len(self)))
        edges = (np.arange(count + 1) * len(self) // count).tolist()
        load = lru_cache(1)(self._chunk)  # a chunk has rows of several bins
        bins = zip(*(_summarize(self._read(start, stop, load)) for start, stop in pairwise(edges)), strict=True)
        firsts, *numbers = bins
        if not numbers:
            return Bins(list(firsts), list(firsts), list(firsts), None)
        least, most, means = numbers
        kind = self.dtype
        return Bins(np.array(firsts, kind), np.array(least, kind), np.array(most, kind), np.array(means))

    def write_table(self, path: Path, pieces: Iterable[bytes], columns: Mapping[str, LongCells]) -> None:
        """Write the pieces of the CSV file of a table of such columns; raise HimachError if that fails."""
        offsets: list[int] = []

        def counted() -> Iterator[bytes]:
            for piece in pieces:
                yield piece
                offsets.append(len(piece) + (offsets[-1] if offsets else 0))

        write_bytes(path, counted())
        for number, column in enumerate(columns.values()):
            if isinstance(column, RowColumn) and column._file is not None:
                column._written = path, number, offsets

    def write_array(self, path: Path) -> None:
        """Write the numbers as .npy."""
        head = io.BytesIO()
        assert self.dtype is not None
        described = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": (len(self),)}
        np.lib.format.write_array_header_1_0(head, described)
        write_bytes(path, chain([head.getvalue()], (np.asarray(piece).tobytes() for piece in self.pieces())))

    def detach(self, staged: Path, out: Path) -> None:
        """Prepare for reading after the run, when files below `staged` are in `out`."""
        if self._file is None:
            return
        self.summary  # noqa: B018 - computed now, from the file of the run
        self._file = None
        if self._written is not None:
            path, number, offsets = self._written
            self._written = out.absolute() / path.relative_to(staged), number, offsets
            self._starts = [*range(0, len(self), PIECE_CELLS), len(self)]

    def __getstate__(self) -> dict[str, Any]:
        if self._file is not None:
            raise TypeError(f"column {self._name!r} is in pieces, and stays where it is until the run has ended")
        return vars(self)


def _summarize(cells: Cells) -> tuple[Any, ...]:
    """Return the first cell, and of numbers the least, the most and the mean."""
    if not isinstance(cells, np.ndarray) or cells.dtype.kind not in "iuf":
        return (cells[0],)
    with np.errstate(all="ignore"):
        return cells[0], np.fmin.reduce(cells), np.fmax.reduce(cells), np.mean(cells, dtype=np.float64)


def _sum(values: Sequence[float]) -> float:
    """Return a correctly rounded sum; with infinities, of either or both signs, that of numpy."""
    try:
        return math.fsum(values)
    except (ValueError, OverflowError):
        with np.errstate(all="ignore"):
            return float(np.sum(values))
