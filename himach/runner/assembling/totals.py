"""Which frames are whole, by how many atoms all nodes have of each: `totals()`, by one more Allreduce.

It says which frames may be whole. Whether their slices cover all atoms once is seen where they are put together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.parallel.communicator import Communicator

__all__ = ["AT_ONCE", "totals"]

Numbers = npt.NDArray[np.int64]
#: Adds to its second argument how many atoms a node has of each frame from the first on.
Count = Callable[[int, npt.NDArray[Any]], None]

#: Frames of which nodes tell each other at once.
AT_ONCE = 1 << 20


def totals(
    leaders: Communicator, sum_op: Any, count: Count, ends: tuple[int, int] | None, n_atoms: int
) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Yield how many atoms all nodes have of each frame, some frames at a time (collective over the nodes' leaders).

    Parameters
    ----------
    leaders
        One rank a node.
    sum_op
        The operation of MPI that adds; unused if there is one node.
    count
        What this node has.
    ends
        The first and last frame of which this node has something; None if of none.
    n_atoms
        Atoms of a frame.

    Yields
    ------
    first, atoms
        Frame number of the first, and an array that holds until the next: 0 where nobody has any.
    """
    told = [one for one in leaders.allgather(ends) if one is not None]
    if not told:
        return
    # A frame may be there on every node, whole, after lost acknowledgements.
    kind = np.uint32 if n_atoms * leaders.size <= np.iinfo(np.uint32).max else np.int64
    low, high = min(first for first, _ in told), max(last for _, last in told) + 1
    own, both = np.empty(min(AT_ONCE, high - low), kind), np.empty(min(AT_ONCE, high - low), kind)
    for first in range(low, high, AT_ONCE):
        length = min(AT_ONCE, high - first)
        some = own[:length]
        some[:] = 0
        if ends is not None and ends[0] < first + length and ends[1] >= first:
            count(first, some)
        if leaders.size > 1:
            leaders.Allreduce(some, both[:length], op=sum_op)
            some = both[:length]
        yield first, some
