"""A dataset that is asked for by its name, for another layout: what the nodes hold is all that there is of it."""

from __future__ import annotations

import os

from himach.errors import UsageError
from himach.io.store.store import Dataset, Store
from himach.io.timemajor.holding import is_alone
from himach.parallel.collective import on_first_rank
from himach.parallel.communicator import World
from himach.staging.fetch_remote import end_of, held_as
from himach.staging.options import StageOptions

__all__ = ["is_held_only", "open_held"]


def is_held_only(world: World, job: StageOptions) -> bool:
    """Tell whether a trajectory is away, so that its name can be that of a dataset only (collective)."""

    def away() -> bool:
        return not all(os.path.exists(os.path.expanduser(path)) for path in job.trajectories)

    return bool(on_first_rank(world.comm, away, share=True))


def open_held(world: World, store: Store, job: StageOptions, layout: str) -> tuple[Dataset, int]:
    """Open the dataset that nodes hold under the name that is the trajectory (collective).

    Returns
    -------
    tuple
        The dataset in this node's store, and how many frames it has.

    Raises
    ------
    UsageError
        No node holds it; or the layout would drop what cannot be read again.
    """
    best, dataset = held_as(world, store, job)
    if layout == "time" and best.stamp.is_pushed:
        raise UsageError(
            f"frames of {best.name} were pushed and are nowhere else, so they stay as they are: --layout both makes "
            "the time-major form beside them"
        )
    if layout == "time" or (layout == "frame" and world.comm.allreduce(is_alone(dataset))):
        raise UsageError(
            f"the trajectory of {best.name} is not there, so what --layout {layout} drops could not be read again: "
            "give its files, and the name by --dataset; --layout both drops nothing"
        )
    return dataset, world.comm.allreduce(end_of(dataset, best), op=max)
