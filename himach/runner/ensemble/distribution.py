"""Which rank runs which members: `distribute()`. Large ones are run by all ranks together, others by one rank each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from himach.opening.member import Member
from himach.opening.options import Job
from himach.parallel.collective import on_every_rank, on_first_rank
from himach.parallel.communicator import Counter, World

if TYPE_CHECKING:
    from himach.io.server.served_store import ServedStore
    from himach.io.store.store import Store

__all__ = ["Distribution", "distribute"]

#: A member is large from this part of what a rank would have, if all had the same: smaller ones even each other out.
LARGE = 4
#: Bytes of a trajectory from which it is worth the ranks' meeting.
WORTH = 32 << 20


@dataclass(frozen=True)
class Distribution:
    """The members by their positions.

    Attributes
    ----------
    together
        Those that all ranks run together, one after another; the same on all ranks.
    queue
        Those that this node's ranks run alone, the largest first; the same on all ranks of a node.
    counter
        Of the node's queue.
    """

    together: list[int]
    queue: list[int]
    counter: Counter

    def mine(self) -> Iterator[int]:
        """Yield the members that this rank runs alone, one whenever it asks."""
        while (number := self.counter.next()) < len(self.queue):
            yield self.queue[number]

    def close(self) -> None:
        """Free the node's counter (collective over the node)."""
        self.counter.close()


def distribute(world: World, job: Job, members: Sequence[Member]) -> Distribution:
    """Distribute members over the ranks, each to the node whose cache has most of it (collective)."""
    comm = world.comm
    sizes = on_first_rank(comm, partial(_sizes, members), share=True)
    least = max(WORTH, sum(sizes) / (LARGE * comm.size))
    together = [at for at, size in enumerate(sizes) if size > least and comm.size > 1]
    alone = sorted(set(range(len(members))) - set(together), key=lambda at: (-sizes[at], at))
    homes = _homes(world, job, [members[at] for at in alone], [sizes[at] for at in alone])
    queue = [at for at, home in zip(alone, homes, strict=True) if home == world.node_index]
    return Distribution(together, queue, world.make_counter())


def _sizes(members: Sequence[Member]) -> list[float]:
    """Return the bytes of each member's trajectory; of one that has no files here, as many as the others have."""
    known = [_bytes(member.trajectories) for member in members]
    usual = float(np.median([size for size in known if size] or [1.0]))
    return [size or usual for size in known]


def _bytes(files: Sequence[Path]) -> float:
    try:
        every = [each for file in files for each in (file.iterdir() if file.is_dir() else [file])]
        return float(sum(file.stat().st_size for file in every))
    except OSError:
        return 0.0


def _homes(world: World, job: Job, members: Sequence[Member], sizes: Sequence[float]) -> list[int]:
    """Return for each member the node that runs it: that which has most of it cached, but none much more than others.

    The members come with the largest first.
    """
    n = len(world.nodes)
    if n == 1:
        return [0] * len(members)
    cached = on_every_rank(world.comm, lambda: _cached(world, job, members))
    every = np.array([counts for counts in world.comm.allgather(cached) if counts is not None])
    ranks = np.bincount([world.nodes.index(name) for name in world.comm.allgather(world.name)], minlength=n)
    most = 1.1 * sum(sizes) / ranks.sum() * ranks + max(sizes, default=0.0)
    given = np.zeros(n)
    homes = []
    for at, size in enumerate(sizes):
        room = given + size <= most
        home = int(np.argmax(every[:, at] * room))
        if not every[home, at] or not room[home]:
            home = int(np.argmin((given + size) / ranks))
        given[home] += size
        homes.append(home)
    return homes


def _cached(world: World, job: Job, members: Sequence[Member]) -> list[int] | None:
    """Return how many frames of each member this node's store has; None on other ranks than a node's first."""
    if world.leaders is None:
        return None
    from himach.io.dataset.lookup import find, names_of, open_cache

    store: Store | ServedStore | None = None if job.cache == "off" else open_cache(job.cache)[0]
    if store is None:
        return [0] * len(members)
    return [max((one.frames for one in find(store, names_of(member.trajectories))), default=0) for member in members]
