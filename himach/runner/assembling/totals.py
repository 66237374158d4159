"""Which frames are whole, by how many atoms all nodes have of each: `totals()`, by one more Allreduce.

It says which frames may be whole. Whether their slices cover all atoms once is seen where they are put together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.io.slices.held import Held
from himach.parallel.communicator import Communicator

__all__ = ["AT_ONCE", "pick", "totals"]

Numbers = npt.NDArray[np.int64]

#: Frames of which nodes tell each other at once; where their numbers are in no pattern.
AT_ONCE = 1 << 20
FEW_AT_ONCE = 1 << 16
#: So many numbers for each that occurs are counted at most.
GAPS = 4


def pick(frames: range | Numbers, at: Numbers) -> Numbers:
    """Return some of the frames, by where they are."""
    return frames.start + frames.step * at if isinstance(frames, range) else frames[at]


def totals(
    leaders: Communicator, sum_op: Any, held: Held, n_atoms: int, at_once: int = AT_ONCE
) -> Iterator[tuple[range | Numbers, npt.NDArray[Any]]]:
    """Yield how many atoms all nodes have of frames, some frames at a time (collective over the nodes' leaders).

    Numbers that do not occur cost nothing, however far those that do are apart.

    Parameters
    ----------
    leaders
        One rank a node.
    sum_op
        The operation of MPI that adds; unused if there is one node.
    held
        What this node has.
    n_atoms
        Atoms of a frame.
    at_once
        Frames at a time, roughly.

    Yields
    ------
    frames, atoms
        Frame numbers, ascending from one to the next, and an array that holds until the next: 0 where nobody has any.
    """
    # A frame may be there on every node, whole, after lost acknowledgements.
    kind = np.uint32 if n_atoms * leaders.size <= np.iinfo(np.uint32).max else np.int64
    own, both = np.empty(0, kind), np.empty(0, kind)
    end = 0
    while True:
        told = [one for one in leaders.allgather(held.until(end, at_once)) if one is not None]
        if not told:
            return
        first, end = min(one[0] for one in told), min(one[1] for one in told)
        frames: range | Numbers = range(first, end)
        if end - first > GAPS * at_once:
            frames, end = _sparse(leaders, held, first, end, at_once)
        if len(own) < len(frames):
            own, both = np.empty(len(frames), kind), np.empty(len(frames), kind)
        some = own[: len(frames)]
        if isinstance(frames, range):
            some[:] = 0
            held.count(frames, some)
        else:
            some[:] = held.count_of(frames)
        if leaders.size > 1:
            leaders.Allreduce(some, both[: len(frames)], op=sum_op)
            some = both[: len(frames)]
        yield frames, some


def _sparse(leaders: Communicator, held: Held, first: int, end: int, at_once: int) -> tuple[range | Numbers, int]:
    """Return the frames from `first` on of which any node has slices, and the end of these (collective).

    Often they are some number apart; else nodes tell each other all numbers, of fewer frames.
    """
    told = [one for one in leaders.allgather(_pattern(held.numbers(first, end))) if one is not None]
    step = math.gcd(*(step for _, step in told), *(start - first for start, _ in told))
    if step and (end - first) // step <= GAPS * at_once:
        return range(first, end, step), end
    few = max(1, at_once * FEW_AT_ONCE // AT_ONCE)
    end = min(one[1] for one in leaders.allgather(held.until(first, few)) if one is not None)
    return np.unique(np.concatenate(leaders.allgather(held.numbers(first, end)))), end


def _pattern(numbers: Numbers) -> tuple[int, int] | None:
    """Return the first number and how far they are apart, 0 for one alone; None if there is none."""
    if not len(numbers):
        return None
    gaps = np.diff(numbers)
    least = int(gaps.min()) if len(gaps) else 0
    if least and (gaps % least).any():
        least = int(np.gcd.reduce(gaps))
    return int(numbers[0]), least
