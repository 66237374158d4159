"""Sums over blocks of frames, `add_blocks()` and others, and curves with bands from them, `of_blocks()`."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.errors import UsageError
from himach.uncertainty.block_mean import geyer, n_blocks
from himach.uncertainty.estimate import Estimate, FloatArray, as_level, as_numbers, not_negative, student, unconverged

Ints = npt.NDArray[np.int64]
#: Blocks in which frames are summed before their correlation is known.
FINE_BLOCKS = 64
#: Columns of a block: its frames have this `NUMBER` without the last `LEVEL` bits; `FRAMES` is how many there are.
LEVEL, NUMBER, FRAMES = 0, 1, 2
HEAD = 3


def fine_block(steps: npt.ArrayLike, n_steps: int) -> npt.NDArray[np.int64]:
    """Return the fine block of each step of a selection.

    There are 64 of them, of equal length to within a frame, or one a frame where there are fewer frames.

    Parameters
    ----------
    steps
        Positions of frames in the selection, integers from 0, any shape.
    n_steps
        Number of frames in the selection.

    Returns
    -------
    int64 of the shape of `steps`, from 0 to min(64, n_steps) - 1; they rise with the steps.

    Examples
    --------
    >>> fine_block([0, 50, 99], 100)
    array([ 0, 32, 63])
    """
    array = np.asarray(steps)
    if array.size and array.dtype.kind not in "iu":
        raise UsageError(f"steps must be integers, not {array.dtype}")
    array = array.astype(np.int64)
    if array.size and not 0 <= array.min() <= array.max() < n_steps:
        raise UsageError(f"steps of a selection of {n_steps} frames are 0 to {n_steps - 1}, not {_range(array)}")
    return np.asarray(array * min(FINE_BLOCKS, n_steps) // max(1, n_steps), dtype=np.int64)


def of_blocks(
    sums: npt.ArrayLike,
    weights: npt.ArrayLike | None = None,
    level: float = 0.95,
    *,
    of: Callable[[FloatArray], npt.ArrayLike] | None = None,
) -> Estimate[FloatArray]:
    """Return a curve, the ratio of sums over frames to their weights, with a band.

    How many independent blocks the fine ones are worth is told by what all bins have in common: the autocovariance of
    their deviations from the curve, each bin's in units of its variance. Fine blocks are then joined to 4 to 20 coarse
    ones, of eight independent ones each where there are as many, and the spread of the coarse blocks' curves gives the
    band by Student's t: bin by bin, not for all bins at once. Where weights differ, a block counts by its weight. Of
    bins with few events (less than 20 in all) the band is too narrow, and has no width where there was none: `count`
    gives limits for them.

    Parameters
    ----------
    sums
        Sums of each of at most 64 fine blocks, in time order: (n_fine,) or (n_fine, ...), float64 or int64.
    weights
        What it is divided by: (n_fine,), or of the shape of `sums`; None for fine blocks that count alike. A block of
        no weight has nothing in its sum either.
    level
        Probability with which the band shall contain the true value, in each bin.
    of
        What is wanted of the curve, if not the curve: takes a float64 array of its shape and returns a number or an
        array. Its band is that of its values without each coarse block in turn (jackknife).

    Returns
    -------
    Estimate
        Its `value`, `low` and `high` are arrays of the shape of a fine block's sums, or of what `of` returns. `n_eff`
        is in independent fine blocks, `inefficiency` in fine blocks. Limits are nan in bins where a coarse block has no
        weight, and everywhere, not converged, below 8 independent fine blocks.

    References
    ----------
    Jackknife over blocks: Kunsch, Ann. Statist. 17, 1217 (1989), 10.1214/aos/1176347265. Number of independent blocks:
    see `inefficiency`.

    Examples
    --------
    >>> print(of_blocks([[1.0, 4.0], [3.0, 4.0]] * 10))
    curve of 2 values (95 %, 4 blocks, N_eff 20)
    """
    level = as_level(level)
    numerators = as_numbers("sums", sums)
    denominators = _weights(weights, numerators)
    n_fine, shape = len(numerators), numerators.shape[1:]
    flat, weight = numerators.reshape(n_fine, -1), denominators.reshape(n_fine, -1)
    g = _pooled_inefficiency(flat, weight)
    n_eff = n_fine / g
    blocks = n_blocks(n_eff)

    def evaluate(flat_curve: FloatArray) -> FloatArray:
        curve = flat_curve.reshape(shape)
        return curve if of is None else np.asarray(of(curve), dtype=np.float64)

    total, total_weight = flat.sum(axis=0), weight.sum(axis=0)
    value = evaluate(_ratio(total, total_weight))
    error = unconverged(value)
    if blocks:
        bounds = np.arange(blocks) * n_fine // blocks
        merged, merged_weight = np.add.reduceat(flat, bounds), np.add.reduceat(weight, bounds)
        mask = np.where((merged_weight > 0).all(axis=0), 1.0, np.nan)
        without = np.array(
            [
                evaluate(mask * _ratio(total - block, total_weight - block_weight))
                for block, block_weight in zip(merged, merged_weight, strict=True)
            ]
        )
        error = np.sqrt((blocks - 1) / blocks * ((without - without.mean(axis=0)) ** 2).sum(axis=0))
    half = student(level, blocks - 1) * error if blocks else error
    method = "Student's t over blocks of frames" if blocks else "none: fewer than 8 independent blocks of frames"
    return Estimate.around(
        value, half, level=level, error=error, n_eff=n_eff, inefficiency=g, blocks=blocks, method=method,
        converged=blocks > 0,
    )  # fmt: skip


def _range(array: npt.NDArray[Any]) -> str:
    return f"{array.min()} to {array.max()}" if array.size > 1 else f"{array.min()}"


def _weights(weights: npt.ArrayLike | None, sums: FloatArray) -> FloatArray:
    """Check weights; return them in a shape that broadcasts to that of the sums."""
    if sums.ndim == 0 or len(sums) > FINE_BLOCKS:
        raise UsageError(f"sums must have the shape (n, ...), with at most {FINE_BLOCKS} fine blocks, not {sums.shape}")
    n_fine = len(sums)
    array = np.ones(n_fine) if weights is None else as_numbers("weights", weights)
    if array.shape not in {(n_fine,), sums.shape}:
        raise UsageError(f"weights must have the shape ({n_fine},) or that of sums, {sums.shape}, not {array.shape}")
    not_negative("weights", array)
    array = array.reshape(n_fine, *(array.shape[1:] or (1,) * (sums.ndim - 1)))
    if (sums[np.broadcast_to(array == 0, sums.shape)] != 0).any():
        raise UsageError("a fine block without weight has a sum that is not 0; what is divided by 0 has no value")
    return array


def _ratio(above: FloatArray, below: FloatArray) -> FloatArray:
    """Return the ratio; nan without weight."""
    out = np.full(above.shape, math.nan)
    np.divide(above, below, out=out, where=np.broadcast_to(below, above.shape) > 0)
    return out


def _pooled_inefficiency(sums: FloatArray, weights: FloatArray) -> float:
    """Return the inefficiency of fine blocks from the autocovariance of all bins, each in units of its variance."""
    curve = np.nan_to_num(_ratio(sums.sum(axis=0), weights.sum(axis=0)))
    deviations = sums - curve * weights
    largest = np.abs(deviations).max(axis=0)
    tiny = 1e-13 * np.abs(sums).max(axis=0)  # rounding of a bin that does not vary
    varying = largest > tiny
    if not varying.any():
        return 1.0
    deviations = deviations[:, varying] / largest[varying]
    deviations /= np.sqrt((deviations**2).mean(axis=0))
    n_fine = len(sums)
    covariance = [np.einsum("ij,ij->", deviations[: n_fine - lag], deviations[lag:]) for lag in range(n_fine)]
    return float(geyer(np.array(covariance)))


def block_row(number: int, sums: npt.ArrayLike, *, frames: int = 1, level: int = 0) -> Ints:
    """Return what is to be summed of one frame, in the form that `add_blocks` takes; or of some frames of a block.

    Parameters
    ----------
    number
        The frame's number, at least 0; of several that of any.
    sums
        Integers (n,). They are integers so that sums do not depend on who added up which frames: of other quantities
        give multiples of a small unit.
    frames
        Of how many frames these are the sums.
    level
        The frames have the same number, but for so many of its last bits (`block_level`).

    Returns
    -------
    int64 (n + 3,): a block.

    Examples
    --------
    In map(), ``yield "counts", block_row(frame.number, counts)``; both combine() and reduce() return
    ``add_blocks(series.values)``, and finish() takes ``frames, sums = split_blocks(results["counts"])``.

    >>> split_blocks(add_blocks([block_row(number, [number, 1]) for number in range(3)]))
    (array([1, 1, 1]), array([[0, 1],
           [1, 1],
           [2, 1]]))
    """
    array = np.asarray(sums)
    if array.ndim != 1 or array.dtype.kind not in "iub":
        raise UsageError(f"sums must be integers of shape (n,), not {array.dtype} {array.shape}")
    if number < 0:
        raise UsageError(f"number must be that of a frame, not {number}")
    row = np.empty(HEAD + len(array), np.int64)
    row[:HEAD] = level, number >> level, frames
    row[HEAD:] = array
    return row


def block_level(frames: Sequence[int]) -> int:
    """Return of how many frames, a power of two, the blocks are that `add_blocks` makes of these: its logarithm.

    Parameters
    ----------
    frames
        Numbers of the selected frames.

    Returns
    -------
    The least number of last bits without which the numbers of frames are 64 different ones, or fewer.

    Examples
    --------
    >>> block_level(range(64)), block_level(range(65)), block_level(range(0, 640, 10))
    (0, 1, 0)
    """
    numbers, level = np.sort(np.asarray(frames, dtype=np.int64)), 0
    while len(_firsts(numbers >> level)) > FINE_BLOCKS:
        level += 1
    return level


def add_blocks(values: Sequence[Any] | npt.NDArray[Any], level: int = 0) -> Ints:
    """Return the sums of at most 64 blocks of frames: the same for the same frames, however they were added up before.

    Blocks begin at multiples of their length, a power of two, which is the least that gives 64 blocks or fewer. It
    depends on the frames that there are and on no others: a combine() need not know what is selected, and what is kept
    of a trajectory serves when it has grown.

    Parameters
    ----------
    values
        What `block_row` or this function returned, at least one, of the same n.
    level
        Where the frames that there will be are known: their `block_level`, so that blocks are joined at once.

    Returns
    -------
    int64 (n_blocks, n + 3), in the order of frames.
    """
    rows = _rows(values)
    level = max(level, int(rows[:, LEVEL].max()))
    numbers = rows[:, NUMBER] >> (level - rows[:, LEVEL])
    if (np.diff(numbers) < 0).any():
        order = np.argsort(numbers, kind="stable")
        rows, numbers = rows[order], numbers[order]
    first = _firsts(numbers)
    while len(first) > FINE_BLOCKS:
        level += 1
        numbers >>= 1
        first = _firsts(numbers)
    blocks = np.add.reduceat(rows, first, axis=0)
    blocks[:, LEVEL], blocks[:, NUMBER] = level, numbers[first]
    return blocks


def split_blocks(blocks: Ints) -> tuple[Ints, Ints]:
    """Return how many frames each block has, (n_blocks,), and their sums, (n_blocks, n)."""
    return blocks[:, FRAMES], blocks[:, HEAD:]


def _rows(values: Sequence[Any] | npt.NDArray[Any]) -> Ints:
    """Return values as blocks (m, n + 3), one per row."""
    if not len(values):
        raise UsageError("there are no blocks to add up")
    arrays = [np.asarray(array) for array in ([values] if isinstance(values, np.ndarray) else values)]
    if {(array.dtype, array.shape[-1:]) for array in arrays} != {(np.dtype(np.int64), arrays[0].shape[-1:])}:
        raise UsageError("add_blocks() takes what block_row() returns, of one length")
    width = arrays[0].shape[-1]
    if width < HEAD:
        raise UsageError(f"add_blocks() takes what block_row() returns; rows of {width} are none")
    return np.concatenate([array.reshape(-1, width) for array in arrays])


def _firsts(numbers: Ints) -> npt.NDArray[np.intp]:
    """Return the index at which each of the ascending numbers comes first."""
    return np.flatnonzero(np.diff(numbers, prepend=-1))
