"""Columns of a long table, as passed to finish(): `RowColumn`; `long_table()` makes the table."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from himach.analysis import TIME
from himach.errors import HimachError, UsageError
from himach.files import whole_file
from himach.output.cells import BINS, Cells, LongCells
from himach.output.table import Column, Table
from himach.output.table_files import csv_pieces, csv_rows, encode_text, rows_text
from himach.rows.spread import Bins, ColumnSummary, Counts, Moments, Spread
from himach.rows.stored import Stored

#: Most bytes of a column read as one array.
TOGETHER_BYTES = 1 << 32


class RowColumn(LongCells):
    """A column of a table of rows, whose cells are in pieces.

    It reads cells from these pieces until `detach` is called, then from the file to which it was written.
    """

    def __init__(self, spread: Spread | None, name: str, rows: int, dtype: np.dtype[Any] | None) -> None:
        self.dtype = dtype
        self._spread = spread
        self._name = name
        self._rows = rows
        self._written: tuple[Path, int, Counts] | None = None
        self._stored: Stored | None = None

    def __len__(self) -> int:
        return self._rows

    def read(self, start: int, stop: int) -> Cells:
        """Return the cells from `start` to `stop`."""
        width = 64 if self.dtype is None else self.dtype.itemsize
        if (stop - start) * width > TOGETHER_BYTES:
            raise UsageError(
                f"column {self._name!r} has {self._rows:,} rows, too many to be read at once: go over its pieces(), or "
                "take its mean(), std(), min(), max() or bins()"
            )
        if self._stored is not None:
            return self._stored.read(start, stop)
        return self._own().collect([self._name], start, stop)[self._name]

    def moments(self) -> Moments:
        """Return the moments for mean(), std(), min() and max()."""
        if self.dtype is None or self.dtype.kind not in "biuf":
            raise UsageError(f"column {self._name!r} has no mean: its cells are no real numbers")
        moments = self._summary().moments
        assert moments is not None
        return moments

    def bins(self, count: int) -> Bins:
        """Return `firsts`, `least`, `most` and `means` of at most `count` bins with equal numbers of rows."""
        if count == BINS:
            return self._summary().bins
        if self._stored is not None:
            raise UsageError(f"column {self._name!r}: after the run there are {BINS} bins; take these")
        return self._own().bins([self._name], count)[self._name]

    def _summary(self) -> ColumnSummary:
        return self._own().summary[self._name] if self._stored is None else self._stored.summary

    def write_table(self, path: Path, header: Sequence[str], columns: Mapping[str, LongCells]) -> None:
        """Write a table of such columns as CSV, with this header; raise HimachError if that fails."""
        if self._stored is not None:
            _write_anew(path, header, columns)
            return
        own: dict[str, str] = {}
        for name, column in columns.items():
            if not isinstance(column, RowColumn) or column._spread is not self._spread:
                raise UsageError(f"{path.name}: its columns are of tables of several analyses; make a table of each")
            own[name] = column._name
        try:
            starts = _write(path, _texts(self._own(), header, own, quoted=False))
        except _CarriageReturn:
            starts = _write(path, _texts(self._own(), header, own, quoted=True))
        for at, column in enumerate(columns.values()):
            assert isinstance(column, RowColumn)
            column._written = path, at, starts

    def write_array(self, path: Path) -> None:
        """Write the numbers as .npy."""
        _write(path, _array(self._own(), self._name))

    def detach(self, staged: Path, out: Path) -> None:
        """Prepare for reading after the run, when files below `staged` are in `out`."""
        if self._stored is not None:
            return
        written = None
        if self._written is not None:
            path, at, places = self._written
            written = out.absolute() / path.relative_to(staged), at, places
        starts = None if self._spread is None else self._spread.starts
        self._stored = Stored(self._name, self.dtype, self._rows, self._summary(), written, starts)
        self._spread = None

    def _own(self) -> Spread:
        if self._spread is None:
            raise UsageError(f"column {self._name!r} is not known any more: its rows were of a run that has ended")
        return self._spread

    def __reduce__(self) -> Any:
        if self._stored is None:
            raise TypeError(f"column {self._name!r} is in pieces, and stays where it is until the run has ended")
        return _settled, (self._name, self._rows, self.dtype, self._stored)


class _CarriageReturn(Exception):  # noqa: N818 - no error
    """A text contains a carriage return."""


def _texts(spread: Spread, header: Sequence[str], columns: Mapping[str, str], quoted: bool) -> Iterator[bytes]:
    """Yield the header and the rows of each chunk; `columns` maps names in the table to names in rows."""
    names = list(dict.fromkeys(columns.values()))
    for place in range(-1, len(spread.keys)):
        rows: Iterable[Sequence[Any]] = [header]
        if place >= 0:
            cells = spread.cells(place, names)
            rows = csv_rows({name: cells[own] for name, own in columns.items()})
        text = rows_text(rows, quoted)
        if "\r" in text and not quoted:
            raise _CarriageReturn
        yield encode_text(text)


def _array(spread: Spread, name: str) -> Iterator[bytes]:
    """Yield the header of a .npy file, then the numbers of each chunk."""
    kind, head = spread.layout[name], BytesIO()
    assert kind is not None
    described = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": (spread.rows,)}
    np.lib.format.write_array_header_1_0(head, described)
    yield head.getvalue()
    for place in range(len(spread.keys)):
        yield np.asarray(spread.cells(place, [name])[name]).tobytes()


def _write(path: Path, pieces: Iterable[bytes]) -> Counts:
    """Write the header and the chunks of a file; return the offset of each chunk, and the end."""
    starts = []
    try:
        with open(path, "wb") as file:
            for piece in pieces:
                file.write(piece)
                starts.append(file.tell())
    except OSError as error:
        with suppress(OSError):
            os.truncate(path, 0)  # frees space for the next file
        raise HimachError(f"{path} cannot be written ({error.strerror})") from None
    return np.array(starts, np.int64)


def _write_anew(path: Path, header: Sequence[str], columns: Mapping[str, LongCells]) -> None:
    try:
        quoted = any(b"\r" in text for text in csv_pieces(columns, header))
        with whole_file(path) as file:
            file.writelines(csv_pieces(columns, header, quoted))
    except OSError as error:
        raise HimachError(f"{path} cannot be written ({error.strerror})") from None


def _settled(name: str, rows: int, dtype: np.dtype[Any] | None, stored: Stored) -> RowColumn:
    column = RowColumn(None, name, rows, dtype)
    column._stored = stored
    return column


def long_table(spread: Spread) -> Table:
    """Return the table of `spread` with columns in pieces."""
    columns = {name: RowColumn(spread, name, spread.rows, dtype) for name, dtype in spread.layout.items()}
    return Table({**columns, TIME: Column(columns[TIME], "ps")})
