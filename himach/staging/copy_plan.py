"""Which frames are copied from which node to which: `plan()`, the same on every node, of what all of them hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["Flags", "Numbers", "Route", "places", "plan"]

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Route = tuple[int, int]  # from which node to which


def places(numbers: Numbers, nodes: int, copy: int) -> Numbers:
    """Return how many nodes behind the one of its first copy a frame's copy lies: never the same for all of a node's.

    Parameters
    ----------
    numbers
        Frame numbers.
    nodes
        How many nodes there are.
    copy
        From 1 on; less than `nodes`.
    """
    return 1 + (numbers // nodes + copy - 1) % (nodes - 1)


def plan(held: Sequence[Flags], span: range, copies: int, anew: Sequence[Flags] | None = None) -> dict[Route, Numbers]:
    """Return which frames go from which node to which, the same on every node.

    Parameters
    ----------
    held
        For each node, which frames of the span it holds natively.
    span
        Frame numbers, of step 1.
    copies
        How many nodes are to hold each frame that one of them holds.
    anew
        For each node, which frames it gets whatever their number of copies, since its own are damaged.
    """
    nodes = len(held)
    there = np.array(held)
    numbers = np.arange(span.start, span.stop)
    first = there.argmax(axis=0)
    home = np.where(there[numbers % nodes, np.arange(len(numbers))], numbers % nodes, first)
    moves: dict[Route, list[Numbers]] = {}

    def move(wanted: Flags, target: Numbers) -> None:
        for route in {(int(a), int(b)) for a, b in zip(home[wanted], target[wanted], strict=True)}:
            moves.setdefault(route, []).append(numbers[wanted & (home == route[0]) & (target == route[1])])

    for node, wanted in enumerate(anew or ()):
        move(wanted, np.full(len(numbers), node))
        there[node] |= wanted
    missing = np.where(there.any(axis=0), copies - there.sum(axis=0), 0)
    for copy in range(1, nodes):
        target = (home + places(numbers, nodes, copy)) % nodes
        wanted = (missing > 0) & ~there[target, np.arange(len(numbers))]
        move(wanted, target)
        missing = missing - wanted
    return {route: np.sort(np.concatenate(some)) for route, some in sorted(moves.items())}
