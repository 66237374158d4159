"""Frames in blocks that a later stage compares or adds up: as many frames in each as are needed of what is selected.

map() does not know what else is selected, so that its pairs serve other selections, too. It yields the frame under
`part_number`. reduce() of the first stage yields `split`, and the next stage has each block by `join_block`. Blocks do
not depend on ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

__all__ = ["block_length", "join_block", "part_number", "split"]

#: Frames that are sent together at first.
PART = 64


def block_length(n_frames: int, least: int, most: int) -> int:
    """Return how many frames a block has: a multiple of eight, at least `least`, and enough for `most` blocks or fewer.

    Examples
    --------
    >>> block_length(10_000, 1024, 32), block_length(100_000, 1024, 32)
    (1024, 3128)
    """
    length = max(least, -(-n_frames // most))
    return -(-length // 8) * 8


def part_number(frame: Any) -> int:
    """Return the key under which map() yields a frame."""
    return int(frame.number) // PART


def split(series: Any, frames: Sequence[int], length: int) -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
    """Yield for each block the frames of a part that it contains: their ``frames``, ``times`` and ``values``.

    The key is the number of the block, and how many blocks there are.

    Parameters
    ----------
    series
        Series of a part, whose values are an array.
    frames
        The selected frames, `Analysis.frames`.
    length
        Frames of a block.
    """
    steps, count = series.steps, -(-len(frames) // length)
    blocks = (steps if frames[0] <= frames[-1] else len(frames) - 1 - steps) // length
    for block in np.unique(blocks).tolist():
        rows = blocks == block
        yield (
            (block, count),
            {"frames": series.frames[rows], "times": series.times[rows], "values": series.values[rows]},
        )


def join_block(series: Any) -> dict[str, Any]:
    """Join what `split` gave for a block, in the order of frames."""
    return {name: np.concatenate([part[name] for part in series.values]) for name in ("frames", "times", "values")}
