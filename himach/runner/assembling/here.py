"""Assembling on behalf of others: of a run, which then reads the frames, and of ``himach stage --assemble``."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from himach.errors import HimachError, UsageError
from himach.io.store.place import open_chosen
from himach.io.store.quota import check_quota, chosen_quota
from himach.io.store.store import Store, StoreError
from himach.parallel.collective import is_everywhere, on_every_rank
from himach.parallel.communicator import World
from himach.runner.assembling.assemble import assemble, have_slices

if TYPE_CHECKING:
    from himach.io.server.served_store import ServedStore
    from himach.runner.options import StageOptions

__all__ = ["Assembling", "assemble_for_run", "assemble_here"]

#: Seconds between two looks at least, and how many times as long as a look.
LOOK = 0.5
PART = 10


def assemble_for_run(world: World, store: Store | ServedStore | None, trajectory: Path) -> Sequence[str]:
    """Put together the slices of a dataset that a run is to read; return what is to be said (collective).

    Where a store has no room, the run goes on with what there is.
    """
    own = store if isinstance(store, Store) else None
    name = os.fspath(trajectory)
    if not have_slices(world, own, [name]):
        return []
    try:
        done = assemble(world, own, name)
    except HimachError as error:
        # All ranks go on, or none, though what they raise need not be of one class; where others wait, all must end.
        if not is_everywhere(error) or not all(world.comm.allgather(isinstance(error, StoreError))):
            raise
        return [f"not all slices of {name} were put together: {error}"]
    return [f"{name}: {done}"] if done.absent else []


class Assembling:
    """Puts together slices while they come, for a tenth of the time at most (collective)."""

    def __init__(self, world: World, cache: str, name: Path) -> None:
        from himach.io.store.quota import set_chosen_quota

        self._world, self._name = world, name
        self._next = 0.0
        store, _ = on_every_rank(world.comm, lambda: open_chosen(cache))
        self._store = store
        if store is not None:
            on_every_rank(world.comm, lambda: set_chosen_quota(store))

    def look(self) -> None:
        """Put together what is there by now, if it is time."""
        began = time.monotonic()
        if self._world.comm.bcast(began >= self._next):
            assemble_for_run(self._world, self._store, self._name)
            now = time.monotonic()
            self._next = now + max(LOOK, PART * (now - began))


def assemble_here(world: World, job: StageOptions) -> str:
    """Put together the slices pushed under the name that is the job's trajectory; return what came of it (collective).

    Raises
    ------
    UsageError
        There are none, or there is no store.
    StoreError
        As `assemble`.
    """

    def opened() -> Store:
        store, reason = open_chosen(job.cache)
        if store is None:
            raise UsageError(reason)
        quota = chosen_quota(store.path, job.quota)
        check_quota(store.path, quota, job.segment_size)
        store.set_quota(quota)
        return store

    others = (job.follow, job.dataset, job.topology, job.copies, job.repair, job.server, job.keywords)
    if len(job.trajectories) != 1 or any(others) or job.placement != "spread":
        raise UsageError(
            "--assemble takes the name under which slices were pushed, and of the other options only "
            "--cache, --quota and -n: stage the frames with the others when they are there"
        )
    store = on_every_rank(world.comm, opened)
    name = os.fspath(job.trajectories[0])
    if not have_slices(world, store, [name]):
        raise UsageError(f"no node has slices of a dataset {name}")
    return f"{name}: {assemble(world, store, name)}"
