"""Run of one rank, from opening the trajectory to writing the outcome: `perform()`."""

import math
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.analysis import Analysis
from himach.checkpoint.checkpoint_writer import CheckpointWriter
from himach.engine import Passed, RankFrames, run_pass
from himach.io.datasets.origin_stamp import OriginChangedError
from himach.io.datasets.source import Source
from himach.io.datasets.writeback import WriteResult
from himach.io.store.store import Dataset, StoreError
from himach.output.record import Record
from himach.planning.observation import observation
from himach.ranks.collective import (
    Meeting,
    is_everywhere,
    largest,
    on_first_rank,
    ranks_apart,
    warn_once,
)
from himach.ranks.communicator import Communicator, World
from himach.ranks.launch.stop_requests import StopRequests
from himach.ranks.progress import Progress
from himach.ranks.quiet import log_detail
from himach.rows.tables import gather_tables, lead
from himach.runner.kept_pairs import kept_pairs
from himach.runner.methods_text import with_intervals
from himach.runner.options import Job, mapping_deadline
from himach.runner.place import finish_all, outcome_place
from himach.runner.rank_run import EnsembleContext, RankRun
from himach.runner.run_record import dataset_record, readable, request_record, system_record, times_record

Atoms = npt.NDArray[np.int64]


@dataclass
class RankOutcome:
    """Result of a run, complete on rank 0."""

    outcomes: list[Any] | None  # one per analysis; None on other ranks
    record: Record
    last_stages: list[Analysis]  # the instances that made the outcomes, set up on this rank
    members: Mapping[str, Iterable[Any]] = field(default_factory=dict)  # by name, (outcomes, record)


def perform(world: World, job: Job, started: float, common: EnsembleContext | None = None) -> RankOutcome:
    """Run `job` as one of the ranks of `world`."""
    comm = world.comm
    with outcome_place(world, job) as place:
        run = RankRun.open(world, job, common, started)
        run.place = place
        with closing_collectively(comm, run.opened), one_thread() if common is None else nullcontext():
            log_detail(comm.rank, f"opened {len(run.opened.frames)} frames in {time.time() - run.opening:.2f} s")
            request = _request_fields(run)
            run.set_up()
            if run.files is not None:  # files that setup() opened
                request["digests"] = {**readable(run.files.digests), **request["digests"]}
            mapped = [(chain[0], view) for chain, view in zip(run.chains, run.views, strict=True)]
            with kept_pairs(comm, job, run.opened, place, run.files, mapped) as run.checkpoint:
                passed, read, seconds = _pass(run)
                with ranks_apart(comm):
                    return _conclude(run, passed, read, request, seconds)


def _request_fields(run: RankRun) -> dict[str, Any]:
    """Return the record's fields about the request (collective)."""
    world, job, opened = run.world, run.job, run.opened
    system = on_first_rank(world.comm, partial(system_record, opened), share=True)
    make = partial(request_record, job, opened, world.library())
    run.common.request = run.common.request or on_first_rank(world.comm, make, share=True)
    return {**run.common.request, "dataset": dataset_record(opened), "system": system}


def _pass(run: RankRun) -> tuple[Passed, Counter[str], dict[str, float]]:
    """Assign, map and reduce the frames; return the results, the bytes that were read, and seconds (collective)."""
    comm = run.world.comm
    read = _count_jumps(run)
    ready = time.time()
    share = run.assign()
    seconds = {"startup": ready - run.started, "zazen": time.time() - ready}
    counts = ", ".join(f"{number} {kind}" for kind, number in share.counts.items())
    log_detail(comm.rank, f"assigned frames: {counts}; {seconds['startup']:.2f} s after the start")
    with ranks_apart(comm):
        passed, source = _map_and_reduce(run)
    log_detail(comm.rank, f"mapped and reduced, {time.time() - run.started:.2f} s after the start")
    span = "the frame" if len(run.opened.frames) == 1 else f"any of the {len(run.opened.frames)} frames"
    for chain, pairs in zip(run.chains, passed.mapped, strict=True):
        if not pairs:
            warnings.warn(f"{chain[0].label()}: map() yielded nothing in {span}, so there are no results", stacklevel=2)
    return passed, read + _read_counts(source), seconds


def _count_jumps(run: RankRun) -> Counter[str]:
    """Count jumps of atoms up to the last frame to map, caching what is read; return read counts (collective)."""
    if run.paths is None:
        return Counter()
    run.atoms = run.paths.follow(run.atoms)
    n_steps = len(run.opened.frames)
    if run.checkpoint is not None and run.checkpoint.plan.remaining is not None:
        stops = run.checkpoint.plan.remaining.stops
        n_steps = int(stops[-1]) if len(stops) else 0
    source = run.source()
    keep = False
    try:
        run.paths.count(run.world, source, n_steps)
        keep = True
    finally:
        source.close(keep)
    return _read_counts(source)


def _read_counts(source: Source) -> Counter[str]:
    return Counter(cache=source.bytes_cache, origin=source.bytes_origin, damaged=source.damaged)


def _map_and_reduce(run: RankRun) -> tuple[Passed, Source]:
    comm, job, source = run.world.comm, run.job, run.source()
    memory = run.pass_memory()
    memory.warn = partial(warnings.warn, stacklevel=2)
    with Progress(comm, sum(run.share.counts.values()), sys.stderr, quiet=run.place.quiet) as display:
        # More members follow, so no rank may leave alone.
        meeting = Meeting(comm, None if job.member is None else math.inf)
        writer = run.make_writer(source, memory.limit)
        if writer is not None:
            meeting.while_waiting = writer.exit_if_requested
        hurry = source.hurry if writer is None else writer.hurry
        requests = StopRequests(mapping_deadline(job.max_time, run.started), hurry, comm=comm)
        work = _work(run, source, display, meeting)
        keep = True
        try:
            with requests, nullcontext() if writer is None else writer.saving_on_stop(requests):
                passed = run_pass(run.world, run.chains, work, meeting.together, memory, writer)
        except OriginChangedError:
            keep = False
            raise
        finally:
            written = source.close(keep)
    _close_frames(run, writer, written)
    warn_once(comm, [source.lost] if source.lost else [])
    return passed, source


def _work(run: RankRun, source: Source, display: Progress, meeting: Meeting) -> RankFrames:
    def poll() -> None:
        meeting.poll()
        meeting.while_waiting()

    def wait() -> None:
        for view in run.views:
            view.go_back()
        display.finish(poll)

    def take() -> npt.NDArray[np.int64] | None:
        steps = run.share.take()
        if steps is None:  # the origin must not have changed while it was read
            source.confirm()
        return steps

    return RankFrames(
        frames=run.opened.frames,
        take=take,
        read=source.read if run.paths is None else partial(run.paths.read, source),
        bind=[partial(view.bind, copy=i > 0) for i, view in enumerate(run.views)],  # they share the frame
        progress=meeting.watched(display),
        wait=wait,
        universes=[view.universe for view in run.views],
        guarded=run.common.guarded,
    )


def _close_frames(run: RankRun, writer: CheckpointWriter | None, written: WriteResult) -> None:
    """Close the frames, drop copies that other nodes have, too, and warn of frames that could not be kept."""
    world, cached = run.world, run.opened.cached
    run.opened.close()
    if writer is not None and run.checkpoint is not None:
        reason = f"not all pairs of this run are kept in {run.checkpoint.directory.path}: {writer.reason}"
        warn_once(world.comm, [reason] if writer.reason else [])
    if isinstance(cached, Dataset) and world.leaders is not None:
        with suppress(StoreError):  # the next run can drop them
            for numbers in run.share.surplus():
                cached.drop(numbers)
    skipped = world.comm.allreduce(written.skipped)
    why = written.reason or "it would have held up the analysis; later runs keep them, or `himach stage` all at once"
    reason = f"{skipped} frames were not kept in the cache: {why} (node {world.name})"
    warn_once(world.comm, [reason] if written.skipped else [])


def _conclude(
    run: RankRun, passed: Passed, read: Mapping[str, int], request: Mapping[str, Any], earlier: Mapping[str, float]
) -> RankOutcome:
    """Make the outcomes, their uncertainties and the record, and write them all (collective)."""
    world, job, place, reduced = run.world, run.job, run.place, time.time()
    comm, planning = world.comm, {}
    spread = place.path is not None and job.member is None
    tables = gather_tables(world, place.labels, passed.rows, spread, run.memory)
    finish: Callable[[], tuple[list[Any] | None, Record, Record] | None] = partial(
        finish_all, run.last_stages, passed.results or [], tables, place
    )
    outcomes, columns, estimates = lead(comm, finish) or (None, {}, {})
    seconds = {**earlier, **passed.seconds, "finish": time.time() - reduced}
    seconds = largest(comm, {**seconds, "total": time.time() - run.started})
    if job.member is None:
        opening = {**earlier, "opening": run.opened.at - run.started}
        planning["planning"] = observation(world, passed, run.share, read, opening)
    record = {
        **request,
        "analyses": request["analyses"] if job.member else with_intervals(request["analyses"], place.labels, estimates),
        "units": columns,
        **planning,
        **({} if job.confidence == "off" else {"uncertainty": estimates}),
        **({} if job.live is None else {"live": dict(job.live)}),
        **_statistics(run, passed, read, seconds),
    }
    if place.path is not None:
        record["files"] = lead(comm, partial(place.write, run.last_stages, outcomes or [], record)) or []
    return RankOutcome(outcomes, record, run.last_stages)


def _statistics(run: RankRun, passed: Passed, read: Mapping[str, int], seconds: Mapping[str, float]) -> Record:
    """Return the record's fields about what the run did (collective)."""
    world, share, kept = run.world, run.share, run.checkpoint
    read_by_all = world.total(np.array([read[kind] for kind in ("cache", "origin", "damaged")], np.int64))
    cache, origin, damaged = read_by_all.tolist()
    warned = run.place.warned  # the record shares this list: later warnings get in
    warned += [text for text in world.comm.allreduce(list(warned), _texts) if text not in warned]
    reused, reason = (0, "") if kept is None else (kept.plan.reused, kept.reason)
    frames = sum(share.counts.values()) + reused
    missing = len(run.job.select(run.opened.origin.n_frames, run.opened.origin.times)) - frames
    return Record(
        frames=frames,
        faulty=Record(damaged=damaged, missing=missing),
        reused=Record(frames=reused, reason=reason),
        ranks=world.comm.size,
        nodes=len(world.nodes),
        assignment=share.counts,
        bytes=Record(cache=cache, origin=origin, shuffled=passed.shuffled),
        seconds={**seconds, "write": 0.0, "draw": 0.0, "whole": seconds["total"]},
        pairs=passed.pairs,
        errors=[],
        warnings=warned,
        **times_record(run.started),
    )


def _texts(first: list[str], second: list[str]) -> list[str]:
    return list(dict.fromkeys([*first, *second]))


def one_thread() -> AbstractContextManager[object]:
    """Limit BLAS to one thread, as in started ranks: more threads change last bits, so results would depend on it."""
    if "OMP_NUM_THREADS" in os.environ:
        return nullcontext()
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[object] = threadpool_limits(1, "blas")
    return limits


@contextmanager
def closing_collectively(comm: Communicator, shared: Any) -> Iterator[None]:
    """Free what a node's ranks share, even if all fail: the process may run again and would have less memory."""
    try:
        yield
    except BaseException as error:
        if comm.size == 1 or is_everywhere(error):
            shared.close()
        raise
    shared.close()
