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
        told = world.comm.allgather((world.node_index, self.part is not None))
        self.ranks = [
            [rank for rank, (of, works) in enumerate(told) if works and of == node] for node in range(len(world.nodes))
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
HELD = -1


def assign(shares: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the node of each frame, int64 (frames,).

    `shares`: int64 (nodes, frames): how many atoms each node has of each; `HELD` where it has the whole frame.
    """
    nodes, frames = shares.shape
    chosen = np.argmax(shares, axis=0)
    holds = (shares == HELD).any(axis=0)
    chosen[holds] = np.argmax(shares[:, holds] == HELD, axis=0)
    free = np.maximum(-(-frames // nodes) - np.bincount(chosen[holds], minlength=nodes), 0)
    largest = shares.max(axis=0)
    left = np.argsort(-largest, kind="stable")
    left = left[~holds[left]]
    while len(left):
        # Each frame asks the node that has most of it, of those that have room; the first that ask are taken.
        wanted = np.where(free[:, None] > 0, shares[:, left], -2) if free.any() else shares[:, left]
        if not free.any():
            free = np.full(nodes, -(-len(left) // nodes))
        asks = np.argmax(wanted, axis=0)
        order = np.argsort(asks, kind="stable")
        counts = np.bincount(asks, minlength=nodes)
        turn = np.empty(len(left), np.int64)
        turn[order] = np.arange(len(left)) - np.repeat(np.cumsum(counts) - counts, counts)
        taken = turn < free[asks]
        chosen[left[taken]] = asks[taken]
        free = free - np.bincount(asks[taken], minlength=nodes)
        left = left[~taken]
    found: npt.NDArray[np.int64] = chosen.astype(np.int64)
    return found


def among_ranks(node_of: npt.NDArray[np.int64], ranks: Sequence[Sequence[int]]) -> npt.NDArray[np.int32]:
    """Return the rank of each frame, given its node: the ranks of a node get neighbouring frames, evenly."""
    rank_of = np.empty(len(node_of), np.int32)
    for node, some in enumerate(ranks):
        frames = np.flatnonzero(node_of == node)
        rank_of[frames] = np.asarray(some, np.int32)[np.arange(len(frames)) * len(some) // max(1, len(frames))]
    return rank_of
