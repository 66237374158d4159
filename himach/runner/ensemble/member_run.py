"""The run of one member: `MemberRun` is what came of it, `job_of()` what it is asked, `run_member()` does it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from himach.errors import HimachError, TimeUpError, as_himach
from himach.opening.member import Member
from himach.opening.options import Job
from himach.output.claim import FOLDER, PAIRS
from himach.output.names import unique_labels
from himach.parallel.collective import is_everywhere, on_first_rank
from himach.parallel.communicator import World
from himach.parallel.environment import is_interruption
from himach.runner.ensemble.features import write_features
from himach.runner.rank import Common, perform

if TYPE_CHECKING:
    from himach.opening.dataset import Assemble

__all__ = ["MemberRun", "job_of", "run_member"]

#: What of the record of a member's run goes into that of the ensemble's.
TOLD = ("frames", "reused", "assignment", "bytes", "pairs", "seconds", "dataset")


@dataclass(frozen=True)
class MemberRun:
    """What came of a member.

    Attributes
    ----------
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

    outcomes: Sequence[Any] = ()
    record: Mapping[str, Any] = field(default_factory=dict)
    error: HimachError | None = None
    said: Sequence[str] = ()
    whole: Mapping[str, Any] | None = None
    files: Sequence[str] = ()


def job_of(job: Job, member: Member, folder: str, out: Path | None) -> Job:
    """Return the job of a member's own run, which keeps its pairs in a folder of that name; `out` is of all."""
    pairs = None if job.pairs is None else job.pairs / folder
    between = out / FOLDER / PAIRS / folder if out is not None and pairs is None else None
    return replace(
        job,
        ensemble=None,
        trajectories=member.trajectories,
        topology=None if member.topology is None else Path(member.topology),
        **member.choice,
        pairs=pairs,
        between=between,
        out=None,
        quiet=True,
        member=member.name,
        features=False,
        helper=None,
    )


def run_member(
    world: World,
    job: Job,
    started: float,
    assemble: Assemble | None,
    common: Common,
    features: Path | None,
    folder: str,
) -> MemberRun:
    """Run one member, with analyses of its own; an error is its error alone.

    Its features go to that folder in `features`, if they are to be written.

    Raises
    ------
    TimeUpError
        If the time that the whole run has is over.
    BaseException
        What ends the whole run: a signal, or an error that only some of several ranks have.
    """
    whole = not common.asked
    own = replace(job, analyses=copy.deepcopy(job.analyses))
    with warnings.catch_warnings():
        warnings.showwarning = _unsaid  # the ensemble says it, of all members together
        try:
            done = perform(world, own, started, assemble, common)
            files: Sequence[str] = ()
            if features is not None:
                write = partial(write_features, features, folder, unique_labels(job.labels), done.outcomes)
                files = on_first_rank(world.comm, write) or ()
        except TimeUpError:
            raise
        except Exception as error:
            if is_interruption(error) or (world.comm.size > 1 and not is_everywhere(error)):
                raise
            found = as_himach(error)
            return MemberRun(error=type(found)(f"member {job.member} failed: {found}"))
    record = {name: done.record[name] for name in TOLD}  # type: ignore[literal-required]
    return MemberRun(done.outcomes or (), record, None, done.record["warnings"], done.record if whole else None, files)


def _unsaid(*arguments: Any, **options: Any) -> None:
    """Show no warning."""
