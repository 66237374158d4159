"""Execution of a job by one rank, `perform()`, and by ranks in other processes, `PickledJob`."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from himach.analysis import state_without_universe
from himach.errors import AnalysisError
from himach.output.record import Record
from himach.ranks.communicator import World
from himach.ranks.quiet import quiet_ranks
from himach.runner.options import Job

if TYPE_CHECKING:
    from himach.result import Result
    from himach.runner.rank_run import RankOutcome


def perform(world: World, job: Job, started: float) -> RankOutcome:
    """Run a job as one of the ranks of `world`: member by member for an ensemble, else in one pass."""
    if job.ensemble is None:
        from himach.runner import rank

        return rank.perform(world, job, started)
    from himach.runner.ensemble import run  # only ensembles need this import

    return run.perform(world, job, job.ensemble, started)


@dataclass(frozen=True)
class PickledJob:
    """A job as work for ranks; the work returns what `unpack_result` turns into a result."""

    data: bytes  # the job and the start time of its run

    @classmethod
    def from_job(cls, job: Job, started: float) -> PickledJob:
        """Pickle `job` with the code that its analyses need in another process."""
        from himach.ranks.launch.code_pickle import dumps

        try:
            with sent_by_value(job.analyses):
                return cls(dumps((job, started)))
        except Exception as error:
            raise AnalysisError(f"an analysis cannot be sent to other ranks: {_error_text(error)}") from error

    def __call__(self, world: World) -> tuple[bytes, Record, list[dict[str, bytes]]] | None:
        """Run the job; return its outcomes, its record and the states of its last stages on rank 0."""
        import cloudpickle

        with quiet_ranks(world.comm.rank):
            try:
                job, started = pickle.loads(self.data)
            except Exception as error:
                raise AnalysisError(f"an analysis cannot be rebuilt on other ranks: {_error_text(error)}") from error
            rank_outcome = perform(world, job, started)
            if world.comm.rank != 0:
                return None
            try:
                outcomes = cloudpickle.dumps((rank_outcome.outcomes, rank_outcome.members))
            except Exception as error:
                raise AnalysisError(
                    f"the outcome of finish() cannot be sent back from the ranks: {_error_text(error)}"
                ) from error
            return outcomes, rank_outcome.record, [state_without_universe(stage) for stage in rank_outcome.last_stages]


def unpack_result(packed: tuple[bytes, Record, list[dict[str, bytes]]], job: Job) -> Result:
    """Return the result; its analyses get their final state on rank 0, so that plot() finds what setup() kept."""
    from himach.result import Result
    from himach.runner.rank_run import stages

    packed_outcomes, record, states = packed
    outcomes, members = pickle.loads(packed_outcomes)
    last_stages = [stages(analysis)[-1] for analysis in job.analyses]
    if members:
        from himach.runner.ensemble.plot import EnsemblePlot

        last_stages = [EnsemblePlot() for _ in last_stages]
    for stage, state in zip(last_stages, states, strict=True):
        stage.__dict__.update({name: pickle.loads(value) for name, value in state.items()})
    return Result(last_stages, outcomes, record, job.several, job.labels, job.out, members)


def sent_by_value(analyses: Iterable[object]) -> AbstractContextManager[None]:
    """Pickle the code of these objects by value where another process could not import it by name."""
    from himach.ranks.launch.code_pickle import by_value, unknown_elsewhere

    return by_value(unknown_elsewhere(cls.__module__ for analysis in analyses for cls in type(analysis).__mro__))


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
