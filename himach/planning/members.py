"""Members of an ensemble on ranks: `large_members()`, which all ranks run, and what the `busiest()` rank has to do."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

#: A member is large from this part of what a rank would have, if all had the same: smaller ones even each other out.
LARGE = 4
#: Bytes of a trajectory from which it is worth the ranks' meeting.
WORTH = 32 << 20
#: Members that are counted one by one.
COUNTED = 100_000


def large_members(sizes: Sequence[float], ranks: int, worth: float = WORTH) -> list[int]:
    """Return the positions of the members that all ranks run together, by their bytes."""
    least = max(worth, sum(sizes) / (LARGE * ranks))
    return [index for index, size in enumerate(sizes) if size > least and ranks > 1]


def busiest(frames: Sequence[int], frame_bytes: float, ranks: int, total: int) -> float:
    """Return the frames of the rank that has most, where members of so many `frames` each have so many in `total`.

    Ranks take members from a queue, the largest first: the list of Graham, SIAM J. Appl. Math. 17, 416 (1969). Members
    come again, or the last ones do not, until there are `total` frames.
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
