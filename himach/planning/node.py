"""A node alone: what it takes where nothing is shared between nodes. All are closed forms.

Seconds, bytes and frames throughout.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from himach.zazen.share import Tasks

__all__ = ["map_seconds", "most_of_normals", "rank_rate", "share", "stored_bytes", "tail_seconds"]

Floats = npt.NDArray[np.float64]

#: Bytes of a frame in a store beside its positions: head, box, checksums (docs/formats.md).
FRAME_HEAD = 128


def share(frames: int, nodes: int) -> int:
    """Return the frames of the node that has most: water fills equal vessels to one level (docs/zazen.md)."""
    return -(-frames // nodes)


def rank_rate(seconds: float, cpu_part: float, ranks: int, cores: float) -> float:
    """Return the frames a second of a node whose ranks each take `seconds` a frame, of which a part is processor time.

    Its cores bound it: ranks wait for each other's processor once they need more than there is (the utilisation law,
    Denning and Buzen, ACM Computing Surveys 10, 225 (1978)).
    """
    if seconds <= 0:
        return float("inf")
    bound = cores / (seconds * cpu_part) if cpu_part > 0 else float("inf")
    return min(ranks / seconds, bound)


def tail_seconds(frames: int, ranks: int, seconds: float) -> float:
    """Return how much later than the mean the last rank of a node ends, at the median: half the bound.

    The bound is (1 - 1/ranks) of the last task (Graham, SIAM J. Appl. Math. 17, 416 (1969)); tasks are those of
    `himach.zazen.share.Tasks`.
    """
    if ranks == 1 or not frames:
        return 0.0
    tasks = Tasks(frames, ranks)
    first, end = tasks.bounds(len(tasks) - 1)
    return 0.5 * (1 - 1 / ranks) * (end - first) * seconds


def map_seconds(frames: int, ranks: int, seconds: float, cpu_part: float, cores: float) -> float:
    """Return the time of a node's map phase, whose frames take a rank `seconds` each."""
    return frames / rank_rate(seconds, cpu_part, ranks, cores) + tail_seconds(frames, ranks, seconds)


def most_of_normals(count: int, uniform: Floats) -> Floats:
    """Return draws of the largest of `count` standard normal deviates, one for each uniform deviate in (0, 1).

    The distribution of the largest is the count-th power of that of one (David and Nagaraja, Order Statistics, 2003,
    2.1), so that no deviate has to be drawn but the uniform one.
    """
    from statistics import NormalDist

    inverse = NormalDist().inv_cdf
    # 1 - u^(1/n) without loss of digits where n is large: the upper tail by its own probability.
    tails = -np.expm1(np.log(uniform) / count)
    return np.array([-inverse(min(max(tail, 1e-300), 1 - 1e-16)) for tail in tails.tolist()])


def stored_bytes(atoms: int, origin_bytes: float | None) -> float:
    """Return the bytes of a frame in a store: what it has in its origin, whose integers are packed alike.

    Where that is not known, they are those of its positions in single precision.
    """
    return origin_bytes if origin_bytes else 12.0 * atoms + FRAME_HEAD
