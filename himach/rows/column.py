"""Columns of a table whose rows are on all ranks, as finish() sees them: `RowColumn`, and `table_of()` them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from himach.analysis import TIME
from himach.errors import HimachError, UsageError
from himach.files import whole_file
from himach.output.cells import Cells, LongCells
from himach.output.figures.envelope import BINS
from himach.output.table import Column, Table
from himach.output.table_files.csv_text import pieces_of
from himach.rows.spread import Bins, Moments, Spread, Summary
from himach.rows.stored import Stored
from himach.rows.team import Team

__all__ = ["RowColumn", "table_of"]

#: Bytes of a column that is read as one array, at most.
TOGETHER_BYTES = 1 << 32


class RowColumn(LongCells):
    """A column of the table of rows with that `number`, whose cells the ranks of `team` have.

    It reads what it is asked for from them, until `settle` is called: then from where it was written.
    """

    def __init__(self, team: Team | None, number: int, name: str, rows: int, dtype: np.dtype[Any] | None) -> None:
        self.dtype = dtype
        self._team = team
        self._number = number
        self._name = name
        self._rows = rows
        self._written: tuple[Path, int, Any] | None = None
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
        cells: Cells = self._ask("collect", [self._name], start, stop)[self._name]
        return cells

    def moments(self) -> Moments:
        """Return what mean(), std(), min() and max() need."""
        if self.dtype is None or self.dtype.kind not in "biuf":
            raise UsageError(f"column {self._name!r} has no mean: its cells are no real numbers")
        found = self._summary().moments
        assert found is not None
        return found

    def bins(self, count: int) -> Bins:
        """Return `firsts`, `least`, `most` and `means` of at most so many bins of as many rows each."""
        if count == BINS:
            return self._summary().bins
        if self._stored is not None:
            raise UsageError(f"column {self._name!r}: after the run there are {BINS} bins; take these")
        found: Bins = self._ask("bins", [self._name], count)[self._name]
        return found

    def _summary(self) -> Summary:
        if self._stored is not None:
            return self._stored.summary
        if self._team is None:
            raise self._gone()
        return self._team.summary(self._number)[self._name]

    def write_table(self, path: Path, header: Sequence[str], columns: Mapping[str, LongCells]) -> None:
        """Write a table of such columns as CSV, with this header; raises HimachError if it cannot be written."""
        if self._stored is not None:
            _write_anew(path, header, columns)
            return
        own: dict[str, str] = {}
        for name, column in columns.items():
            if not isinstance(column, RowColumn) or column._number != self._number:
                raise UsageError(f"{path.name}: its columns are of tables of several analyses; make a table of each")
            own[name] = column._name
        starts = self._ask("write_table", path, list(header), own)
        for at, column in enumerate(columns.values()):
            assert isinstance(column, RowColumn)
            column._written = path, at, starts

    def write_array(self, path: Path) -> None:
        """Write these numbers as .npy."""
        self._ask("write_array", path, self._name)

    def settle(self, staged: Path, out: Path) -> None:
        """Know the cells when ranks are gone: what was written below `staged` is then in `out`."""
        if self._stored is not None:
            return
        written = None
        if self._written is not None:
            path, *where = self._written
            written = out.absolute() / path.relative_to(staged), where[0], where[1]
        rows = None if self._team is None else self._team.starts(self._number)
        self._stored = Stored(self._name, self.dtype, self._rows, self._summary(), written, rows)
        self._team = None

    def _ask(self, method: str, *arguments: Any) -> Any:
        if self._team is None:
            raise self._gone()
        return self._team.ask(self._number, method, *arguments)

    def _gone(self) -> UsageError:
        return UsageError(f"column {self._name!r} is not known any more: its rows were on ranks that have ended")

    def __reduce__(self) -> Any:
        if self._stored is None:
            raise TypeError(f"column {self._name!r} is on all ranks, and stays there until the run has ended")
        return _settled, (self._number, self._name, self._rows, self.dtype, self._stored)


def _write_anew(path: Path, header: Sequence[str], columns: Mapping[str, LongCells]) -> None:
    """Write a table again whose columns are in a file."""
    try:
        quoted = any(b"\r" in text for text in pieces_of(columns, header))
        with whole_file(path) as file:
            file.writelines(pieces_of(columns, header, quoted))
    except OSError as error:
        raise HimachError(f"{path} cannot be written ({error.strerror})") from None


def _settled(number: int, name: str, rows: int, dtype: np.dtype[Any] | None, stored: Stored) -> RowColumn:
    column = RowColumn(None, number, name, rows, dtype)
    column._stored = stored
    return column


def table_of(team: Team, number: int, spread: Spread) -> Table:
    """Return the table of rows that the ranks of a team have by that number; on the first rank."""
    columns = {name: RowColumn(team, number, name, spread.rows, dtype) for name, dtype in spread.layout.items()}
    return Table({**columns, TIME: Column(columns[TIME], "ps")})
