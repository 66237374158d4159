"""Files of an outcome: CSV for tables, .npy for arrays, a `TextFile` as it is, JSON for the rest; and `save()`."""

import dataclasses
import datetime
import enum
import io
import json
import math
import os
import re
from collections.abc import Mapping, Sequence, Set
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.errors import UsageError
from himach.files import write_bytes
from himach.output.cells import Cells, plain, shortest
from himach.output.file_names import TABLES, table_formats
from himach.output.table import Column, Table, as_table
from himach.output.table_files import csv_table, table_content
from himach.output.text import count

#: Valid suffixes of file names: ``.pdb``, ``.tar.gz``.
SUFFIX = re.compile(r"(\.[A-Za-z0-9_-]+)+")
#: Formats of `save()`; a file in a table format holds one table.
SAVED = (".npz", ".json", *(f".{kind}" for kind in TABLES))
#: Name of the units in an .npz: JSON text, unit by name of the array.
UNITS = "units"
#: JSON forms of numbers that JSON lacks.
NOT_FINITE = {"nan": None, "inf": "Infinity", "-inf": "-Infinity"}


@dataclasses.dataclass(frozen=True, repr=False)
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
    """Return the suffix of the file of a part of an outcome."""
    if isinstance(thing, Table):
        return ".csv"
    if isinstance(thing, TextFile):
        return thing.suffix
    is_plain = isinstance(thing, np.ndarray) and not thing.dtype.hasobject and not isinstance(thing, np.ma.MaskedArray)
    return ".npy" if is_plain else ".json"


def content(thing: Any, units: bool = False) -> bytes:
    """Return the bytes of the file of a part of an outcome; raises TypeError if JSON cannot represent it."""
    if isinstance(thing, TextFile):
        return thing.text.encode(errors="backslashreplace")
    if isinstance(thing, Table):
        return b"".join(csv_table(thing, units))
    if suffix(thing) == ".json":
        return to_json(thing)
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(thing, order="C"), allow_pickle=False)
    return buffer.getvalue()


def to_json(value: Any) -> bytes:
    """Encode `value` as UTF-8 JSON with a final line feed, the same for equal values.

    Besides JSON's own types: numpy scalars and arrays, tables, tuples, sets (sorted), paths, dates, enumerations and
    dataclasses.
    """
    try:
        text = json.dumps(_jsonable(value), indent=2, ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise TypeError("it contains itself, or is nested too deeply") from None
    # JSON escapes lone surrogates, which UTF-8 lacks.
    return f"{text}\n".encode(errors="backslashreplace")


def _jsonable(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return _jsonable(value.value)
    if isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else NOT_FINITE[str(float(value))]
    if isinstance(value, np.datetime64 | np.timedelta64 | PurePath):
        return str(value)
    if isinstance(value, np.generic):
        return _jsonable(plain(value))
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return _container(value)


def _container(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _object(value)
    if isinstance(value, Column):
        return _container(value.values)
    table = as_table(value)
    if table is not None:
        return _object(table)
    if isinstance(value, np.ndarray):
        return _jsonable((value.astype(str) if value.dtype.kind in "mM" else shortest(value)).tolist())
    if isinstance(value, Set):
        return [_jsonable(item) for item in plain(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [_jsonable(item) for item in value]
    kind = type(value).__name__
    raise TypeError(f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind} has no form in JSON")


def _object(value: Mapping[Any, Any]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, item in value.items():
        name = key if isinstance(key, str) else str(plain(key))
        if name in members:
            raise TypeError(f"two keys read {name!r}")
        members[name] = _jsonable(item)
    return members


def save(parts: Mapping[str, Any], path: str | os.PathLike[str]) -> list[Path]:
    """Write parts of outcomes by name into one file, whole or not at all, in the format of its suffix.

    The formats are those of `himach.Result.save`. Return what was written: beside ``X.csv``, units in ``X.units.json``.
    Raise UsageError if the format is unknown, has no form for a part or needs what is not installed, HimachError if a
    file cannot be written.
    """
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in SAVED:
        raise UsageError(f"{path}: an outcome is saved as {', '.join(SAVED)}, not as {kind or 'a file without suffix'}")
    if kind.removeprefix(".") in TABLES:
        return _save_table(parts, path, kind.removeprefix("."))
    units = {name: part.units for name, part in parts.items() if isinstance(part, Table) and part.units}
    try:
        encoded = to_json({"outcome": parts, "units": units}) if kind == ".json" else npz(_arrays(parts))
    except TypeError as error:
        raise UsageError(f"{path}: {error}") from None
    write_bytes(path, encoded)
    return [path]


def _save_table(parts: Mapping[str, Any], path: Path, kind: str) -> list[Path]:
    table_formats(kind)
    ((name, table),) = parts.items() if len(parts) == 1 else [("", None)]
    if not isinstance(table, Table):
        raise UsageError(
            f"{path}: a .{kind} holds one table, and the outcome is {', '.join(parts) or 'nothing'}; save .npz or "
            ".json, or all of it into a directory by write()"
        )
    try:
        data = content(table) if kind == "csv" else table_content(table, name, kind)
    except TypeError as error:
        raise UsageError(f"{path}: {error}; save .csv") from None
    companion = path.with_name(f"{path.stem}.units.json")
    units = kind == "csv" and bool(table.units)
    if units:
        write_bytes(companion, to_json(table.units))
    elif kind == "csv":
        companion.unlink(missing_ok=True)  # of an earlier table
    write_bytes(path, data)
    return [path, companion] if units else [path]


def npz(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return the bytes of an .npz."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)  # type: ignore[arg-type, unused-ignore]
    return buffer.getvalue()


def _arrays(parts: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of an .npz, with units by name as JSON."""
    cells: dict[str, Any] = {}
    units: dict[str, str] = {}
    for name, part in parts.items():
        if isinstance(part, Table):
            cells |= {f"{name}/{column}": part[column][:] for column in part}
            units |= {f"{name}/{column}": unit for column, unit in part.units.items()}
        else:
            cells[name] = part
    arrays = {name: _as_array(value, name) for name, value in cells.items()}
    if units:
        if UNITS in arrays:
            raise TypeError(
                f"an .npz has the units under the name {UNITS!r}, which a part of the outcome has; save .json"
            )
        arrays[UNITS] = np.array(json.dumps(units, ensure_ascii=False))
    return arrays


def _as_array(value: Cells | Any, name: str) -> npt.NDArray[Any]:
    """Convert a value to an array that reads back unchanged; raises TypeError with its name for objects."""
    value = value.text if isinstance(value, TextFile) else value
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, which .npz has no form for; save .json")
    if isinstance(value, list) and not all(type(cell) is str and not cell.endswith("\0") for cell in value):
        raise TypeError(f"{name} holds objects, which .npz has no form for; save .json")
    array = np.asarray(value)
    if array.dtype.kind not in "biufcMmUS" and not array.dtype.fields:
        raise TypeError(f"{name} ({type(value).__name__}) has no form in .npz; save .json")
    return array
