"""The record of a run over an ensemble: `ensemble_record()` combines its members' records."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from datetime import datetime

from himach.files import content_digest
from himach.io.remote.url import absolute, public_name
from himach.opening.member import Member
from himach.opening.options import Job
from himach.output.record import Record
from himach.ranks.communicator import World
from himach.runner.ensemble.member_run import MemberRun

#: Fields of a member's record that concern this member alone.
OF_MEMBERS = ("system", "planning", "uncertainty", "live", "files")
#: Phases whose times are summed over a rank's members.
PHASES = ("zazen", "map", "shuffle", "reduce", "finish")


def ensemble_record(
    world: World,
    job: Job,
    members: Sequence[Member],
    runs: Sequence[MemberRun],
    started: float,
    phases: Mapping[str, float],
) -> Record:
    """Return the record of a run in which at least one member succeeded. On the first rank."""
    done = [run.record for run in runs if run.error is None]
    first = next(run.full_record for run in runs if run.full_record is not None)
    now = time.time()
    local = [datetime.fromtimestamp(second).astimezone() for second in (started, now)]
    start, end = (second.isoformat(timespec="milliseconds") for second in local)
    seconds = {
        "startup": max(0.0, now - started - sum(phases.values())),
        **{phase: phases.get(phase, 0.0) for phase in PHASES},
        **dict.fromkeys(("total", "whole"), now - started),
        **dict.fromkeys(("write", "draw"), 0.0),
    }
    reasons = dict.fromkeys(record["reused"]["reason"] for record in done)

    def sums(field: str, *kinds: str) -> dict[str, int]:
        return {kind: sum(record[field][kind] for record in done) for kind in kinds}

    return {
        **{name: value for name, value in first.items() if name not in OF_MEMBERS},
        **job.recorded(),
        "trajectory": [public_name(path) for member in members for path in member.trajectories],
        "topology": None if job.topology is None else public_name(job.topology),
        "pairs_directory": None if job.pairs is None else str(job.pairs),
        "dataset": _dataset([record["dataset"] for record in done]),
        "digests": {**first["digests"], **_topologies(members)},
        "ensemble": [_member(member, run) for member, run in zip(members, runs, strict=True)],
        "frames": sum(record["frames"] for record in done),
        "faulty": sums("faulty", "damaged", "missing"),
        "reused": {**sums("reused", "frames"), "reason": "; ".join(filter(None, list(reasons)[:3]))},
        "ranks": world.comm.size,
        "nodes": len(world.nodes),
        "assignment": sums("assignment", "native", "alien", "residue"),
        "bytes": sums("bytes", "cache", "origin", "shuffled"),
        "seconds": seconds,
        "pairs": sum(record["pairs"] for record in done),
        "errors": [str(run.error) for run in runs if run.error is not None],
        "date": start[:10],
        "times": {"start": start, "end": end},
    }


def _dataset(datasets: Sequence[Record]) -> Record:
    paths = [[data["path"]] if isinstance(data["path"], str) else data["path"] for data in datasets]
    return Record(
        path=[path for part in paths for path in part],
        frames=sum(data["frames"] for data in datasets),
        atoms=max(data["atoms"] for data in datasets),
        fingerprint=hashlib.sha256("\n".join(str(data["fingerprint"]) for data in datasets).encode()).hexdigest(),
    )


def _topologies(members: Sequence[Member]) -> dict[str, str]:
    topologies = [member.topology for member in members if member.topology is not None]
    paths = dict.fromkeys(absolute(path) for path in topologies)
    return {path: content_digest(path) for path in paths if os.path.isfile(path)}


def _member(member: Member, run: MemberRun) -> Record:
    record = Record(
        name=member.name,
        trajectory=[*map(public_name, member.trajectories)],
        topology=None if member.topology is None else public_name(member.topology),
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
