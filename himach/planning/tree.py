"""Reductions over a tree of ranks: their closed forms; `zazen_seconds()`, Zazen's.

The forms are those of Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl. 19, 49 (2005), table 2: of
MPICH, which takes recursive doubling for short messages and for operations that are a user's own, else a reduce-scatter
and an allgather (Rabenseifner's).
"""

from __future__ import annotations

from himach.zazen.rounds import CHUNK_WORDS

__all__ = ["doubling_seconds", "scattered_seconds", "steps", "zazen_bytes", "zazen_seconds"]

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


def zazen_bytes(frames: int) -> tuple[float, float]:
    """Return the bytes of the bitmaps that are reduced by the library's own operation, and by one of ours.

    A bit a frame for natives, two more for open aliens (docs/zazen.md).
    """
    return frames / 8, frames / 4


def zazen_seconds(nodes: int, frames: int, latency: float, network: float, combine: float) -> float:
    """Return the seconds of all of Zazen's rounds: bitmaps of all frames are exchanged, chunk by chunk.

    A chunk costs an Allreduce of natives, one of counts of aliens, and two sums of few bytes.
    """
    if nodes == 1 or not frames:
        return 0.0
    native, counts = zazen_bytes(frames)
    chunks = max(1, -(-native // CHUNK))
    each = scattered_seconds(nodes, native / chunks, latency, network, combine)
    each += doubling_seconds(nodes, counts / chunks, latency, network, combine)
    sums = 2 * doubling_seconds(nodes, SHORT, latency, network, combine)
    return float(chunks * (each + sums) + 2 * steps(nodes) * (latency + SHORT * nodes / network))
