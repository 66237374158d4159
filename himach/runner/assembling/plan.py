"""Which node puts which frames together: near where most of each lies, and evenly. Pure; the same on every node."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["HELD", "assign"]

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
    most = -(-frames // nodes)
    load = np.bincount(chosen[holds], minlength=nodes)
    largest = shares.max(axis=0)
    for frame in np.argsort(-largest, kind="stable"):
        if holds[frame]:
            continue
        if load[chosen[frame]] >= most:
            free = np.flatnonzero(load < most)
            candidates = free if len(free) else np.arange(nodes)
            here = shares[candidates, frame]
            chosen[frame] = candidates[np.lexsort((load[candidates], -here))[0]]
        load[chosen[frame]] += 1
    found: npt.NDArray[np.int64] = chosen.astype(np.int64)
    return found
