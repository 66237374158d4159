"""Run of one rank, from opening the trajectory to writing the outcome: `perform()`; `RankRun` is its state."""

from __future__ import annotations

import math
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from himach.analysis import Analysis
from himach.engine import Memory, Passed, RankFrames, run_pass
from himach.errors import UsageError
from himach.frame import POSITIONS
from himach.io.datasets.frame_steps import Paths, universe_transform
from himach.io.datasets.opening import OpenFrames, open_frames, open_store
from himach.io.datasets.origin_stamp import OriginChangedError
from himach.io.datasets.source import Source
from himach.io.datasets.subsets import open_readable
from himach.io.datasets.writeback import WriteResult
from himach.io.frame_source import ReadOptions
from himach.io.server.survey import ServedStore
from himach.io.store.store import Dataset, Store, StoreError
from himach.io.trajectories.urls.names import public_name
from himach.io.universe.view import View
from himach.output.record import Record
from himach.planning.observation import MemberTimes, observation
from himach.ranks.collective import (
    Meeting,
    is_everywhere,
    largest,
    on_first_rank,
    ranks_apart,
    run_collectively,
    warn_once,
)
from himach.ranks.communicator import Communicator, World
from himach.ranks.launch.memory import default_memory, scratch_directory
from himach.ranks.launch.stop_requests import StopRequests
from himach.ranks.progress import Progress
from himach.ranks.quiet import log_detail
from himach.rows.tables import gather_tables, lead
from himach.runner.index_groups import name_groups, read_groups
from himach.runner.kept_pairs import kept_pairs, unrequested_keep_time
from himach.runner.methods_text import with_intervals
from himach.runner.options import Job, mapping_deadline, stages
from himach.runner.place import OutcomePlace, finish_all, located, outcome_place
from himach.runner.run_record import dataset_record, readable, request_record, system_record, times_record
from himach.staging.assembly.assemble import assemble_for_run
from himach.zazen import assign
from himach.zazen.node_frames import Share

if TYPE_CHECKING:
    from himach.checkpoint.checkpoint_writer import CheckpointWriter
    from himach.checkpoint.reuse import CheckpointRun
    from himach.checkpoint.sources import OpenedFiles

Atoms = npt.NDArray[np.int64]


@dataclass
class RankOutcome:
    """Result of a run, complete on rank 0."""

    outcomes: list[Any] | None  # one per analysis; None on other ranks
    record: Record
    last_stages: list[Analysis]  # the instances that made the outcomes, set up on this rank
    members: Mapping[str, Iterable[Any]] = field(default_factory=dict)  # by name, (outcomes, record)


@dataclass
class EnsembleContext:
    """State that the runs of an ensemble's members share, so that a rank determines it once."""

    store: tuple[Store | ServedStore | None, int] | None = None  # the cache and its quota in bytes
    request: dict[str, Any] = field(default_factory=dict)  # request fields of the first member's record
    guarded: bool = True  # whether to check what map() changes
    times: MemberTimes = field(default_factory=MemberTimes)


@dataclass
class RankRun:
    """State of a run on one rank; fields are in the order in which they are set."""

    world: World
    job: Job
    opened: OpenFrames
    chains: list[list[Analysis]]  # each analysis with its later stages
    opening: float  # time at which opening the frames began
    common: EnsembleContext
    started: float = 0.0  # when the user started the run
    place: OutcomePlace = field(init=False)  # where the outcome goes; a dry run has none
    files: OpenedFiles | None = None  # records the files that analyses open; None if no pairs are kept
    paths: Paths | None = None  # follows atoms, if NoJump is requested
    views: list[View] = field(default_factory=list)  # bind frames to each analysis
    atoms: Atoms | None = None  # atoms that any analysis needs, ascending; None for all
    checkpoint: CheckpointRun | None = None  # pairs of earlier runs and of this one
    share: Share = field(init=False)  # frames that the ranks of this node read; set by `assign`

    @classmethod
    def open(cls, world: World, job: Job, common: EnsembleContext | None = None, started: float = 0.0) -> RankRun:
        """Open the frames of a job after assembling pushed slices (collective)."""
        chains = [stages(analysis) for analysis in job.analyses]
        opening, common = time.time(), common or EnsembleContext()
        store = common.store
        if job.universe_input is None or job.universe_input.frames is None:  # else frames are in memory
            store = store or open_store(world.comm, job.cache)
            warn_once(world.comm, assemble_for_run(world, store[0], job))
        return cls(world, job, open_frames(world, job, store), chains, opening, common, started)

    @property
    def last_stages(self) -> list[Analysis]:
        """Last stage of each analysis, which makes its outcome."""
        return [chain[-1] for chain in self.chains]

    @property
    def memory(self) -> int:
        """Bytes that pairs may take on this node."""
        return int(self.job.memory or default_memory())

    def pass_memory(self) -> Memory:
        """Return the memory limit of this rank's pairs, and the directory for the rest."""
        memory = Memory(self.memory // self.world.node.size, scratch_directory())
        if self.job.out is None or self.job.member is not None:  # the first rank holds the whole table
            memory.table = self.memory
        return memory

    def source(self) -> Source:
        """Return the source of this rank's frames."""
        opened, options, ranks = self.opened, ReadOptions(self.atoms, POSITIONS), self.world.node.size
        keep, first = opened.quota > 0, opened.frames[0]
        return Source(opened.origin, opened.cached, keep, options, opened.watch, ranks, first=first)

    def set_up(self) -> None:
        """Give every analysis its own Universe and call setup() (collective)."""
        comm = self.world.comm
        if self.job.transform_options.nojump:
            self.paths = run_collectively(comm, partial(Paths, self.job, self.opened))
        if comm.bcast(self.job.keeps):
            from himach.checkpoint.sources import OpenedFiles

            topology = [] if self.job.topology is None else [public_name(self.job.topology)]
            self.files = OpenedFiles([*self.opened.origin.paths, *topology])
            self.files.digests.update(self.job.loaded)
        groups: dict[str, list[int]] = {}
        if self.job.index is not None:  # read once, as it may be written meanwhile
            groups = on_first_rank(comm, partial(read_groups, self.job.index), share=True)
        self.views = run_collectively(comm, lambda: [self._set_up(chain, groups) for chain in self.chains])
        self.atoms = needed_atoms(self.views)

    def _set_up(self, chain: Sequence[Analysis], groups: Mapping[str, list[int]]) -> View:
        """Set up an analysis and its later stages; return the view that binds frames to it."""
        first, opened, member = chain[0], self.opened, self.job.member
        view = View(
            opened.copy_topology(),
            opened.origin,
            opened.frames,
            opened.first,
            name=first.label(),
            member=member,
            finite=any(kind.__module__.startswith("himach.examples.") for kind in type(first).__mro__),
            follow=None if self.paths is None else partial(self.paths.positions_at, opened),
        )
        if self.job.index is not None:
            name_groups(view.universe, self.job.index, groups)
        if (transform := universe_transform(self.job)) is not None:
            view.transform(transform)
        for stage in chain:
            stage.__dict__.update(frames=opened.frames, dt=opened.dt, **({} if member is None else {"member": member}))
            try:
                stage.select_groups(view.universe)
            except UsageError as error:
                raise UsageError(f"{stage.label()}: {error}") from error
            watching = nullcontext() if self.files is None else self.files.recording()
            with located(stage, "setup", self.world.comm.rank), watching:
                stage.setup(view.universe)
        if first.defines("atoms"):
            with located(first, "atoms", self.world.comm.rank):
                # Take the method from the class: setup() may set an attribute of that name.
                view.ask(type(first).atoms(first, view.universe))
        view.detach()
        return view

    def make_writer(self, source: Source, memory: int) -> CheckpointWriter | None:
        """Return the writer of this rank's pairs, which may take so many bytes; None if none are kept."""
        if self.checkpoint is None:
            return None
        from himach.checkpoint.checkpoint_writer import CheckpointWriter

        lasts, start = self.checkpoint.request.lasting, unrequested_keep_time(self.job, self.started)
        total, delay = sum(self.share.counts.values()), 0.0 if lasts else max(0.0, start - time.time())
        return CheckpointWriter(self.checkpoint, self.world.comm, total, source, memory, delay)

    def assign(self) -> Share:
        """Assign the frames to map to their readers, in agreement with all nodes."""
        world, opened, kept = self.world, self.opened, self.checkpoint
        cached = None if world.leaders is None else opened.cached
        stored = None if cached is None else open_readable(cached, self.atoms, opened.origin.n_atoms)
        frames = opened.frames if kept is None or kept.plan.remaining is None else kept.plan.remaining
        origin, whole = opened.origin.present, not opened.pushed
        self.share = run_collectively(world.comm, lambda: assign(world, stored, frames, origin=origin, whole=whole))
        return self.share


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
        keep, succeeded = True, False
        try:
            with requests, nullcontext() if writer is None else writer.saving_on_stop(requests):
                passed = run_pass(run.world, run.chains, work, meeting.together, memory, writer)
            succeeded = True
        except OriginChangedError:
            keep = False
            raise
        finally:
            written = source.close(keep)
            if writer is not None:
                writer.close(succeeded)
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
    else:  # the ensemble's record has the times of all members
        run.common.times.add(passed.own, read, run.opened.at - run.opening)
    record = {
        **request,
        "analyses": with_intervals(request["analyses"], place.labels, estimates),
        "units": columns,
        **planning,
        **({} if job.confidence == "off" else {"uncertainty": estimates}),
        **({} if job.live is None else {"live": dict(job.live)}),
        **_statistics(run, passed, read, seconds),
    }
    if place.path is not None:
        record["files"] = lead(comm, partial(place.write, run.last_stages, outcomes or [], record)) or []
    for store in passed.rows:
        if store is not None:
            store.close()
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


def needed_atoms(views: Sequence[View]) -> Atoms | None:
    """Return the atoms that any analysis needs, ascending; None for all."""
    needs = [view.needs for view in views if view.needs is not None]
    if len(needs) < len(views):
        return None
    # A single array needs no numpy.unique(), which imports numpy.ma.
    union = needs[0].copy() if len(needs) == 1 else np.unique(np.concatenate(needs))
    union.flags.writeable = False
    return union


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
