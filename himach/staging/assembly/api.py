"""Assembling for callers: for a run, which then reads the frames, and for ``himach stage --assemble``."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from himach.errors import HimachError, UsageError
from himach.io.remote.url import is_url
from himach.io.store.quota import open_chosen, set_chosen_quota
from himach.io.store.store import Store, StoreError
from himach.opening.options import DatasetRequest
from himach.ranks.collective import is_everywhere, run_collectively
from himach.ranks.communicator import World
from himach.staging.options import StageOptions
from himach.staging.shares import open_store

if TYPE_CHECKING:
    from himach.io.server.survey import ServedStore

#: Minimum seconds between two polls, and minimum pause as a multiple of a poll's duration.
POLL_SECONDS = 0.5
POLL_FACTOR = 10


def assemble_for_run(world: World, store: Store | ServedStore | None, request: DatasetRequest) -> Sequence[str]:
    """Assemble the slices of a dataset that a run is to read; return messages to print (collective).

    If a store is full, the run continues with the frames that exist.
    """
    if len(request.trajectories) != 1 or request.cache == "off":
        return []
    if os.path.isabs(request.trajectories[0]) or is_url(request.trajectories[0]):
        return []
    if world.comm.bcast(os.path.exists(os.path.expanduser(request.trajectories[0]))):
        return []
    return assemble_pushed(world, store, os.fspath(request.trajectories[0]))


def assemble_pushed(world: World, store: Store | ServedStore | None, name: str) -> Sequence[str]:
    """Assemble the slices pushed under a name, like `assemble_for_run` (collective)."""
    from himach.staging.assembly.assemble import assemble, have_slices

    own_store = store if isinstance(store, Store) else None
    if not have_slices(world, own_store, [name]):
        return []
    try:
        result = assemble(world, own_store, name)
    except HimachError as error:
        # Either all ranks continue or none, although error classes may differ; if other ranks wait, all must end.
        if not is_everywhere(error) or world.comm.allreduce(isinstance(error, StoreError)) < world.comm.size:
            raise
        return [f"not all slices of {name} were put together: {error}"]
    return [f"{name}: {result}"] if result.absent or result.aside is not None else []


class SliceAssembler:
    """Assembles slices as they arrive, using at most a tenth of the time (collective)."""

    def __init__(self, world: World, cache: str, name: Path) -> None:
        self._world, self._name = world, name
        self._next = 0.0
        store, _ = run_collectively(world.comm, lambda: open_chosen(cache))
        self._store = store
        if store is not None:
            run_collectively(world.comm, lambda: set_chosen_quota(store))

    def poll(self) -> None:
        """Assemble the frames complete by now, if the pause has passed."""
        start = time.monotonic()
        if self._world.comm.bcast(start >= self._next):
            assemble_pushed(self._world, self._store, os.fspath(self._name))
            end = time.monotonic()
            self._next = end + max(POLL_SECONDS, POLL_FACTOR * (end - start))


def assemble_here(world: World, job: StageOptions) -> str:
    """Assemble the slices pushed under the job's trajectory's name; return a summary (collective)."""
    from himach.staging.assembly.assemble import assemble, have_slices

    other_options = (job.follow, job.dataset, job.topology, job.copies, job.atoms, job.repair, job.server, job.keywords)
    if len(job.trajectories) != 1 or any(other_options) or job.placement != "spread":
        raise UsageError(
            "--assemble takes the name under which slices were pushed, and of the other options only "
            "--cache, --quota and -n: stage the frames with the others when they are there"
        )
    store = open_store(world.comm, job)
    name = os.fspath(job.trajectories[0])
    if not have_slices(world, store, [name]):
        raise UsageError(f"no node has slices of a dataset {name}")
    result = assemble(world, store, name)

    def refuse() -> None:
        if result.aside is not None:
            raise HimachError(f"{name}: {result}")

    run_collectively(world.comm, refuse)
    return f"{name}: {result}"
