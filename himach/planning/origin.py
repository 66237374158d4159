"""The origin, which all ranks share: `drain()` follows them event by event, `bounds()` is what it must lie between.

A rank computes for a while, reads a frame, and so on. The origin is a server that divides itself among those that read
at a moment: processor sharing (Kleinrock, Queueing Systems II, 1976, 4.4). Under it, all readers advance alike; so a
clock that counts what each has got so far tells who is done next, and an event costs a push and a pop.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

__all__ = ["bounds", "drain", "queued", "read_phase"]

#: Turns of a rank that are followed one by one, and ranks: of more frames, each turn stands for several, as the ratio
#: of work to service, not its grain, is what decides; of more ranks, one stands for several, with their part.
TURNS = 48
RANKS = 256


def drain(work: Sequence[Sequence[float]], nbytes: float, capacity: float, link: float) -> float:
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
    """
    now = level = last = 0.0  # `level`: bytes that a reader which has been there from the start would have got
    reading: list[tuple[float, int]] = [(nbytes, rank) for rank in range(len(work)) if work[rank]]
    computing: list[tuple[float, int]] = []
    turn = [0] * len(work)
    heapq.heapify(reading)
    while reading or computing:
        rate = min(link, capacity / len(reading)) if reading else 0.0
        done = now + (reading[0][0] - level) / rate if reading else np.inf
        if reading and (not computing or done <= computing[0][0]):
            level, now = reading[0][0], done
            _, rank = heapq.heappop(reading)
            heapq.heappush(computing, (now + work[rank][turn[rank]], rank))
        else:
            level += (computing[0][0] - now) * rate
            now, rank = heapq.heappop(computing)
            turn[rank] += 1
            if turn[rank] < len(work[rank]):
                heapq.heappush(reading, (level + nbytes, rank))
            last = now
    return last


def bounds(
    ranks: int, frames: float, seconds: float, nbytes: float, capacity: float, link: float
) -> tuple[float, float]:
    """Return the least and the most that `drain` can be, for ranks of `frames` frames of `seconds` of work each.

    The asymptotic bounds of a closed network (Denning and Buzen, 1978): nobody waits, or everybody for everybody.
    """
    alone = frames * (seconds + nbytes / min(link, capacity))
    return max(alone, ranks * frames * nbytes / capacity + seconds), frames * (
        seconds + ranks * nbytes / capacity
    ) + alone


def queued(
    ranks: int, frames: float, seconds: float, alone: float, nbytes: float, capacity: float, waits: float
) -> float:
    """Return when the slowest rank is done where it waits, at each frame, for a part of what each other rank reads.

    So does an origin that serves ranks one after another, and the same one last: ``waits`` is 1 where that is always
    so. At least the origin's bytes take their time. `alone` are a frame's seconds of reading of a rank alone.
    """
    served = nbytes / capacity
    return max(frames * (seconds + alone + waits * (ranks - 1) * served), ranks * frames * served + seconds)


def read_phase(
    ranks: int, frames: float, seconds: float, nbytes: float, capacity: float, link: float, rng: np.random.Generator
) -> float:
    """Return the seconds in which ranks read and map `frames` frames each, `seconds` of work a frame."""
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
    return drain(work, nbytes * grain, capacity * followed / ranks, link)
