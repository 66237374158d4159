"""Cells of columns: `edge_cells()`, those at the ends; `plain()` converts to Python's own values."""

from collections.abc import Iterable, Mapping, Set
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

#: A column of a table: an array (n,) of numbers, or a list of objects.
Cells: TypeAlias = npt.NDArray[Any] | list[Any]

#: Rows of a table formatted at a time.
PIECE_CELLS = 1 << 16

EXACT_INTEGERS = 2**53  # a float64 holds every integer up to it
EDGE_CELLS = 6  # cells shown at either end of a long column


def edge_cells(cells: Cells) -> Cells:
    """Return the first and last few cells of a long column."""
    first, last = cells[:EDGE_CELLS], cells[-EDGE_CELLS:]
    return np.concatenate([first, last]) if isinstance(first, np.ndarray) else [*first, *last]


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
    """Convert floats to float64 with the same shortest digits: 0.1 in 32 bits stays 0.1."""
    is_other_float = array.dtype.kind == "f" and array.dtype != np.float64
    return array.astype(str).astype(np.float64) if is_other_float else array


def in_order(items: Iterable[Any]) -> list[Any]:
    """Sort the plain items of a set in a reproducible order."""
    return sorted(
        items, key=lambda item: (type(item).__name__, item if isinstance(item, int | float | str) else repr(item))
    )
