"""The record of a run over an ensemble: `ensemble_record()` adds up what its members' runs say."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from himach.files import content_digest
from himach.io.remote.url import absolute, named
from himach.opening.member import Member
from himach.opening.options import Job
from himach.output.record import DatasetRecord, MemberRecord, Record, Reused, Times
from himach.parallel.communicator import World

if TYPE_CHECKING:
    from himach.runner.ensemble.member_run import MemberRun

__all__ = ["ensemble_record"]

#: What of a member's record is of it alone.
OF_MEMBERS = ("system", "planning", "uncertainty", "live", "files")
#: Phases whose times of a rank's members are added up.
PHASES = ("zazen", "map", "shuffle", "reduce", "finish")


def ensemble_record(
    world: World,
    job: Job,
    members: Sequence[Member],
    ran: Sequence[MemberRun],
    started: float,
    phases: Mapping[str, float],
) -> Record:
    """Return what the run was and did. On the first rank.

    Parameters
    ----------
    world, job, members
        Who ran what.
    ran
        What came of each member; one at least did not fail.
    started
        `time.time()` at which the user started the run.
    phases
        Seconds of each phase on the rank that took longest.
    """
    done = [run.record for run in ran if run.error is None]
    first = next(run.whole for run in ran if run.whole is not None)
    now = time.time()
    times = [datetime.fromtimestamp(second).astimezone() for second in (started, now)]
    whole = {
        **{name: value for name, value in first.items() if name not in OF_MEMBERS},
        **job.recorded(),
        "trajectory": [named(path) for member in members for path in member.trajectories],
        "topology": None if job.topology is None else named(job.topology),
        "pairs_directory": None if job.pairs is None else str(job.pairs),
        "dataset": _dataset(done),
        "digests": {**first["digests"], **_topologies(members)},
        "ensemble": [_member(member, run) for member, run in zip(members, ran, strict=True)],
        "frames": sum(one["frames"] for one in done),
        "faulty": {kind: sum(one["faulty"][kind] for one in done) for kind in ("damaged", "missing")},
        "reused": _reused(done),
        "ranks": world.comm.size,
        "nodes": len(world.nodes),
        "assignment": {kind: sum(one["assignment"][kind] for one in done) for kind in ("native", "alien", "residue")},
        "bytes": {kind: sum(one["bytes"][kind] for one in done) for kind in ("cache", "origin", "shuffled")},
        "seconds": {
            "startup": max(0.0, now - started - sum(phases.values())),
            **{phase: phases.get(phase, 0.0) for phase in PHASES},
            **dict.fromkeys(("total", "whole"), now - started),
            **dict.fromkeys(("write", "draw"), 0.0),
        },
        "pairs": sum(one["pairs"] for one in done),
        "errors": [str(run.error) for run in ran if run.error is not None],
        "date": times[0].date().isoformat(),
        "times": Times(
            start=times[0].isoformat(timespec="milliseconds"), end=times[1].isoformat(timespec="milliseconds")
        ),
    }
    return cast(Record, whole)


def _dataset(done: Sequence[Mapping[str, Any]]) -> DatasetRecord:
    """Return the datasets of all members as one."""
    each = [one["dataset"] for one in done]
    prints = hashlib.sha256("\n".join(str(one["fingerprint"]) for one in each).encode())
    paths = [path for one in each for path in ([one["path"]] if isinstance(one["path"], str) else one["path"])]
    return DatasetRecord(
        path=paths,
        frames=sum(one["frames"] for one in each),
        atoms=max(one["atoms"] for one in each),
        fingerprint=prints.hexdigest(),
    )


def _topologies(members: Sequence[Member]) -> dict[str, str]:
    """Return the digests of the topologies of members, by their paths."""
    given = [member.topology for member in members if member.topology is not None]
    paths = dict.fromkeys(absolute(path) for path in given)
    return {path: content_digest(path) for path in paths if os.path.isfile(path)}


def _reused(done: Sequence[Mapping[str, Any]]) -> Reused:
    reasons = dict.fromkeys(one["reused"]["reason"] for one in done)
    return Reused(
        frames=sum(one["reused"]["frames"] for one in done), reason="; ".join(filter(None, list(reasons)[:3]))
    )


def _member(member: Member, run: MemberRun) -> MemberRecord:
    record = MemberRecord(
        name=member.name,
        trajectory=[*map(named, member.trajectories)],
        topology=None if member.topology is None else named(member.topology),
        group=member.group,
        start=member.start,
        stop=member.stop,
        step=member.step,
        metadata=dict(member.metadata),
        frames=run.record.get("frames", 0),
        reused=run.record.get("reused", {}).get("frames", 0),
        fingerprint=run.record["dataset"]["fingerprint"] if run.record else None,
        error=None if run.error is None else str(run.error),
    )
    if run.record:
        record["system"] = run.record["system"]
    return record
