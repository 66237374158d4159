"""Members of an ensemble on ranks: `large_members()`, which all ranks run, and the load of the `busiest()` rank."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

#: A member is large above 1 / LARGE of a rank's even share; smaller ones even each other out.
LARGE = 4
#: Bytes of a trajectory above which it is worth synchronising all ranks.
WORTH = 32 << 20
#: Maximum members that are counted one by one.
COUNTED = 100_000


def large_members(sizes: Sequence[float], ranks: int, worth: float = WORTH) -> list[int]:
    """Return the positions of the members that all ranks run together, given their bytes."""
    least = max(worth, sum(sizes) / (LARGE * ranks))
    return [index for index, size in enumerate(sizes) if size > least and ranks > 1]


def busiest(frames: Sequence[int], frame_bytes: float, ranks: int, total: int) -> float:
    """Return the frames of the busiest rank, for members of `frames` frames each, repeated or cut to `total` frames.

    Ranks take members from a queue, the largest first: list scheduling of Graham, SIAM J. Appl. Math. 17, 416 (1969).
    """
    times, remaining = divmod(total, sum(frames))
    if times * len(frames) > COUNTED:
        return total / ranks + (1 - 1 / ranks) * min(max(frames), total / ranks / LARGE)  # the bound
    counts = list(frames) * times
    for count in frames:
        if remaining > 0:
            counts.append(min(count, remaining))
            remaining -= count
    large = large_members([count * frame_bytes for count in counts], ranks)
    alone = set(range(len(counts))).difference(large)
    single = sorted((counts[index] for index in alone), reverse=True)
    loads = [0] * min(ranks, len(single))
    for count in single:
        heapq.heapreplace(loads, loads[0] + count)
    return sum(counts[index] for index in large) / ranks + max(loads, default=0)
