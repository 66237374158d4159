"""Members of an ensemble on ranks: which ones all ranks run `together()`, and what the `busiest()` rank has to do."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

#: A member is large from this part of what a rank would have, if all had the same: smaller ones even each other out.
LARGE = 4
#: Bytes of a trajectory from which it is worth the ranks' meeting.
WORTH = 32 << 20
#: Members that are counted one by one.
COUNTED = 100_000


def together(sizes: Sequence[float], ranks: int, worth: float = WORTH) -> list[int]:
    """Return the positions of the members that all ranks run together, by their bytes."""
    least = max(worth, sum(sizes) / (LARGE * ranks))
    return [at for at, size in enumerate(sizes) if size > least and ranks > 1]


def busiest(frames: Sequence[int], frame_bytes: float, ranks: int, total: int) -> float:
    """Return the frames of the rank that has most, where members of so many `frames` each have so many in `total`.

    Ranks take members from a queue, the largest first: the list of Graham, SIAM J. Appl. Math. 17, 416 (1969). Members
    come again, or the last ones do not, until there are `total` frames.
    """
    times, rest = divmod(total, sum(frames))
    if times * len(frames) > COUNTED:
        return total / ranks + (1 - 1 / ranks) * min(max(frames), total / ranks / LARGE)  # the bound
    every = list(frames) * times
    for count in frames:
        if rest > 0:
            every.append(min(count, rest))
            rest -= count
    large = together([count * frame_bytes for count in every], ranks)
    alone = set(range(len(every))).difference(large)
    own = sorted((every[at] for at in alone), reverse=True)
    loads = [0] * min(ranks, len(own))
    for count in own:
        heapq.heapreplace(loads, loads[0] + count)
    return sum(every[at] for at in large) / ranks + max(loads, default=0)
