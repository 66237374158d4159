"""``himach run --dry-run`` of an ensemble: `dry_run()` looks at each member as its run would."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from himach.errors import HimachError
from himach.opening.member import some_of
from himach.opening.member_table import members_of
from himach.opening.options import Job
from himach.parallel.collective import on_first_rank
from himach.parallel.communicator import World
from himach.runner.dry_run import Looked, looked, told
from himach.runner.ensemble.distribution import attempted, each_member
from himach.runner.ensemble.member_run import job_of
from himach.runner.rank import stages

if TYPE_CHECKING:
    from himach.opening.member import Member

__all__ = ["dry_run"]


def dry_run(world: World, job: Job) -> str | None:
    """Return what the run would do, on rank 0 (collective).

    Raises
    ------
    HimachError
        If no member can be opened and set up: what the first one says.
    """
    comm = world.comm
    assert job.ensemble is not None
    members: list[Member] = on_first_rank(comm, partial(members_of, job.ensemble, job.topology), share=True)
    on_first_rank(comm, lambda: [stages(analysis) for analysis in job.analyses])

    def look(on: World, at: int) -> Looked | HimachError:
        return attempted(on, members[at], lambda: looked(on, job_of(job, members[at])))

    every = comm.gather(each_member(world, job, members, look, job.quiet))
    return on_first_rank(comm, lambda: _told(world, job, {at: one for own in every for at, one in own.items()}))


def _told(world: World, job: Job, every: dict[int, Looked | HimachError]) -> str:
    """Return what there is to say of all members. On the first rank."""
    ordered = [every[at] for at in sorted(every)]
    found = [one for one in ordered if isinstance(one, Looked)]
    failed = [one for one in ordered if isinstance(one, HimachError)]
    if not found:
        raise failed[0]
    lines = [told(world, job, found, {"members": len(ordered), "of these would fail": len(failed)})]
    if failed:
        lines.append(some_of(list(map(str, failed)), "\n"))
    return "\n\n".join(lines)
