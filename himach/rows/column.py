"""Columns of a long table, as passed to finish() and after the run: `RowColumn`; `long_table()` makes the table."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from himach.analysis import TIME
from himach.errors import HimachError, UsageError
from himach.files import write_bytes
from himach.output.cells import BINS, EDGE_CELLS, Cells, LongCells
from himach.output.table import Column, Table
from himach.output.table_files import csv_pieces, csv_rows, encode_text, rows_text
from himach.rows.spread import Bins, ColumnSummary, Counts, Moments, Spread

#: Most bytes of a column read as one array.
TOGETHER_BYTES = 1 << 32


class RowColumn(LongCells):
    """A column of a table of rows, whose cells are in pieces.

    It reads cells from these pieces until `detach` is called, then from the file to which it was written.
    """

    def __init__(self, spread: Spread, name: str) -> None:
        self.dtype = spread.layout[name]
        self._spread: Spread | None = spread
        self._name, self._rows, self._starts = name, spread.rows, spread.starts
        self._summary: ColumnSummary | None = None  # after the run; available without the file
        #: A CSV file, the number of this column, and the offsets of chunks.
        self._written: tuple[Path, int, Counts] | None = None

    def __len__(self) -> int:
        return self._rows

    @property
    def summary(self) -> ColumnSummary:
        """Summary of the column."""
        return self._summary or self._own().summary[self._name]

    def read(self, start: int, stop: int) -> Cells:
        """Return the cells from `start` to `stop`; after the run, numbers, or text as in the file."""
        width = 64 if self.dtype is None else self.dtype.itemsize
        if (stop - start) * width > TOGETHER_BYTES:
            raise UsageError(
                f"column {self._name!r} has {self._rows:,} rows, too many to be read at once: go over its pieces(), or "
                "take its mean(), std(), min(), max() or bins()"
            )
        if self._spread is not None:
            return self._spread.collect([self._name], start, stop)[self._name]
        first, last = self.summary.ends
        behind = self._rows - EDGE_CELLS
        if stop <= len(first):
            return first[start:stop]
        if start >= max(behind, 0):
            return last[start - behind : stop - behind]
        return self._read_file(start, stop)

    def _read_file(self, start: int, stop: int) -> Cells:
        name = f"column {self._name!r}"
        if self._written is None:
            raise UsageError(f"{name} of {self._rows:,} rows was not written, and is gone with the ranks")
        path, column, places = self._written
        first_chunk = int(np.searchsorted(self._starts, start, side="right")) - 1
        last_chunk = int(np.searchsorted(self._starts, stop, side="left"))
        size = 0
        parts: list[Any] = []
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(int(places[first_chunk]))
                for chunk in range(first_chunk, last_chunk):
                    text = file.read(int(places[chunk + 1] - places[chunk])).decode()
                    parts.append(self._cells([row[column] for row in csv.reader(io.StringIO(text, newline=""))]))
        except OSError as error:
            raise UsageError(f"{name} is in {path}, which cannot be read ({error.strerror})") from None
        except (ValueError, IndexError):
            size = -1
        skipped = start - int(self._starts[first_chunk])
        if size != int(places[-1]) or sum(map(len, parts)) != int(self._starts[last_chunk] - self._starts[first_chunk]):
            raise UsageError(f"{name} was written to {path}, which is another file by now")
        if self.dtype is not None:
            whole: Cells = np.concatenate(parts)[skipped : skipped + stop - start]
            return whole
        return [cell for part in parts for cell in part][skipped : skipped + stop - start]

    def _cells(self, texts: list[str]) -> Cells:
        if self.dtype is None:
            return [text or None for text in texts]
        if self.dtype.kind == "b":
            return np.array([text == "True" for text in texts])
        return np.array(texts).astype(self.dtype)

    def moments(self) -> Moments:
        """Return the moments for mean(), std(), min() and max()."""
        if self.dtype is None or self.dtype.kind not in "biuf":
            raise UsageError(f"column {self._name!r} has no mean: its cells are no real numbers")
        moments = self.summary.moments
        assert moments is not None
        return moments

    def bins(self, count: int) -> Bins:
        """Return `firsts`, `least`, `most` and `means` of at most `count` bins with equal numbers of rows."""
        if count == BINS:
            return self.summary.bins
        if self._spread is None:
            raise UsageError(f"column {self._name!r}: after the run there are {BINS} bins; take these")
        return self._spread.bins([self._name], count)[self._name]

    def write_table(self, path: Path, header: Sequence[str], columns: Mapping[str, LongCells]) -> None:
        """Write a table of such columns as CSV, with this header; raise HimachError if that fails."""
        if self._spread is None:
            quoted = any(b"\r" in text for text in csv_pieces(columns, header))
            write_bytes(path, csv_pieces(columns, header, quoted))
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
        if self._spread is None:
            return
        if self._written is not None:
            path, at, places = self._written
            self._written = out.absolute() / path.relative_to(staged), at, places
        self._summary, self._spread = self.summary, None

    def _own(self) -> Spread:
        if self._spread is None:
            raise UsageError(f"column {self._name!r} is not known any more: its rows were of a run that has ended")
        return self._spread

    def __getstate__(self) -> dict[str, Any]:
        if self._spread is not None:
            raise TypeError(f"column {self._name!r} is in pieces, and stays where it is until the run has ended")
        return vars(self)


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
    kind, head = spread.layout[name], io.BytesIO()
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


def long_table(spread: Spread) -> Table:
    """Return the table of `spread` with columns in pieces."""
    columns = {name: RowColumn(spread, name) for name in spread.layout}
    return Table({**columns, TIME: Column(columns[TIME], "ps")})
