"""The record of a run over an ensemble: `ensemble_record()` combines its members' records."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from himach.files import content_digest
from himach.io.datasets.member import Lazy, Member
from himach.io.trajectories.urls.names import absolute, public_name
from himach.output.record import Record
from himach.ranks.communicator import World
from himach.runner.ensemble.member_run import PHASES, StoredRun
from himach.runner.options import Job
from himach.runner.run_record import times_record

#: Fields of a member's record that concern this member alone.
OF_MEMBERS = ("system", "planning", "uncertainty", "live", "files")
#: Fields of members' records whose counts are summed.
SUMMED = ("frames", "faulty", "reused", "assignment", "bytes", "pairs", "dataset")


def ensemble_record(
    world: World,
    job: Job,
    members: Sequence[Member],
    stored: Sequence[StoredRun],
    started: float,
    phases: Mapping[str, float],
) -> Record:
    """Return the record of a run in which at least one member succeeded. On the first rank."""
    first: Mapping[str, Any] = {}
    paths, reasons, errors = list[str](), dict[str, None](), list[str]()
    totals: Record = {}
    atoms, fingerprint = 0, hashlib.sha256()
    for run in map(StoredRun.load, stored):
        if run.error is not None:
            errors.append(str(run.error))
            continue
        first, dataset = first or run.full_record or {}, run.record["dataset"]
        fingerprint.update(("\n" * bool(paths) + str(dataset["fingerprint"])).encode())
        paths += [dataset["path"]] if isinstance(dataset["path"], str) else dataset["path"]
        atoms = max(atoms, dataset["atoms"])
        reasons[run.record["reused"]["reason"]] = None
        _add(totals, {name: run.record[name] for name in SUMMED})
    whole = time.time() - started
    seconds = {
        "startup": max(0.0, whole - sum(phases.values())),
        **{phase: phases.get(phase, 0.0) for phase in PHASES},
        **dict.fromkeys(("total", "whole"), whole),
        **dict.fromkeys(("write", "draw"), 0.0),
    }
    return {
        **{name: value for name, value in first.items() if name not in OF_MEMBERS},
        **job.recorded(),
        "trajectory": [public_name(path) for member in members for path in member.trajectories],
        "topology": None if job.topology is None else public_name(job.topology),
        "pairs_directory": None if job.pairs is None else str(job.pairs),
        "dataset": Record(
            path=paths, frames=totals["dataset"]["frames"], atoms=atoms, fingerprint=fingerprint.hexdigest()
        ),
        "digests": {**first["digests"], **_topologies(members)},
        "ensemble": Lazy(range(len(members)), partial(_member, members, stored)),
        **{name: totals[name] for name in ("frames", "faulty")},
        "reused": {**totals["reused"], "reason": "; ".join(filter(None, list(reasons)[:3]))},
        "ranks": world.comm.size,
        "nodes": len(world.nodes),
        **{name: totals[name] for name in ("assignment", "bytes")},
        "seconds": seconds,
        "pairs": totals["pairs"],
        "errors": errors,
        **times_record(started),
    }


def _add(totals: Record, record: Record) -> None:
    """Add the counts of a record, at any depth."""
    for name, value in record.items():
        if isinstance(value, dict):
            _add(totals.setdefault(name, {}), value)
        elif isinstance(value, int):
            totals[name] = totals.get(name, 0) + value


def _topologies(members: Sequence[Member]) -> dict[str, str]:
    topologies = [member.topology for member in members if member.topology is not None]
    paths = dict.fromkeys(absolute(path) for path in topologies)
    return {path: content_digest(path) for path in paths if os.path.isfile(path)}


def _member(members: Sequence[Member], stored: Sequence[StoredRun], at: int) -> Record:
    member, run = members[at], stored[at].load()
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
