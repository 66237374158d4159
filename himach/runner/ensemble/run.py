"""A run over an ensemble: `perform()` runs each member by itself and joins the outcomes."""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from himach.checkpoint.directory import PairsDirectory
from himach.errors import UsageError
from himach.opening.member import Member, read_members, truncate
from himach.opening.node_store import open_store
from himach.opening.options import Job
from himach.output.record import Record
from himach.planning.observation import member_observation
from himach.ranks.collective import on_first_rank
from himach.ranks.communicator import World
from himach.runner.ensemble.join import join
from himach.runner.ensemble.member_run import MemberRun, MemberRunner, each_member
from himach.runner.ensemble.plot import EnsemblePlot
from himach.runner.ensemble.record import PHASES, ensemble_record
from himach.runner.outcome.methods_text import with_groups
from himach.runner.outcome.place import LEVEL, OutcomePlace, outcome_place, units
from himach.runner.rank_run import EnsembleContext, RankOutcome, stages

Runs = Mapping[int, MemberRun]


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
            common.times.began = time.time() - started
            runs = each_member(world, job, members, runner.run, place.quiet)
            planning = member_observation(world, common.times)
            phases = {name: sum(run.record["seconds"][name] for run in runs.values() if run.record) for name in PHASES}
            gathered = comm.gather((runs, phases))
            outcome = on_first_rank(comm, partial(_conclude, world, place, members, gathered, planning, started))
        finally:
            if directory is not None:
                directory.release()
    record = comm.bcast(None if outcome is None else outcome.record)
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
    gathered: Sequence[tuple[Runs, Mapping[str, float]]],
    planning: Record,
    started: float,
) -> RankOutcome:
    """Join the members' outcomes and write them. On the first rank."""
    job = place.job
    runs = [run for _, run in sorted((at, run) for own, _ in gathered for at, run in own.items())]
    failed = [run.error for run in runs if run.error is not None]
    if len(failed) == len(runs):
        raise failed[0]
    passed = [(member, run.outcomes) for member, run in zip(members, runs, strict=True) if run.error is None]
    _warn(members, runs, job.earlier)
    level = None if job.confidence == "off" else float(job.confidence or LEVEL)
    owners = [member for member, _ in passed]
    outcomes = [join(label, owners, [values[i] for _, values in passed], level) for i, label in enumerate(place.labels)]
    phases = {name: max(seconds[name] for _, seconds in gathered) for name in PHASES}
    record = ensemble_record(world, job, members, runs, started, phases)
    record = {
        **record,
        "warnings": list(place.warned),
        "analyses": with_groups(record["analyses"], map(stages, job.analyses), level),
        "units": units(place.labels, outcomes),
        "planning": planning,
    }
    plots = [EnsemblePlot.of(owners, level) for _ in outcomes]
    if place.path is not None:
        staged = [file for run in runs for file in run.files]
        record["files"] = place.write(plots, outcomes, record, staged)
        if place.claim is not None and not failed:
            shutil.rmtree(place.claim.pairs, ignore_errors=True)
    return RankOutcome(
        outcomes, record, list(plots), {run.name: (run.outcomes, run.record) for run in runs if run.error is None}
    )


def _warn(members: Sequence[Member], runs: Sequence[MemberRun], earlier: Mapping[str, Any] | None) -> None:
    """Pass on members' warnings; warn of members with the same frames or with content other than in `earlier`."""
    warned_names: dict[str, list[str]] = {}
    for run in runs:
        for text in run.warned:
            warned_names.setdefault(text, []).append(run.name)
    alike: dict[Any, list[str]] = {}
    fingerprints = {entry["name"]: entry.get("fingerprint") for entry in (earlier or {}).get("ensemble") or ()}
    for member, run in zip(members, runs, strict=True):
        if run.error is None:
            fingerprint = run.record["dataset"]["fingerprint"]
            alike.setdefault((fingerprint, *member.choice.items()), []).append(run.name)
            if fingerprints.get(run.name, fingerprint) != fingerprint:
                warned_names.setdefault("the content is another than in the run that is repeated", []).append(run.name)
    for names in alike.values():
        if len(names) > 1:
            warned_names.setdefault(f"these are the same frames, and count as {len(names)} members", []).extend(names)
    for text, names in warned_names.items():
        warnings.warn(f"{truncate(names)}: {text}", stacklevel=2)
