"""Ranks that assemble frames: `Team`, the workers, and `assign`, which balances frames near most of their slices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from himach.ranks.communicator import World

#: Maximum workers of a node: each holds several rounds in memory, and a few saturate a disk.
MAX_WORKERS = 4


class Team:
    """The ranks that read slices and assemble frames (collective)."""

    def __init__(self, world: World, *, has_store: bool) -> None:
        workers = min(MAX_WORKERS, world.node.size)
        self.part = (world.node.rank, workers) if has_store and world.node.rank < workers else None
        rows = world.comm.allgather((world.node_index, self.part is not None))
        self.ranks = [
            [rank for rank, (of, works) in enumerate(rows) if works and of == node] for node in range(len(world.nodes))
        ]

    @property
    def nodes(self) -> list[int]:
        """Nodes that have workers."""
        return [node for node, ranks in enumerate(self.ranks) if ranks]

    @property
    def workers(self) -> int:
        """Smallest number of workers on a node that has any."""
        return min((len(ranks) for ranks in self.ranks if ranks), default=1)


#: Reported in place of the number of atoms by a node that has the whole frame.
WHOLE_FRAME = -1


def assign(shares: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the node of each frame, int64 (frames,).

    `shares`: int64 (nodes, frames): atoms that each node has of each frame; `WHOLE_FRAME` where it has the whole frame.
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
        # Each frame prefers the node with room that has most of its atoms; each node accepts the first ones.
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
    """Return the rank of each frame, given its node: each rank of a node gets an equal run of neighbouring frames."""
    frame_ranks = np.empty(len(frame_nodes), np.int32)
    for node, group in enumerate(ranks):
        frames = np.flatnonzero(frame_nodes == node)
        frame_ranks[frames] = np.asarray(group, np.int32)[np.arange(len(frames)) * len(group) // max(1, len(frames))]
    return frame_ranks
