"""Checks of what the kernels are given: arrays of the right shape, type and layout, or an error that names them."""

from typing import Any

import numpy as np
import numpy.typing as npt

from himach.errors import UsageError

MAX_ATOMS = 2**31 - 16
Vectors = npt.NDArray[np.float32]


def as_positions(name: str, positions: npt.ArrayLike, ndim: int = 2, rows: int | None = None) -> Vectors:
    """Return `positions` as contiguous float32 (n, 3), or (m, n, 3) with n > 0 or n == `rows`, without a copy if so."""
    array = np.ascontiguousarray(_real(name, positions), dtype=np.float32)
    shape = array.shape
    if array.ndim != ndim or shape[-1] != 3 or (ndim == 3 and shape[1] != (rows or max(shape[1], 1))):
        needed = "(n, 3)" if ndim == 2 else f"(n, {rows}, 3)" if rows else "(m, n, 3) with n > 0"
        raise UsageError(f"{name} must be an array of shape {needed}, not {np.shape(positions)}")
    if array.size > 3 * MAX_ATOMS:
        raise UsageError(f"{name} has {array.size // 3} positions; more than {MAX_ATOMS} are too many")
    return array


def as_output(out: Vectors | None, kept: Vectors) -> Vectors:
    """Return `out`, where as many positions as are `kept` can be written, or a new array for them if it is None.

    It may be `kept`, but no part of it: what is written there would be read again.
    """
    n = len(kept)
    if out is None:
        return np.empty((n, 3), np.float32)
    good = isinstance(out, np.ndarray) and out.shape == (n, 3) and out.dtype == np.float32
    if not (good and out.flags.c_contiguous and out.flags.writeable):
        raise UsageError(f"out must be a contiguous array of float32 that can be written, of shape ({n}, 3)")
    if np.may_share_memory(out, kept) and out.ctypes.data != kept.ctypes.data:
        raise UsageError("out lies in part where positions do; give positions themselves, or another array")
    return out


def as_box(box: npt.ArrayLike | None) -> Vectors | None:
    """Return `box` as float32 (6,), or None."""
    if box is None:
        return None
    array = np.ascontiguousarray(_real("box", box), dtype=np.float32)
    if array.shape != (6,):
        raise UsageError(f"box must be three lengths and three angles, not of shape {array.shape}")
    return array


def as_weights(weights: npt.ArrayLike | None, n: int) -> npt.NDArray[np.float64] | None:
    """Return `weights` as contiguous float64 (n,), or None."""
    return None if weights is None else as_doubles("weights", weights, (n,))


def as_doubles(name: str, numbers: npt.ArrayLike, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Return `numbers` as contiguous float64 of a shape."""
    array = np.ascontiguousarray(_real(name, numbers), dtype=np.float64)
    if array.shape != shape:
        raise UsageError(f"{name} must have the shape {shape}, not {array.shape}")
    return array


def as_radii(radii: npt.ArrayLike, n: int) -> npt.NDArray[np.float64]:
    """Return `radii` as contiguous float64 (n,), finite and not negative."""
    array = as_doubles("radii", radii, (n,))
    if n and not 0 <= array.min() <= array.max() < np.inf:
        raise UsageError(f"radii must be finite and not negative, not {array.min():g} to {array.max():g}")
    return array


def as_groups(
    groups: npt.ArrayLike | None, n: int, name: str = "groups", of: str = "position"
) -> tuple[npt.NDArray[np.int64] | None, int]:
    """Return `groups` as contiguous int64 (n,), or None for one group, and the number of groups."""
    if groups is None:
        return None, 1
    array = _integers(name, groups)
    if array.shape != (n,):
        raise UsageError(f"{name} must have the shape ({n},), one for each {of}, not {array.shape}")
    if n and array.min() < 0:
        raise UsageError(f"{name} are numbers from 0, not {array.min()}")
    return array, int(array.max()) + 1 if n else 0


def as_places(name: str, places: npt.ArrayLike, n: int, width: int | None = None) -> npt.NDArray[np.int64]:
    """Return `places` less than `n` as contiguous int64 (k,), or (m, width)."""
    array = _integers(name, places)
    if array.ndim != (1 if width is None else 2) or width not in (None, array.shape[-1]):
        needed = "(k,)" if width is None else f"(m, {width})"
        raise UsageError(f"{name} must be an array of shape {needed}, not {array.shape}")
    if array.size and not 0 <= array.min() <= array.max() < n:
        raise UsageError(f"{name} are places from 0 to {n - 1}, not {array.min()} to {array.max()}")
    return array


def as_flags(name: str, flags: npt.ArrayLike, n: int) -> npt.NDArray[np.uint8]:
    """Return what is true or false as contiguous uint8 (n,)."""
    array = np.ascontiguousarray(flags)
    if array.dtype.kind != "b" or array.shape != (n,):
        raise UsageError(f"{name} must be bool of the shape ({n},), not {array.dtype} {array.shape}")
    return array.view(np.uint8)


def as_direction(name: str, vector: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return a direction as contiguous float64 (3,), its largest component 1 or -1."""
    array = np.ascontiguousarray(_real(name, vector), dtype=np.float64)
    if array.shape != (3,) or not np.isfinite(array).all() or not array.any():
        raise UsageError(f"{name} must be three finite numbers, not all 0, not {np.asarray(vector).tolist()}")
    return np.asarray(array / np.abs(array).max())  # its squares are neither 0 nor infinite


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
