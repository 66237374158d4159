"""The formats of files: a CSV per table, a .npy per array, JSON for the rest.

A CSV has a header line, on request with units; floats in the shortest form that reads back exactly; times as people
write them; None as an empty cell; other objects as str() shows them. JSON is described in `himach.output.jsonable`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np

from himach.output.cells import Cells
from himach.output.jsonable import to_json
from himach.output.plain import plain
from himach.output.table import Table

#: Names of columns that hold times: with a unit of time at their end, or as a word of theirs.
TIME = re.compile(r"_(fs|ps|ns|us)$|(^|_)(time|times)(_|$)")
SHORT_DIGITS = 12  # significant digits that people may have written


def suffix(thing: Any) -> str:
    """Return the suffix of the file for a part of an outcome: its format."""
    if isinstance(thing, Table):
        return ".csv"
    pure = isinstance(thing, np.ndarray) and not thing.dtype.hasobject and not isinstance(thing, np.ma.MaskedArray)
    return ".npy" if pure else ".json"


def content(thing: Any, units: bool = False) -> bytes:
    """Return the bytes of the file for a part of an outcome; raises TypeError if it has no form in JSON.

    With `units` the header of a table says those that its columns have and their names do not.
    """
    kind = suffix(thing)
    if kind == ".csv":
        return _csv(thing, [_with_unit(name, thing.units.get(name)) if units else name for name in thing])
    if kind == ".json":
        return to_json(thing)
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(thing, order="C"), allow_pickle=False)
    return buffer.getvalue()


def _with_unit(name: str, unit: str | None) -> str:
    return name if not unit or name.endswith(f"_{unit}") else f"{name} ({unit})"


def _csv(table: Table, header: list[str]) -> bytes:
    text = _csv_text(table, header, csv.QUOTE_MINIMAL)
    if "\r" in text:  # the csv module of Python 3.11 does not quote it by itself, and reads it as the end of a row
        text = _csv_text(table, header, csv.QUOTE_NONNUMERIC)
    return text.encode(errors="backslashreplace")


def _csv_text(table: Table, header: list[str], quoting: Literal[0, 2]) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n", quoting=quoting)
    writer.writerow(header)
    writer.writerows(zip(*(_cells(name, column) for name, column in table.items()), strict=True))
    return text.getvalue()


def _cells(name: str, column: Cells) -> Iterable[Any]:
    """Return the cells of a column as the csv module is to write them; it writes Python's floats by repr()."""
    if isinstance(column, np.ndarray) and column.dtype == np.float64 and TIME.search(str(name)):
        return [_time_text(time) for time in column.tolist()]
    if not isinstance(column, np.ndarray):
        return [cell if cell is None or isinstance(cell, str) else str(plain(cell)) for cell in column]
    if column.dtype.kind in "biu" or column.dtype == np.float64:
        return list(column.tolist())
    return list(column.astype(str))  # the shortest digits that tell values of this type apart


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
