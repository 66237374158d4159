"""A run over an ensemble: `perform()` runs each member by itself, and joins the outcomes and the records."""

import hashlib
import os
import shutil
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from himach.checkpoint.directory import PairsDirectory
from himach.errors import UsageError
from himach.files import content_digest
from himach.io.datasets.member import Member, read_members, truncate
from himach.io.datasets.opening import open_store
from himach.io.trajectories.urls.url_names import absolute, public_name
from himach.output.record import Record
from himach.ranks.collective import largest, on_first_rank
from himach.ranks.communicator import World
from himach.runner.ensemble.joint_outcome import join
from himach.runner.ensemble.member_run import PHASES, MemberRun, MemberRunner, each_member
from himach.runner.ensemble.plot import EnsemblePlot
from himach.runner.methods_text import with_groups
from himach.runner.options import Job, stages
from himach.runner.place import OutcomePlace, outcome_place, units
from himach.runner.rank import RankOutcome
from himach.runner.rank_run import EnsembleContext
from himach.runner.run_record import times_record

#: Fields of a member's record that concern this member alone.
OF_MEMBERS = ("system", "planning", "uncertainty", "live", "files")
#: Fields of members' records whose counts are summed.
SUMMED = ("frames", "faulty", "reused", "assignment", "bytes", "pairs", "dataset")
#: Fields of the record that grow with the members; other ranks than the first do not have them.
OF_ALL_MEMBERS = frozenset({"ensemble", "trajectory", "dataset", "digests"})


def perform(world: World, job: Job, ensemble: str | os.PathLike[str] | Sequence[Member], started: float) -> RankOutcome:
    """Run an ensemble's job as one of the ranks of `world`; outcomes on the first rank are those of `join`."""
    comm = world.comm
    with outcome_place(world, job) as place:
        members = on_first_rank(comm, lambda: read_members(ensemble, job.topology), share=True)
        on_first_rank(comm, lambda: [stages(analysis) for analysis in job.analyses])
        if job.features and place.path is None:
            raise UsageError("features are files: name a directory for them (out)")
        directory = on_first_rank(comm, partial(_make_place, job, place))
        try:
            common = EnsembleContext(open_store(comm, job.cache))
            runner = MemberRunner(job, place, members, world.node.size, started, common, travels=comm.size > 1)
            runs = each_member(world, job, members, runner.run, place.quiet)
            seconds = largest(comm, runner.seconds)
            outcome = on_first_rank(comm, partial(_conclude, world, place, members, runs, seconds, started))
        finally:
            if directory is not None:
                directory.release()
    fields = {} if outcome is None else outcome.record
    record = comm.bcast({name: value for name, value in fields.items() if name not in OF_ALL_MEMBERS})
    return outcome or RankOutcome(None, record, [EnsemblePlot() for _ in job.analyses])


def _make_place(job: Job, place: OutcomePlace) -> PairsDirectory | None:
    """Create the parent directory of the members' pairs; return it, locked, if the user named it."""
    folder = job.pairs or (None if place.claim is None else place.claim.pairs)
    directory = None if folder is None else PairsDirectory(folder)
    if directory is not None:
        directory.claim(members=True)
        if job.pairs is None:  # the output directory is locked
            directory.release()
    return directory


def _conclude(
    world: World,
    place: OutcomePlace,
    members: Sequence[Member],
    runs: Sequence[MemberRun],
    seconds: Mapping[str, float],
    started: float,
) -> RankOutcome:
    """Join the members' outcomes and write them. On the first rank."""
    job = place.job
    passed = [at for at, run in enumerate(runs) if run.error is None]
    if not passed and runs[0].error is not None:
        raise runs[0].error
    _warn(members, runs, job.earlier)
    owners = [members[at] for at in passed]
    by_label = {label: [runs[at].outcomes[i] for at in passed] for i, label in enumerate(place.labels)}
    outcomes = [join(label, owners, own, job.level) for label, own in by_label.items()]
    phases = {name: seconds[name] for name in PHASES}
    record = _ensemble_record(world, job, members, runs, started, phases)
    record |= {"warnings": list(place.warned), "analyses": with_groups(record["analyses"], job.level)}
    record["units"] = units(place.labels, outcomes)
    plots = [EnsemblePlot(owners, job.level) for _ in outcomes]
    if place.path is not None:
        staged = [file for run in runs for file in run.files] if job.features else []
        record["files"] = place.write(plots, outcomes, record, staged)
        if place.claim is not None and len(passed) == len(runs):
            shutil.rmtree(place.claim.pairs, ignore_errors=True)
    return RankOutcome(outcomes, record, list(plots), {members[at].name: runs[at] for at in passed})


def _warn(members: Sequence[Member], runs: Sequence[MemberRun], earlier: Mapping[str, Any] | None) -> None:
    """Pass on members' warnings; warn of members with the same frames or with content other than in `earlier`."""
    warned_names: dict[str, list[str]] = {}
    alike: dict[Any, list[str]] = {}
    fingerprints = {entry["name"]: entry.get("fingerprint") for entry in (earlier or {}).get("ensemble") or ()}
    changed: list[str] = []
    for member, run in zip(members, runs, strict=True):
        for text in run.warned:
            warned_names.setdefault(text, []).append(member.name)
        if run.error is None:
            fingerprint = run.record["dataset"]["fingerprint"]
            alike.setdefault((fingerprint, *member.choice.items()), []).append(member.name)
            if fingerprints.get(member.name, fingerprint) != fingerprint:
                changed.append(member.name)
    if changed:
        warned_names["the content is another than in the run that is repeated"] = changed
    for names in (names for names in alike.values() if len(names) > 1):
        warned_names.setdefault(f"these are the same frames, and count as {len(names)} members", []).extend(names)
    for text, names in warned_names.items():
        warnings.warn(f"{truncate(names)}: {text}", stacklevel=2)


def _ensemble_record(
    world: World,
    job: Job,
    members: Sequence[Member],
    runs: Sequence[MemberRun],
    started: float,
    phases: Mapping[str, float],
) -> Record:
    """Return the record of a run in which at least one member succeeded. On the first rank."""
    first: Mapping[str, Any] = {}
    paths, reasons, errors = list[str](), dict[str, None](), list[str]()
    totals: Record = {}
    atoms, fingerprint = 0, hashlib.sha256()
    for run in runs:
        if run.error is not None:
            errors.append(str(run.error))
            continue
        first, dataset = first or run.full_record or {}, run.record["dataset"]
        fingerprint.update(("\n" * bool(paths) + str(dataset["fingerprint"])).encode())
        paths += [dataset["path"]] if isinstance(dataset["path"], str) else dataset["path"]
        atoms = max(atoms, dataset["atoms"])
        reasons[run.record["reused"]["reason"]] = None
        _add(totals, {name: run.record[name] for name in SUMMED})
    topologies = dict.fromkeys(absolute(member.topology) for member in members if member.topology is not None)
    whole = time.time() - started
    seconds = {
        "startup": max(0.0, whole - sum(phases.values())),
        **phases,
        **dict.fromkeys(("total", "whole"), whole),
        **dict.fromkeys(("write", "draw"), 0.0),
    }
    return {
        **{name: value for name, value in first.items() if name not in OF_MEMBERS},
        **job.recorded(),
        **totals,
        "trajectory": [public_name(path) for member in members for path in member.trajectories],
        "topology": None if job.topology is None else public_name(job.topology),
        "pairs_directory": None if job.pairs is None else str(job.pairs),
        "dataset": Record(
            path=paths, frames=totals["dataset"]["frames"], atoms=atoms, fingerprint=fingerprint.hexdigest()
        ),
        "digests": {**first["digests"], **{path: content_digest(path) for path in topologies if os.path.isfile(path)}},
        "ensemble": [_member_record(*item) for item in zip(members, runs, strict=True)],
        "reused": {**totals["reused"], "reason": "; ".join(filter(None, list(reasons)[:3]))},
        "ranks": world.comm.size,
        "nodes": len(world.nodes),
        "seconds": seconds,
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


def _member_record(member: Member, run: MemberRun) -> Record:
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
