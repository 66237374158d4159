"""Tables as they were before they were written: `read_table()` of a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from himach.errors import UsageError
from himach.output.cells import Cells
from himach.output.table import Table

__all__ = ["LARGEST", "read_table"]

#: Bytes of a file that is read, at most: it takes some twenty times as many in memory.
LARGEST = 1 << 27


def read_table(path: Path, units: Mapping[str, str] | None = None) -> Table:
    """Return the table of a CSV file that `himach.output.formats.content` wrote.

    Parameters
    ----------
    path
        The file.
    units
        Of its columns by their names. A header that names the unit of its column loses it.

    Returns
    -------
    Table
        Columns of numbers are int64 or float64 arrays (n,), in which an empty cell is nan; others are lists of text
        with None for empty cells.

    Raises
    ------
    UsageError
        If the file cannot be read, is larger than `LARGEST`, or is no table.
    """
    units = units or {}
    try:
        # A cell is as long as it is: the limit of the module is for files that nobody has checked the quotes of.
        csv.field_size_limit(1 << 30)
        size = path.stat().st_size
        if size > LARGEST:
            raise UsageError(
                f"{path} is not looked at: it has {size:,} bytes, and a page is made of {LARGEST:,} at most"
            )
        rows = list(csv.reader(io.StringIO(path.read_bytes().decode("utf-8", "replace"), newline=""), strict=True))
    except OSError as error:
        raise UsageError(f"the table {path} cannot be read ({error.strerror})") from None
    except csv.Error as error:
        raise UsageError(f"{path} is no table: {error}") from None
    header = rows[0] if rows else []
    rows = [row or [""] for row in rows[1:]]  # the one cell of a row may be empty
    uneven = next((i for i, row in enumerate(rows, 2) if len(row) != len(header)), None)
    if uneven is not None:
        raise UsageError(f"{path} is no table: row {uneven} has not as many cells as the header")
    columns = zip(*rows, strict=True) if rows else ([] for _ in header)
    names = [_without_unit(name, units) for name in header]
    table = Table({name: _cells(list(texts)) for name, texts in zip(names, columns, strict=True)})
    table.units.update({name: unit for name, unit in units.items() if name in table})
    return table


def _without_unit(name: str, units: Mapping[str, str]) -> str:
    bare = next((column for column, unit in units.items() if name == f"{column} ({unit})"), name)
    return name if name in units else bare


def _cells(texts: list[str]) -> Cells:
    """Return cells as numbers if all are some, or empty; else as text."""
    for kind in (np.int64, np.float64):
        try:
            cells = [kind(text) if text or kind is np.int64 else kind("nan") for text in texts]
        except (ValueError, OverflowError):
            continue
        return np.array(cells, kind)
    return [text or None for text in texts]
