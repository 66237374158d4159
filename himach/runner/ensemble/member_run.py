"""The run of one member: `MemberRunner` does it, `MemberRun` is what came of it; `job_of()` is what it is asked."""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from himach.errors import AnalysisError, HimachError
from himach.launch.memory import MIN_LIMIT_BYTES, default_memory
from himach.opening.member import Member
from himach.opening.options import Job
from himach.output.claim import FOLDER, PAIRS
from himach.output.names import lasting_name
from himach.parallel.collective import on_first_rank
from himach.parallel.communicator import World
from himach.runner.ensemble.distribution import attempted
from himach.runner.ensemble.features import write_features
from himach.runner.kept_pairs import unasked_from
from himach.runner.outcome.place import OutcomePlace
from himach.runner.rank import Common, Done, perform

if TYPE_CHECKING:
    from himach.opening.dataset import Assemble

__all__ = ["MemberRun", "MemberRunner", "job_of"]

#: What of the record of a member's run goes into that of the ensemble's.
TOLD = ("frames", "faulty", "reused", "assignment", "bytes", "pairs", "seconds", "dataset", "system")
#: It is looked for what map() changes in a rank's members up to the first that does not fail, then in every so-manieth:
#: a look takes as long as a hundred frames.
GUARDED = 10


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
    members
        All.
    ranks
        Of this node.
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
    members: Sequence[Member]
    ranks: int
    started: float
    assemble: Assemble | None
    common: Common
    travels: bool = False
    told: bool = False

    def run(self, world: World, at: int) -> MemberRun:
        """Run the member of that position on the ranks of `world`.

        Raises
        ------
        BaseException
            As of `himach.runner.ensemble.distribution.attempted`.
        """
        member, seen = self.members[at], self.common.seen
        folder = lasting_name(member.name)
        self.common.guarded = world.comm.size > 1 or not self.told or at % GUARDED == 0
        began, processor = time.perf_counter(), time.process_time()
        came = attempted(world, member, partial(self._ran, world, member, folder))
        seen.busy += time.perf_counter() - began
        seen.cpu += time.process_time() - processor
        if isinstance(came, HimachError):
            return MemberRun(member.name, error=came)
        done, files = came
        record = {name: done.record[name] for name in TOLD}  # type: ignore[literal-required]
        said, whole, self.told = done.record["warnings"], not self.told, True
        return MemberRun(member.name, done.outcomes or (), record, None, said, done.record if whole else None, files)

    def _ran(self, world: World, member: Member, folder: str) -> tuple[Done, Sequence[str]]:
        """Run a member whose files go by that name."""
        memory = self._memory if world.comm.size > 1 else max(MIN_LIMIT_BYTES, self._memory // self.ranks)
        done = perform(world, self._job_of(member, folder, memory), self.started, self.assemble, self.common)
        files = self._features(world, folder, done)
        if self.travels:
            _check_travels(done.outcomes)
        return done, files

    @cached_property
    def _memory(self) -> int:
        """What pairs may take on this node."""
        return int(self.job.memory or default_memory())

    def _job_of(self, member: Member, folder: str, memory: int) -> Job:
        """Return the job of a member's own run, which keeps its pairs in a folder of that name."""
        out = self.place.path
        between = out / FOLDER / PAIRS / folder if out is not None and self.job.pairs is None else None
        pairs = None if self.job.pairs is None else self.job.pairs / folder
        if self.job.between is not None:
            return replace(job_of(self.job, member), memory=memory, pairs=pairs, between=self.job.between / folder)
        own = replace(job_of(self.job, member), memory=memory, pairs=pairs, between=between)
        if between is None or time.time() >= unasked_from(own, self.started) or between.exists():
            return own
        return replace(own, between=None)  # what tells whether kept pairs serve takes as long as some maps

    def _features(self, world: World, folder: str, done: Done) -> Sequence[str]:
        """Write the features of a member, if they are asked for; return the files, on the first of its ranks."""
        if not self.job.features or self.place.staged is None:
            return ()
        write = partial(write_features, self.place.staged, folder, self.place.labels, done.outcomes)
        return on_first_rank(world.comm, write) or ()


def job_of(job: Job, member: Member) -> Job:
    """Return what a run of a member of the ensemble of `job` is asked, with analyses of its own; it leaves nothing."""
    return replace(
        job,
        analyses=copy.deepcopy(job.analyses),
        ensemble=None,
        trajectories=member.trajectories,
        topology=None if member.topology is None else Path(member.topology),
        **member.choice,
        pairs=None,
        out=None,
        quiet=True,
        member=member.name,
        features=False,
        helper=None,
    )


def _check_travels(outcomes: Sequence[Any] | None) -> None:
    """Refuse an outcome that cannot go to the first rank."""
    try:
        pickle.dumps(outcomes)
    except Exception as error:
        raise AnalysisError(
            f"its outcome cannot be sent to the first rank ({type(error).__name__}: {error}); return tables, arrays or "
            "plain values from finish()"
        ) from error
