"""Checks of what the kernels are given: arrays of the right shape, type and layout, or an error that names them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from himach.errors import UsageError

MAX_ATOMS = 2**31 - 16


def as_positions(name: str, positions: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Return `positions` as contiguous float32 (n, 3), without a copy if they are."""
    array = np.ascontiguousarray(_real(name, positions), dtype=np.float32)
    if array.ndim != 2 or array.shape[1] != 3:
        raise UsageError(f"{name} must be an array of shape (n, 3), not {np.shape(positions)}")
    if len(array) > MAX_ATOMS:
        raise UsageError(f"{name} has {len(array)} positions; more than {MAX_ATOMS} are too many")
    return array


def as_box(box: npt.ArrayLike | None) -> npt.NDArray[np.float32] | None:
    """Return `box` as float32 (6,), or None."""
    if box is None:
        return None
    array = np.ascontiguousarray(_real("box", box), dtype=np.float32)
    if array.shape != (6,):
        raise UsageError(f"box must be three lengths and three angles, not of shape {array.shape}")
    return array


def as_weights(weights: npt.ArrayLike | None, n: int) -> npt.NDArray[np.float64] | None:
    """Return `weights` as contiguous float64 (n,), or None."""
    if weights is None:
        return None
    array = np.ascontiguousarray(_real("weights", weights), dtype=np.float64)
    if array.shape != (n,):
        raise UsageError(f"weights must have the shape ({n},), one for each position, not {array.shape}")
    return array


def as_groups(groups: npt.ArrayLike | None, n: int) -> tuple[npt.NDArray[np.int64] | None, int]:
    """Return `groups` as contiguous int64 (n,), or None for one group, and the number of groups."""
    if groups is None:
        return None, 1
    array = _integers("groups", groups)
    if array.shape != (n,):
        raise UsageError(f"groups must have the shape ({n},), one for each position, not {array.shape}")
    if n and array.min() < 0:
        raise UsageError(f"groups are numbers from 0, not {array.min()}")
    return array, int(array.max()) + 1 if n else 0


def as_bonds(bonds: npt.ArrayLike, n: int) -> npt.NDArray[np.int64]:
    """Return `bonds` as contiguous int64 (m, 2) of places less than `n`."""
    array = _integers("bonds", bonds)
    if array.ndim != 2 or array.shape[1] != 2:
        raise UsageError(f"bonds must be an array of shape (m, 2), not {array.shape}")
    if len(array) and not 0 <= array.min() <= array.max() < n:
        raise UsageError(f"bonds are between atoms 0 to {n - 1}, not {array.min()} to {array.max()}")
    return array


def _real(name: str, numbers: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return real numbers as an array of whatever type they are."""
    array = np.asarray(numbers)
    if array.size and array.dtype.kind not in "fiu":
        raise UsageError(f"{name} must be real numbers, not {array.dtype}")
    return array


def _integers(name: str, numbers: npt.ArrayLike) -> npt.NDArray[np.int64]:
    array = np.asarray(numbers)
    if array.size and array.dtype.kind not in "iu":
        raise UsageError(f"{name} must be integers, not {array.dtype}")
    return np.ascontiguousarray(array, dtype=np.int64)
