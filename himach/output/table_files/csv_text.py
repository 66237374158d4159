"""CSV of a table: `csv_text()`.

A CSV has a header line, on request with units; floats in the shortest form that reads back exactly; times as people
write them; None as an empty cell; other objects as str() shows them.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from himach.output.cells import PIECE_CELLS, Cells, LongCells
from himach.output.plain import plain
from himach.output.table import Table

__all__ = ["cell_texts", "csv_text", "encoded", "header", "pieces_of", "rows_of", "rows_text"]

#: Names of columns that hold times: with a unit of time at their end, or as a word of theirs.
TIME = re.compile(r"_(fs|ps|ns|us)$|(^|_)(time|times)(_|$)")
SHORT_DIGITS = 12  # significant digits that people may have written


def csv_text(table: Table, units: bool = False) -> bytes:
    """Return a table as CSV, in UTF-8; with `units` its header says those that columns have and their names do not."""
    text = _joined(pieces_of(table, header(table, units)))
    return _joined(pieces_of(table, header(table, units), quoted=True)) if b"\r" in text else text


def pieces_of(columns: Mapping[str, Cells | LongCells], head: Sequence[str], quoted: bool = False) -> Iterator[bytes]:
    """Give columns as CSV with this header, some rows at a time: a row takes many times its bytes while it is made."""
    yield encoded(rows_text([head], quoted))
    rows = max(map(len, columns.values()), default=0)
    for start in range(0, rows, PIECE_CELLS):
        piece = {name: column[start : start + PIECE_CELLS] for name, column in columns.items()}
        yield encoded(rows_text(rows_of(piece), quoted))


def _joined(pieces: Iterable[bytes]) -> bytes:
    whole = io.BytesIO()  # it does not hold all pieces beside the whole
    whole.writelines(pieces)
    return whole.getvalue()


def header(table: Table, units: bool) -> list[str]:
    """Return the names of a table's columns as a CSV has them."""
    return [_with_unit(name, table.units.get(name)) if units else name for name in table]


def rows_of(columns: Mapping[str, Cells | LongCells]) -> Iterable[tuple[Any, ...]]:
    """Return the rows of columns as the csv module is to write them."""
    return zip(*(cell_texts(name, column[:]) for name, column in columns.items()), strict=True)


def rows_text(rows: Iterable[Sequence[Any]], quoted: bool = False) -> str:
    """Return rows of cells as text.

    Of a CSV that has a carriage return anywhere all texts are `quoted`: the csv module of Python 3.11 does not do so by
    itself, and reads it as the end of a row.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC if quoted else csv.QUOTE_MINIMAL)
    writer.writerows(rows)
    return text.getvalue()


def encoded(text: str) -> bytes:
    """Return the text of a file as its bytes."""
    return text.encode(errors="backslashreplace")


def cell_texts(name: str, column: Cells) -> Iterable[Any]:
    """Return the cells of a column as the csv module is to write them; it writes Python's floats by repr()."""
    if isinstance(column, np.ndarray) and column.dtype == np.float64 and TIME.search(str(name)):
        return [_time_text(time) for time in column.tolist()]
    if not isinstance(column, np.ndarray):
        return [cell if cell is None or isinstance(cell, str) else str(plain(cell)) for cell in column]
    if column.dtype.kind in "biu" or column.dtype == np.float64:
        return list(column.tolist())
    return list(column.astype(str))  # the shortest digits that tell values of this type apart


def _with_unit(name: str, unit: str | None) -> str:
    return name if not unit or name.endswith(f"_{unit}") else f"{name} ({unit})"


def _time_text(time: float) -> str:
    """Return a time as people write it: in the digits that it had before it went through float32 or a multiplication.

    Trajectories hold times in float32, 0.1 as 0.10000000149011612; others are products of a number and a step, 3 and
    0.1 as 0.30000000000000004. A time that takes many digits to be told from the next float64 is written with those
    that tell it from the next float32, if it is one, else with few digits where these differ from it by less than the
    rounding of a product. So the text holds all that the trajectory said: `float32()` of it is the same.
    """
    exact = repr(time)
    if len(exact) <= SHORT_DIGITS or not np.isfinite(time):
        return exact
    single = np.float32(time)
    if float(single) == time:
        return str(single)
    rounded = float(f"{time:.{SHORT_DIGITS}g}")
    near = abs(rounded - time) <= 4 * np.spacing(abs(time))
    return repr(rounded) if near else exact
