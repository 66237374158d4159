"""Sums over frames by blocks of frame numbers: `block_row()`, `add_blocks()`, `split_blocks()`, `block_level()`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.errors import UsageError
from himach.uncertainty.block_curve import FINE_BLOCKS

__all__ = ["add_blocks", "block_level", "block_row", "split_blocks"]

Ints = npt.NDArray[np.int64]
#: Columns of a block: its frames are those whose number, without so many of its last bits, is this; how many there are.
LEVEL, NUMBER, FRAMES = 0, 1, 2
HEAD = 3


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

    Raises
    ------
    UsageError
        If the sums are no integers (n,), or the number is negative.

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

    Raises
    ------
    UsageError
        If they are something else.
    """
    rows = _rows(values)
    level = max(level, int(rows[:, LEVEL].max()))
    at = rows[:, NUMBER] >> (level - rows[:, LEVEL])
    if (np.diff(at) < 0).any():
        order = np.argsort(at, kind="stable")
        rows, at = rows[order], at[order]
    first = _firsts(at)
    while len(first) > FINE_BLOCKS:
        level += 1
        at >>= 1
        first = _firsts(at)
    blocks = np.add.reduceat(rows, first, axis=0)
    blocks[:, LEVEL], blocks[:, NUMBER] = level, at[first]
    return blocks


def split_blocks(blocks: Ints) -> tuple[Ints, Ints]:
    """Return how many frames each block has, (n_blocks,), and their sums, (n_blocks, n)."""
    return blocks[:, FRAMES], blocks[:, HEAD:]


def _rows(values: Sequence[Any] | npt.NDArray[Any]) -> Ints:
    """Return blocks (m, n + 3), one to a row."""
    if not len(values):
        raise UsageError("there are no blocks to add up")
    arrays = [np.asarray(one) for one in ([values] if isinstance(values, np.ndarray) else values)]
    if {(one.dtype, one.shape[-1:]) for one in arrays} != {(np.dtype(np.int64), arrays[0].shape[-1:])}:
        raise UsageError("add_blocks() takes what block_row() returns, of one length")
    width = arrays[0].shape[-1]
    if width < HEAD:
        raise UsageError(f"add_blocks() takes what block_row() returns; rows of {width} are none")
    return np.concatenate([one.reshape(-1, width) for one in arrays])


def _firsts(at: Ints) -> npt.NDArray[np.intp]:
    """Return where each of the numbers, which rise, comes first."""
    return np.flatnonzero(np.diff(at, prepend=-1))
