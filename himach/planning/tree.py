"""Reductions over a tree of ranks: their closed forms; `rounds()`, event by event; `zazen_seconds()`, Zazen's.

The forms are those of Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl. 19, 49 (2005), table 2: of
MPICH, which takes recursive doubling for short messages and for operations that are a user's own, else a reduce-scatter
and an allgather (Rabenseifner's).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from himach.zazen.rounds import CHUNK_WORDS

__all__ = ["doubling_seconds", "rounds", "scattered_seconds", "steps", "zazen_bytes", "zazen_seconds"]

Floats = npt.NDArray[np.float64]

#: Bytes of a chunk's bitmap, and of messages beside bitmaps: sums, claims.
CHUNK = CHUNK_WORDS * 8
SHORT = 64


def steps(nodes: int) -> int:
    """Return how many times ranks pair up until all know of all."""
    return int(nodes - 1).bit_length()


def doubling_seconds(nodes: int, nbytes: float, latency: float, network: float, combine: float) -> float:
    """Return the seconds of an Allreduce by recursive doubling: all bytes go and are combined in every step."""
    return steps(nodes) * (latency + nbytes / network + nbytes / combine)


def scattered_seconds(nodes: int, nbytes: float, latency: float, network: float, combine: float) -> float:
    """Return the seconds of an Allreduce by Rabenseifner's algorithm: halves, quarters, ... go, and come back."""
    part = (nodes - 1) / nodes
    return 2 * steps(nodes) * latency + part * (2 * nbytes / network + nbytes / combine)


def rounds(arrivals: Floats, seconds: float) -> Floats:
    """Return when each node has the sum of all, each having come to the tree at its own time; float64 (nodes,).

    Recursive doubling, step by step: in step k a node meets the one whose number differs in bit k; both go on when both
    have come and `seconds` have passed. Where the number of nodes is no power of two, those beyond it hand over to
    others first, and are told at the end, as MPICH does.
    """
    times = np.array(arrivals, dtype=float)
    nodes = len(times)
    whole = 1 << (nodes.bit_length() - 1)
    beyond = nodes - whole
    if beyond:
        times[:beyond] = np.maximum(times[:beyond], times[whole:]) + seconds
    core = times[:whole]
    step = 1
    while step < whole:
        pairs = core.reshape(-1, 2, step)
        pairs[:] = pairs.max(axis=1, keepdims=True) + seconds
        step *= 2
    if beyond:
        times[whole:] = times[:beyond] + seconds
    return times


def zazen_bytes(frames: int, aliens: bool) -> tuple[float, float]:
    """Return the bytes of the bitmaps that are reduced by the library's own operation, and by one of ours.

    A bit a frame for natives, two more where there are open aliens (docs/zazen.md).
    """
    return frames / 8, frames / 4 if aliens else 0.0


def zazen_seconds(
    nodes: int, frames: int, latency: float, network: float, combine: float, aliens: bool = True, chunk: float = CHUNK
) -> float:
    """Return the seconds of all of Zazen's rounds where bitmaps of all frames are exchanged, chunk by chunk.

    A chunk costs an Allreduce of natives, one of counts where there are aliens, and two sums of few bytes.
    """
    if nodes == 1 or not frames:
        return 0.0
    native, counts = zazen_bytes(frames, aliens)
    chunks = max(1, -(-native // chunk))
    each = scattered_seconds(nodes, native / chunks, latency, network, combine)
    if counts:
        each += doubling_seconds(nodes, counts / chunks, latency, network, combine)
    sums = (2 if aliens else 1) * doubling_seconds(nodes, SHORT, latency, network, combine)
    return float(chunks * (each + sums) + 2 * steps(nodes) * (latency + SHORT * nodes / network))
