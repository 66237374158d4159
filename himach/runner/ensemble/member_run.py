"""The run of one member: `MemberRunner` does it, `MemberRun` is what came of it."""

from __future__ import annotations

import copy
import pickle
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from himach.errors import AnalysisError, HimachError, StateError, TimeUpError, as_himach
from himach.opening.member import Member
from himach.opening.options import Job
from himach.output.claim import FOLDER, PAIRS
from himach.parallel.collective import is_everywhere, on_first_rank
from himach.parallel.communicator import World
from himach.parallel.environment import is_interruption
from himach.runner.ensemble.features import write_features
from himach.runner.kept_pairs import unasked_from
from himach.runner.outcome_place import OutcomePlace
from himach.runner.rank import Common, Done, perform

if TYPE_CHECKING:
    from himach.opening.dataset import Assemble

__all__ = ["MemberRun", "MemberRunner"]

#: What of the record of a member's run goes into that of the ensemble's.
TOLD = ("frames", "reused", "assignment", "bytes", "pairs", "seconds", "dataset")


@dataclass(frozen=True)
class MemberRun:
    """What came of a member.

    Attributes
    ----------
    name
        Of the member.
    outcomes
        One per analysis; none of a member that failed, nor on other ranks than the first of those that ran it.
    record
        What its record says that the ensemble's adds up.
    error
        Why it failed; None: it did not.
    said
        What was warned of.
    whole
        All of its record, of one of the members that a rank runs.
    files
        What was written of it, as `himach.runner.ensemble.features.write_features` says.
    """

    name: str
    outcomes: Sequence[Any] = ()
    record: Mapping[str, Any] = field(default_factory=dict)
    error: HimachError | None = None
    said: Sequence[str] = ()
    whole: Mapping[str, Any] | None = None
    files: Sequence[str] = ()


@dataclass
class MemberRunner:
    """Runs members, with analyses of their own; an error is the member's alone.

    Attributes
    ----------
    job
        Of the ensemble.
    place
        Of its outcome.
    started
        `time.time()` at which the user started the run.
    assemble
        See `himach.opening.dataset.OpenRequest`.
    common
        What its members have in common, on this rank.
    travels
        Whether outcomes are gathered from several ranks.
    told
        Whether one that did not fail has told all of its record.
    """

    job: Job
    place: OutcomePlace
    started: float
    assemble: Assemble | None
    common: Common
    travels: bool = False
    told: bool = False

    def run(self, world: World, member: Member, folder: str, memory: int) -> MemberRun:
        """Run a member on the ranks of `world`; `folder` is what its files are called, `memory` what its node may take.

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
                job = self._job_of(member, folder, memory)
                done = perform(world, job, self.started, self.assemble, self.common)
                files = self._features(world, folder, done)
                if self.travels:
                    _check_travels(done.outcomes)
            except (TimeUpError, StateError) as error:
                if world.comm.size > 1:
                    raise
                raise type(error)(str(error)) from error  # a rank that runs a member alone has it alone
            except Exception as error:
                if is_interruption(error) or (world.comm.size > 1 and not is_everywhere(error)):
                    raise
                found = as_himach(error)
                return MemberRun(member.name, error=type(found)(f"member {member.name} failed: {found}"))
        record = {name: done.record[name] for name in TOLD}  # type: ignore[literal-required]
        said, whole, self.told = done.record["warnings"], not self.told, True
        return MemberRun(member.name, done.outcomes or (), record, None, said, done.record if whole else None, files)

    def _job_of(self, member: Member, folder: str, memory: int) -> Job:
        """Return the job of a member's own run, which keeps its pairs in a folder of that name."""
        job, out = self.job, self.place.path
        between = out / FOLDER / PAIRS / folder if out is not None and job.pairs is None else None
        own = replace(
            job,
            analyses=copy.deepcopy(job.analyses),
            ensemble=None,
            trajectories=member.trajectories,
            topology=None if member.topology is None else Path(member.topology),
            **member.choice,
            memory=memory,
            pairs=None if job.pairs is None else job.pairs / folder,
            between=between,
            out=None,
            quiet=True,
            member=member.name,
            features=False,
            helper=None,
        )
        if between is None or time.time() >= unasked_from(own, self.started) or between.exists():
            return own
        return replace(own, between=None)  # what tells whether kept pairs serve takes as long as some maps

    def _features(self, world: World, folder: str, done: Done) -> Sequence[str]:
        """Write the features of a member, if they are asked for; return the files, on the first of its ranks."""
        if not self.job.features or self.place.staged is None:
            return ()
        write = partial(write_features, self.place.staged, folder, self.place.labels, done.outcomes)
        return on_first_rank(world.comm, write) or ()


def _check_travels(outcomes: Sequence[Any] | None) -> None:
    """Refuse an outcome that cannot go to the first rank."""
    try:
        pickle.dumps(outcomes)
    except Exception as error:
        raise AnalysisError(
            f"its outcome cannot be sent to the first rank ({type(error).__name__}: {error}); return tables, arrays or "
            "plain values from finish()"
        ) from error


def _unsaid(*arguments: Any, **options: Any) -> None:
    """Show no warning."""
