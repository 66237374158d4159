"""The origin, which all ranks share: `drain()` follows them event by event.

A rank asks for frames ahead, and computes on each that has come. The origin is a server that divides itself among those
that read at a moment: processor sharing (Kleinrock, Queueing Systems II, 1976, 4.4). Under it, all readers advance
alike; so a clock that counts what each has got so far tells who is done next, and an event costs a push and a pop.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from himach.io.trajectory import readahead

__all__ = ["drain", "frames_ahead", "read_phase"]

#: Turns of a rank that are followed one by one, and ranks: of more frames, each turn stands for several, as the ratio
#: of work to service, not its grain, is what decides; of more ranks, one stands for several, with their part.
TURNS = 96
RANKS = 256
#: What a stretch of a file takes more, on average, where it is read without its neighbours: pages are read whole.
PAGE = 4096


def frames_ahead(nbytes: float) -> float:
    """Return how many frames of so many bytes a rank has asked for ahead of the one that it reads, on average.

    One to two batches (`himach.io.trajectory.readahead`).
    """
    return 1.5 * min(readahead.BATCH_FRAMES, max(1.0, readahead.BATCH_BYTES / max(1.0, nbytes)))


def drain(work: Sequence[Sequence[float]], nbytes: float, capacity: float, link: float, ahead: int = 0) -> float:
    """Return when the last rank is done.

    Parameters
    ----------
    work
        For each rank the seconds that it computes after each of its reads.
    nbytes
        Bytes of a read.
    capacity
        Bytes a second of the origin, for all.
    link
        Bytes a second that one rank can take alone.
    ahead
        Reads that a rank asks for beyond the one that it computes on; 0: it asks when it has nothing left to do.
    """
    now = level = last = 0.0  # `level`: bytes that a reader which has been there from the start would have got
    reading: list[tuple[float, int]] = [(nbytes, rank) for rank in range(len(work)) if work[rank]]
    computing: list[tuple[float, int]] = []
    busy = [False] * len(work)
    asked = [1] * len(work)
    got, done = [0] * len(work), [0] * len(work)

    def go_on(rank: int) -> None:
        """Let a rank compute on what it has, and ask for what it may."""
        if not busy[rank] and done[rank] < got[rank]:
            busy[rank] = True
            heapq.heappush(computing, (now + work[rank][done[rank]], rank))
        if asked[rank] == got[rank] < min(len(work[rank]), done[rank] + ahead + 1):
            asked[rank] += 1
            heapq.heappush(reading, (level + nbytes, rank))

    heapq.heapify(reading)
    while reading or computing:
        rate = min(link, capacity / len(reading)) if reading else 0.0
        read_at = now + (reading[0][0] - level) / rate if reading else np.inf
        if reading and (not computing or read_at <= computing[0][0]):
            level, now = reading[0][0], read_at
            _, rank = heapq.heappop(reading)
            got[rank] += 1
        else:
            level += (computing[0][0] - now) * rate
            now, rank = heapq.heappop(computing)
            busy[rank] = False
            done[rank] += 1
            last = now
        go_on(rank)
    return last


def read_phase(
    ranks: int,
    frames: float,
    seconds: float,
    nbytes: float,
    capacity: float,
    link: float,
    ahead: float,
    rng: np.random.Generator,
) -> float:
    """Return the seconds in which ranks read and map `frames` frames each, `seconds` of work a frame, some `ahead`."""
    if nbytes <= 0 or frames <= 0:
        return frames * seconds
    followed = min(ranks, RANKS)
    turns = max(1, min(TURNS, round(frames)))
    grain = frames / turns
    starts = rng.random(followed)  # ranks do not begin in step: a part of the first turn is behind each
    work = [[seconds * grain] * turns for _ in range(followed)]
    for one, start in zip(work, starts.tolist(), strict=True):
        one[0] *= 1 - 0.5 * start
        one[-1] += 0.5 * start * seconds * grain
    deep = max(1, round(ahead / grain)) if ahead else 0
    # What is read in a turn comes frame by frame, and work on its first begins before its last is there.
    early = (grain - 1) * min(seconds, ranks * nbytes / capacity) if deep else 0.0
    return max(0.0, drain(work, nbytes * grain, capacity * followed / ranks, link, deep) - early)
