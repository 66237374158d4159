"""Named parts of outcomes as one file: `save()`, in the format that the file's name says.

What is written reads back as it was: an .npz by numpy, with the dtypes; files of one table as
`himach.output.table_files` says; JSON as `himach.output.jsonable` says. Units lie beside the numbers.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.errors import UsageError
from himach.files import write_bytes
from himach.output.cells import Cells
from himach.output.formats import TextFile, content, table_content
from himach.output.jsonable import to_json
from himach.output.table import Table
from himach.output.table_files.formats import FORMATS, table_formats

#: Formats by the suffix of the file; those of `FORMATS` hold one table.
SUFFIXES = (".npz", ".json", *(f".{kind}" for kind in FORMATS))
#: Name of the units within an .npz, a JSON text: unit by name of the array.
UNITS = "units"


def save(parts: Mapping[str, Any], path: str | os.PathLike[str]) -> list[Path]:
    """Write parts of outcomes into one file, whole or not at all.

    Parameters
    ----------
    parts
        Tables, arrays and other things by name.
    path
        ``X.npz``: an array ``PART`` for each array, ``TABLE/COLUMN`` for each column. ``X.json``: ``outcome`` and
        ``units``, by part. ``X.csv``: the only table, and ``X.units.json`` beside it if its columns have units.
        ``X.parquet``, ``X.nc``, ``X.xvg``: the only table, with its units.

    Returns
    -------
    list of Path
        What was written.

    Raises
    ------
    UsageError
        If there is no such format, it has no form for one of the parts, or what it needs is not installed.
    HimachError
        If a file cannot be written.
    """
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise UsageError(
            f"{path}: an outcome is saved as {', '.join(SUFFIXES)}, not as {kind or 'a file without suffix'}"
        )
    if kind.removeprefix(".") in FORMATS:
        return _save_table(parts, path, kind.removeprefix("."))
    units = {name: part.units for name, part in parts.items() if isinstance(part, Table) and part.units}
    try:
        encoded = to_json({"outcome": parts, "units": units}) if kind == ".json" else _npz(parts)
    except TypeError as error:
        raise UsageError(f"{path}: {error}") from None
    write_bytes(path, encoded)
    return [path]


def _save_table(parts: Mapping[str, Any], path: Path, kind: str) -> list[Path]:
    table_formats(kind)
    tables = [part for part in parts.values() if isinstance(part, Table)]
    if len(parts) != 1 or not tables:
        raise UsageError(
            f"{path}: a .{kind} holds one table, and the outcome is {', '.join(parts) or 'nothing'}; save .npz or "
            ".json, or all of it into a directory by write()"
        )
    ((name, table),) = parts.items()
    if kind != "csv":
        try:
            write_bytes(path, table_content(table, name, kind))
        except TypeError as error:
            raise UsageError(f"{path}: {error}; save .csv") from None
        return [path]
    companion = path.with_name(f"{path.stem}.units.json")
    if table.units:
        write_bytes(companion, to_json(table.units))
    elif companion.exists():  # of another table, which lay there before
        companion.unlink()
    write_bytes(path, content(table))
    return [path, companion] if table.units else [path]


def _npz(parts: Mapping[str, Any]) -> bytes:
    arrays: dict[str, npt.NDArray[Any]] = {}
    units: dict[str, str] = {}
    for name, part in parts.items():
        if not isinstance(part, Table):
            arrays[name] = _as_array(part, name)
            continue
        for column, cells in part.items():
            arrays[f"{name}/{column}"] = _as_array(cells[:], f"{name}/{column}")
        units.update({f"{name}/{column}": unit for column, unit in part.units.items()})
    if units:
        if UNITS in arrays:
            raise TypeError(
                f"an .npz has the units under the name {UNITS!r}, which a part of the outcome has; save .json"
            )
        arrays[UNITS] = np.array(json.dumps(units, ensure_ascii=False))
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)  # type: ignore[arg-type, unused-ignore]
    return buffer.getvalue()


def _as_array(value: Cells | Any, name: str) -> npt.NDArray[Any]:
    """Return a value as an array that is the same when it is read back; raises TypeError by name for objects."""
    if isinstance(value, TextFile):
        value = value.text
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, which .npz has no form for; save .json")
    if isinstance(value, list) and not all(type(cell) is str and not cell.endswith("\0") for cell in value):
        raise TypeError(f"{name} holds objects, which .npz has no form for; save .json")
    array = np.asarray(value)
    if array.dtype.kind not in "biufcMmUS" and not array.dtype.fields:
        raise TypeError(f"{name} ({type(value).__name__}) has no form in .npz; save .json")
    return array
