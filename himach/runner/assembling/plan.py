"""Which node puts which frames together: near where most of each lies, and evenly. Pure; the same on every node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["HELD", "among_ranks", "assign"]

#: What a node says in place of its atoms if it has the whole frame already.
HELD = -1


def assign(shares: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the node of each frame, int64 (frames,).

    Parameters
    ----------
    shares
        int64 (nodes, frames): how many atoms each node has of each; `HELD` where it has the whole frame.

    A node gets at most its even part, but for frames that it has. Frames of which most lies together are given first.
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
