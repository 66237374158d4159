"""`to_json()`: values as JSON.

JSON knows no NaN: it becomes null, and infinities the strings "Infinity" and "-Infinity", which `float()` reads.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import math
from collections.abc import Mapping, Sequence, Set
from pathlib import PurePath
from typing import Any

import numpy as np

from himach.output.plain import plain, shortest
from himach.output.table import Column, as_table


def to_json(value: Any) -> bytes:
    """Return `value` as JSON in UTF-8 that ends with a line feed, the same for equal values.

    Besides JSON's own types: numpy scalars and arrays, tables, tuples, sets (sorted), paths, dates, enumerations and
    dataclasses.

    Raises
    ------
    TypeError
        If something in `value` has no form in JSON, or two keys of a dict have the same text.

    Examples
    --------
    >>> print(to_json({"x": np.float32(0.1), "missing": np.nan, "names": {"b", "a"}}).decode(), end="")
    {
      "x": 0.1,
      "missing": null,
      "names": [
        "a",
        "b"
      ]
    }
    """
    try:
        text = json.dumps(_jsonable(value), indent=2, ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise TypeError("it contains itself, or is nested too deeply") from None
    return f"{text}\n".encode(errors="backslashreplace")  # half a surrogate pair has no UTF-8, but an escape in JSON


def _jsonable(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return _jsonable(value.value)
    if isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, np.datetime64 | np.timedelta64):
        return str(value)
    if isinstance(value, np.generic):
        return _jsonable(plain(value))
    if isinstance(value, PurePath):
        return str(value)
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
    raise TypeError(f"{_article(type(value).__name__)} has no form in JSON")


def _object(value: Mapping[Any, Any]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, item in value.items():
        name = key if isinstance(key, str) else str(plain(key))
        if name in members:
            raise TypeError(f"two keys read {name!r}")
        members[name] = _jsonable(item)
    return members


def _number(value: float) -> float | str | None:
    if math.isfinite(value):
        return float(value)
    return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _article(noun: str) -> str:
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"
