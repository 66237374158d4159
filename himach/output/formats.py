"""The formats of files: a CSV per table, a .npy per array, JSON for the rest.

A CSV has a header line; floats in the shortest form that reads back exactly; None as an empty cell; other objects as
str() shows them. JSON is described in `himach.output.jsonable`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np

from himach.output.cells import Column
from himach.output.jsonable import to_json
from himach.output.plain import plain
from himach.output.table import Table


def suffix(thing: Any) -> str:
    """Return the suffix of the file for a part of an outcome: its format."""
    if isinstance(thing, Table):
        return ".csv"
    pure = isinstance(thing, np.ndarray) and not thing.dtype.hasobject and not isinstance(thing, np.ma.MaskedArray)
    return ".npy" if pure else ".json"


def content(thing: Any) -> bytes:
    """Return the bytes of the file for a part of an outcome; raises TypeError if it has no form in JSON."""
    kind = suffix(thing)
    if kind == ".csv":
        return _csv(thing)
    if kind == ".json":
        return to_json(thing)
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(thing, order="C"), allow_pickle=False)
    return buffer.getvalue()


def _csv(table: Table) -> bytes:
    text = _csv_text(table, csv.QUOTE_MINIMAL)
    if "\r" in text:  # the csv module of Python 3.11 does not quote it by itself, and reads it as the end of a row
        text = _csv_text(table, csv.QUOTE_NONNUMERIC)
    return text.encode(errors="backslashreplace")


def _csv_text(table: Table, quoting: Literal[0, 2]) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n", quoting=quoting)
    writer.writerow(table)
    writer.writerows(zip(*(_cells(column) for column in table.values()), strict=True))
    return text.getvalue()


def _cells(column: Column) -> Iterable[Any]:
    """Return the cells of a column as the csv module is to write them; it writes Python's floats by repr()."""
    if not isinstance(column, np.ndarray):
        return [cell if cell is None or isinstance(cell, str) else str(plain(cell)) for cell in column]
    if column.dtype.kind in "biu" or column.dtype == np.float64:
        return list(column.tolist())
    return list(column.astype(str))  # the shortest digits that tell values of this type apart
