"""Checks of what the kernels are given: arrays of the right shape, type and layout, or an error that names them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from himach.errors import UsageError

__all__ = ["as_box", "as_positions", "as_weights"]

MOST = 2**31 - 16


def as_positions(name: str, positions: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Return `positions` as contiguous float32 (n, 3), without a copy if they are."""
    array = np.ascontiguousarray(positions, dtype=np.float32)
    if array.ndim != 2 or array.shape[1] != 3:
        raise UsageError(f"{name} must be an array of shape (n, 3), not {np.shape(positions)}")
    if len(array) > MOST:
        raise UsageError(f"{name} has {len(array)} positions; more than {MOST} are too many")
    return array


def as_box(box: npt.ArrayLike | None) -> npt.NDArray[np.float32] | None:
    """Return `box` as float32 (6,), or None."""
    if box is None:
        return None
    array = np.ascontiguousarray(box, dtype=np.float32)
    if array.shape != (6,):
        raise UsageError(f"box must be three lengths and three angles, not of shape {array.shape}")
    return array


def as_weights(weights: npt.ArrayLike | None, n: int) -> npt.NDArray[np.float64] | None:
    """Return `weights` as contiguous float64 (n,), or None."""
    if weights is None:
        return None
    array = np.ascontiguousarray(weights, dtype=np.float64)
    if array.shape != (n,):
        raise UsageError(f"weights must have the shape ({n},), one for each position, not {array.shape}")
    return array
