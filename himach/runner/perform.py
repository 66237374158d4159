"""What a rank does for a job: `perform()`, by its members if it is of an ensemble, else in one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from himach.opening.options import Job
from himach.parallel.communicator import World

if TYPE_CHECKING:
    from himach.opening.dataset import Assemble
    from himach.runner.rank import Done

__all__ = ["perform"]


def perform(world: World, job: Job, started: float, assemble: Assemble | None = None) -> Done:
    """Carry out a job as one of the ranks of `world`; see `himach.runner.rank.perform`."""
    if job.ensemble is None:
        from himach.runner.rank import perform as one

        return one(world, job, started, assemble)
    from himach.runner.ensemble.run import perform as many  # which other runs need not import

    return many(world, job, job.ensemble, started, assemble)
