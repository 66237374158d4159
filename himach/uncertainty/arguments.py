"""Checks of what the functions are given: finite numbers of the right shape, or an error that names them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from himach.errors import UsageError
from himach.uncertainty.estimate import FloatArray


def as_level(level: float) -> float:
    """Return a level of confidence, which lies between 0 and 1."""
    if isinstance(level, bool) or not isinstance(level, int | float | np.floating) or not 0 < level < 1:
        raise UsageError(f"level must be a number between 0 and 1, such as 0.95, not {level!r}")
    return float(level)


def as_numbers(name: str, values: npt.ArrayLike) -> FloatArray:
    """Return finite real numbers as float64, of any shape but empty."""
    try:
        array = np.asarray(values)
    except ValueError:  # rows of unequal length
        raise UsageError(f"{name} must be an array of numbers, not rows of unequal length") from None
    if array.size == 0:
        raise UsageError(f"{name} is empty")
    if array.dtype.kind not in "fiub":
        raise UsageError(f"{name} must be real numbers, not {array.dtype}")
    array = array.astype(np.float64)
    bad = ~np.isfinite(array)
    if bad.any():
        place = np.unravel_index(int(np.argmax(bad)), array.shape)
        where = f" at index {', '.join(str(int(i)) for i in place)}" if place else ""
        raise UsageError(
            f"{name} has {int(bad.sum())} values that are nan or infinite, the first{where}; leave them out"
        )
    return array


def as_series(name: str, values: npt.ArrayLike) -> FloatArray:
    """Return values in time order as float64 (n,)."""
    array = as_numbers(name, values)
    if array.ndim != 1:
        raise UsageError(f"{name} must be an array of shape (n,), in time order, not {array.shape}")
    return array


def as_start(start: int, n: int) -> int:
    """Return the index of the first of n values to use."""
    if isinstance(start, bool) or not isinstance(start, int | np.integer) or not 0 <= start < n:
        raise UsageError(f"start must be an index from 0 to {n - 1}, not {start!r}")
    return int(start)


def not_negative(name: str, array: npt.NDArray[Any]) -> None:
    """Refuse negative numbers."""
    if array.min() < 0:
        raise UsageError(f"{name} cannot be negative, as {array.min():g} is")
