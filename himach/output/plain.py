"""`plain()`: values as plain Python, for readers and for what writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np
import numpy.typing as npt


def plain(value: Any) -> Any:
    """Return `value` with numpy's scalars and arrays turned into Python's, in containers too; sets are sorted."""
    if isinstance(value, np.generic):
        return shortest(np.asarray(value)).item()
    if isinstance(value, np.ndarray):
        return plain(shortest(value).tolist())
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, Set):
        return in_order(plain(item) for item in value)
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    return value


def shortest(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return floats of another size as float64 with the same shortest digits: 0.1 in 32 bits stays 0.1."""
    other = array.dtype.kind == "f" and array.dtype != np.float64
    return array.astype(str).astype(np.float64) if other else array


def in_order(items: Iterable[Any]) -> list[Any]:
    """Return the plain items of a set in an order that is always the same."""
    return sorted(
        items, key=lambda item: (type(item).__name__, item if isinstance(item, int | float | str) else repr(item))
    )
