"""The formats of files: a CSV per table, a .npy per array, a `TextFile` as it is, JSON for the rest.

On request there are more files of a table, see `himach.output.table_files`. JSON is described in
`himach.output.jsonable`.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from himach.errors import UsageError
from himach.output.cells import LongCells, count
from himach.output.jsonable import to_json
from himach.output.table import Table
from himach.output.table_files.csv_text import csv_text

#: What a file's name may end in: ``.pdb``, ``.tar.gz``.
SUFFIX = re.compile(r"(\.[A-Za-z0-9_-]+)+")


@dataclass(frozen=True, repr=False)
class TextFile:
    r"""A part of an outcome that is a text for another program, such as a structure or a grid: a file of its own.

    Parameters
    ----------
    text
        The whole of the file, which is written in UTF-8 as it is.
    suffix
        What the file's name ends in, behind the name of the part: ``".pdb"``.

    Raises
    ------
    UsageError
        If the text is none, or the suffix does not begin with a dot or is none that every file system takes.

    Examples
    --------
    In a directory of outcomes, ``{"ion": himach.TextFile(...)}`` leaves the file ``ion.xyz``.

    >>> himach.TextFile("1\npotassium\nK 0 0 0\n", ".xyz")
    TextFile(.xyz, 3 lines)
    """

    text: str
    suffix: str = ".txt"

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise UsageError(f"TextFile: text must be a str, not {type(self.text).__name__}")
        if not isinstance(self.suffix, str) or not SUFFIX.fullmatch(self.suffix):
            raise UsageError(f"TextFile: suffix must be one such as '.pdb', not {self.suffix!r}")

    def __repr__(self) -> str:
        return f"TextFile({self.suffix}, {count(len(self.text.splitlines()), 'line')})"


def suffix(thing: Any) -> str:
    """Return the suffix of the file for a part of an outcome: its format."""
    if isinstance(thing, Table):
        return ".csv"
    if isinstance(thing, TextFile):
        return thing.suffix
    if isinstance(thing, LongCells):
        return ".npy" if thing.dtype is not None else ".json"
    pure = isinstance(thing, np.ndarray) and not thing.dtype.hasobject and not isinstance(thing, np.ma.MaskedArray)
    return ".npy" if pure else ".json"


def content(thing: Any, units: bool = False) -> bytes:
    """Return the bytes of the file for a part of an outcome; raises TypeError if it has no form in JSON.

    With `units` the header of a table says those that its columns have and their names do not.
    """
    if isinstance(thing, TextFile):
        return thing.text.encode(errors="backslashreplace")
    if isinstance(thing, Table):
        return csv_text(thing, units)
    if suffix(thing) == ".json":
        return to_json(thing)
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(thing, order="C"), allow_pickle=False)
    return buffer.getvalue()


def table_content(table: Table, name: str, kind: str) -> bytes:
    """Return the bytes of a table's file in another format than CSV; raises TypeError if it has no form in that."""
    if table.long is not None:
        try:
            table = table.whole()
        except UsageError as error:
            raise TypeError(str(error)) from None
    if kind == "parquet":
        from himach.output.table_files.parquet import parquet

        return parquet(table)
    if kind == "nc":
        from himach.output.table_files.netcdf import netcdf

        return netcdf(table)
    from himach.output.table_files.xvg import xvg

    return xvg(table, name)
