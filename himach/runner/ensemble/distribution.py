"""Which rank runs which members: `each_member()`. Large ones are run by all ranks together, others by one rank each."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from himach.errors import HimachError, StateError, TimeUpError, UsageError, as_himach
from himach.opening.member import Member
from himach.opening.options import FramesRequest
from himach.parallel.collective import Meeting, is_everywhere, on_every_rank, on_first_rank
from himach.parallel.communicator import Counter, World, alone
from himach.parallel.environment import is_interruption
from himach.parallel.progress import Progress
from himach.planning.members import WORTH, together
from himach.runner.rank import freed, one_thread

if TYPE_CHECKING:
    from himach.io.server.served_store import ServedStore
    from himach.io.store.store import Store

__all__ = ["Distribution", "attempted", "distribute", "each_member"]

T = TypeVar("T")


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


def each_member(
    world: World, job: FramesRequest, members: Sequence[Member], do: Callable[[World, int], T], quiet: bool
) -> dict[int, T]:
    """Do something with every member, all ranks together or one alone, by turns (collective).

    Parameters
    ----------
    world
        All ranks.
    job
        Of the ensemble.
    members
        The same on all ranks.
    do
        What is done with the member of that position, on the ranks of that world: all, or this one alone.
    quiet
        Whether no progress is shown.

    Returns
    -------
    dict
        What came of those that this rank has done, by position; of those of all ranks, on the first one.
    """
    comm = world.comm
    lone = replace(alone(), name=world.name, nodes=(world.name,), library=world.library)
    meeting = Meeting(comm)
    done: dict[int, T] = {}

    def do_own(display: Progress) -> None:
        for at in shared.mine():
            done[at] = do(lone, at)
            display(len(done))
            meeting.look()

    shared = distribute(world, job, members)
    progress = Progress(comm, len(members), sys.stderr, quiet, "member")
    try:
        with freed(comm, shared), one_thread(), progress as display:
            for at in shared.together:
                came = do(world, at)
                if comm.rank == 0:  # it has what came of it
                    done[at] = came
                    display(len(done))
            meeting.together(partial(do_own, display))
    except TimeUpError as error:
        if comm.size > 1 and not is_everywhere(error):
            raise
        count = comm.allreduce(len(done))
        raise TimeUpError(f"{count} of {len(members)} members are done; of the first that is not, {error}") from error
    return done


def attempted(world: World, member: Member, do: Callable[[], T]) -> T | HimachError:
    """Return what `do` returns for a member, or why that member failed.

    Raises
    ------
    TimeUpError
        If the time that the whole run has is over.
    StateError
        If map() keeps something, as it does in every member.
    BaseException
        What ends the whole run: a signal, or an error that only some of several ranks have.
    """
    with warnings.catch_warnings():
        warnings.showwarning = _unsaid  # the ensemble says it, of all members together
        try:
            return do()
        except (TimeUpError, StateError) as error:
            if world.comm.size > 1:
                raise
            raise type(error)(str(error)) from error  # a rank that runs a member alone has it alone
        except Exception as error:
            if is_interruption(error) or (world.comm.size > 1 and not is_everywhere(error)):
                raise
            found = as_himach(error)
            return type(found)(f"member {member.name} failed: {found}")


def _unsaid(*arguments: Any, **options: Any) -> None:
    """Show no warning."""


def distribute(world: World, job: FramesRequest, members: Sequence[Member]) -> Distribution:
    """Distribute members over the ranks, each to the node whose cache has most of it (collective)."""
    comm = world.comm
    sizes = on_first_rank(comm, partial(_sizes, job, members), share=True)
    large = together(sizes, comm.size, WORTH)
    others = sorted(set(range(len(members))) - set(large), key=lambda at: (-sizes[at], at))
    homes = _homes(world, job, [members[at] for at in others], [sizes[at] for at in others])
    queue = [at for at, home in zip(others, homes, strict=True) if home == world.node_index]
    return Distribution(large, queue, world.make_counter())


def _sizes(job: FramesRequest, members: Sequence[Member]) -> list[float]:
    """Return the bytes of each member's chosen frames; of one that has no files here, as many as the others have."""
    known = [_bytes(member.trajectories) for member in members]
    usual = float(np.median([size for size in known if size] or [1.0]))
    sizes = [size or usual for size in known]
    general = (job.start, job.stop, job.step, job.frames) != (None,) * 4
    # A choice for all changes little of how small members divide, and a look into the store takes time.
    chosen = [at for at, member in enumerate(members) if member.choice or (general and sizes[at] > WORTH)]
    store = _store(job) if chosen else None
    for at in chosen:
        sizes[at] *= _part(replace(job, **members[at].choice), store, members[at])
    return sizes


def _part(job: FramesRequest, store: Store | ServedStore | None, member: Member) -> float:
    """Return which part of a member's frames is chosen; where no store knows how many it has, by the step alone."""
    from himach.io.dataset.lookup import find, names_of

    found = [] if store is None else find(store, names_of(member.trajectories))
    n_frames = max((one.stamp.n_frames for one in found), default=0)
    try:
        return len(job.select(n_frames)) / n_frames if n_frames else 1 / abs(job.step or 1)
    except UsageError:  # which its run says
        return 1.0


def _store(job: FramesRequest) -> Store | ServedStore | None:
    """Return the store of this node, if there is one."""
    from himach.io.dataset.lookup import open_cache

    return None if job.cache == "off" else open_cache(job.cache)[0]


def _bytes(files: Sequence[Path]) -> float:
    try:
        every = [each for file in files for each in (file.iterdir() if file.is_dir() else [file])]
        return float(sum(file.stat().st_size for file in every))
    except OSError:
        return 0.0


def _homes(world: World, job: FramesRequest, members: Sequence[Member], sizes: Sequence[float]) -> list[int]:
    """Return for each member the node that runs it: that which has most of it cached, but none much more than others.

    The members come with the largest first.
    """
    n = len(world.nodes)
    if n == 1:
        return [0] * len(members)
    cached = on_every_rank(world.comm, lambda: _cached(world, job, members))
    every = np.array([counts for counts in world.comm.allgather(cached) if counts is not None])
    ranks = np.array([len(one) for one in world.ranks_of])
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


def _cached(world: World, job: FramesRequest, members: Sequence[Member]) -> list[int] | None:
    """Return how many frames of each member this node's store has; None on other ranks than a node's first."""
    if world.leaders is None:
        return None
    from himach.io.dataset.lookup import find, names_of

    store = _store(job)
    if store is None:
        return [0] * len(members)
    return [max((one.frames for one in find(store, names_of(member.trajectories))), default=0) for member in members]
