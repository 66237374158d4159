"""Who puts which frames together: `Team`, the ranks that work; `assign`, near where most of each lies, and evenly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from himach.parallel.communicator import World

#: Ranks of a node that assemble, at most: each holds some rounds in memory, and a disk has enough of a few.
MAX_WORKERS = 4


class Team:
    """The ranks that read slices and put frames together (collective)."""

    def __init__(self, world: World, *, has_store: bool) -> None:
        workers = min(MAX_WORKERS, world.node.size)
        self.part = (world.node.rank, workers) if has_store and world.node.rank < workers else None
        rows = world.comm.allgather((world.node_index, self.part is not None))
        self.ranks = [
            [rank for rank, (of, works) in enumerate(rows) if works and of == node] for node in range(len(world.nodes))
        ]

    @property
    def nodes(self) -> list[int]:
        """The nodes whose ranks work."""
        return [node for node, ranks in enumerate(self.ranks) if ranks]

    @property
    def workers(self) -> int:
        """Ranks of a node that works, where they are fewest."""
        return min((len(ranks) for ranks in self.ranks if ranks), default=1)


#: What a node says in place of its atoms if it has the whole frame already.
WHOLE_FRAME = -1


def assign(shares: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the node of each frame, int64 (frames,).

    `shares`: int64 (nodes, frames): how many atoms each node has of each; `WHOLE_FRAME` where it has the whole frame.
    """
    nodes, frames = shares.shape
    chosen = np.argmax(shares, axis=0)
    holds = (shares == WHOLE_FRAME).any(axis=0)
    chosen[holds] = np.argmax(shares[:, holds] == WHOLE_FRAME, axis=0)
    free = np.maximum(-(-frames // nodes) - np.bincount(chosen[holds], minlength=nodes), 0)
    largest = shares.max(axis=0)
    unassigned = np.argsort(-largest, kind="stable")
    unassigned = unassigned[~holds[unassigned]]
    while len(unassigned):
        # Each frame prefers the node that has most of it, of those that have room; the first are accepted.
        scores = np.where(free[:, None] > 0, shares[:, unassigned], -2) if free.any() else shares[:, unassigned]
        if not free.any():
            free = np.full(nodes, -(-len(unassigned) // nodes))
        preferred = np.argmax(scores, axis=0)
        order = np.argsort(preferred, kind="stable")
        counts = np.bincount(preferred, minlength=nodes)
        places = np.empty(len(unassigned), np.int64)
        places[order] = np.arange(len(unassigned)) - np.repeat(np.cumsum(counts) - counts, counts)
        accepted = places < free[preferred]
        chosen[unassigned[accepted]] = preferred[accepted]
        free = free - np.bincount(preferred[accepted], minlength=nodes)
        unassigned = unassigned[~accepted]
    result: npt.NDArray[np.int64] = chosen.astype(np.int64)
    return result


def divide_among_ranks(frame_nodes: npt.NDArray[np.int64], ranks: Sequence[Sequence[int]]) -> npt.NDArray[np.int32]:
    """Return the rank of each frame, given its node: the ranks of a node get neighbouring frames, evenly."""
    frame_ranks = np.empty(len(frame_nodes), np.int32)
    for node, group in enumerate(ranks):
        frames = np.flatnonzero(frame_nodes == node)
        frame_ranks[frames] = np.asarray(group, np.int32)[np.arange(len(frames)) * len(group) // max(1, len(frames))]
    return frame_ranks
