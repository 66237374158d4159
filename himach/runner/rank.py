"""What one rank does in a run, from opening the trajectory to writing the outcome, in the order of a frame's way.

`perform()` joins communicator, source, share and engine, which know nothing of each other.
"""

from __future__ import annotations

import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from himach.analysis import Analysis
from himach.engine import Memory, Work, run_pass
from himach.errors import UsageError
from himach.frame import POSITIONS, Needs
from himach.launch.memory import default_memory, scratch_directory
from himach.launch.stop_requests import StopRequests
from himach.opening.options import Job
from himach.output.record import Mpi, Record
from himach.parallel.collective import Meeting, is_everywhere, largest, on_every_rank, on_first_rank, warn_once
from himach.parallel.communicator import Communicator, World
from himach.parallel.progress import Progress
from himach.planning.observed import MembersSeen, observed
from himach.rows.tables import tables_of
from himach.runner.kept_pairs import files_of, keeper_of, kept_pairs, mapping_ends, not_kept
from himach.runner.outcome.methods_text import with_intervals
from himach.runner.outcome.outcomes import estimates_of, outcomes_of, record_of, units
from himach.runner.outcome.place import OutcomePlace, located, outcome_place
from himach.selection import Selected

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from MDAnalysis import Universe

    from himach.checkpoint.checkpoint_run import CheckpointRun
    from himach.checkpoint.opened_files import OpenedFiles
    from himach.engine import Passed
    from himach.io.dataset.source import Source
    from himach.io.dataset.writeback import Written
    from himach.io.server.served_store import ServedStore
    from himach.io.store.cached_frames import CachedFrames
    from himach.io.store.store import Store
    from himach.io.universe.view import View
    from himach.opening.dataset import Assemble, Opened
    from himach.opening.paths import Paths
    from himach.parallel.traffic import Traffic
    from himach.zazen.share import Share

    Steps = npt.NDArray[np.int64]
    Atoms = npt.NDArray[np.int64]

__all__ = ["Common", "Done", "assign_frames", "freed", "needed_atoms", "one_thread", "perform", "set_up", "stages"]

#: Of a digest of a file; where it could not be read, another word stands there.
DIGITS = 64
#: Stages of a chain, at most: more are the work of a `then` that makes new ones for ever.
MOST_STAGES = 1000


class _Closed(Protocol):
    def close(self) -> None: ...


@dataclass
class Done:
    """What a run gave, complete on rank 0.

    Attributes
    ----------
    outcomes
        One per analysis; None on other ranks.
    record
        See `himach.output.record`.
    last_stages
        The instances that drew up the outcomes, set up at this rank.
    members
        Of an ensemble, the outcomes of each member by its name, and what its record says.
    """

    outcomes: list[Any] | None
    record: Record
    last_stages: list[Analysis]
    members: Mapping[str, tuple[Sequence[Any], Mapping[str, Any]]] = field(default_factory=dict)


@dataclass
class Common:
    """What the runs of an ensemble's members have in common, so that a rank finds it once.

    Attributes
    ----------
    store
        The cache, and the bytes that it may hold.
    asked
        What the record of the first one says of the request; "dataset" is of that one alone.
    guarded
        Whether it is looked for what map() changes.
    seen
        What members took.
    """

    store: tuple[Store | ServedStore | None, int] = (None, 0)
    asked: dict[str, Any] = field(default_factory=dict)
    guarded: bool = True
    seen: MembersSeen = field(default_factory=MembersSeen)


def perform(
    world: World, job: Job, started: float, assemble: Assemble | None = None, common: Common | None = None
) -> Done:
    """Carry out `job` as one of the ranks of `world`.

    Parameters
    ----------
    world
        The ranks.
    job
        The same on every rank.
    started
        `time.time()` at which the user started the run.
    assemble
        See `himach.opening.dataset.OpenRequest`.
    common
        What the members of an ensemble share, on every rank of `world`; None: it is no member's run.

    Raises
    ------
    HimachError
        What went wrong, on the rank where it did, or on all of them (`himach.parallel.collective.is_everywhere`).
    """
    with outcome_place(world, job) as place:
        from himach.opening.dataset import open_frames

        chains = [stages(analysis) for analysis in job.analyses]
        since = started, time.time(), copy(world.traffic)
        opened = open_frames(world, job, assemble, (None, 0) if common is None else common.store)
        with freed(world.comm, opened), one_thread() if common is None else nullcontext():
            return _analyse(world, job, chains, opened, since, place, common)


def one_thread() -> AbstractContextManager[object]:
    """Let BLAS use one thread, as ranks that are started do: more give other last bits, by which ranks would show."""
    if "OMP_NUM_THREADS" in os.environ:
        return nullcontext()
    from threadpoolctl import threadpool_limits

    import himach.io.universe.view  # noqa: F401 (loads it)

    limits: AbstractContextManager[object] = threadpool_limits(1, "blas")
    return limits


def _analyse(
    world: World,
    job: Job,
    chains: Sequence[list[Analysis]],
    opened: Opened,
    since: tuple[float, float, Traffic],
    out: OutcomePlace,
    common: Common | None,
) -> Done:
    """Take the frames that are open through all methods of the analyses.

    Of `since`, the run began, their opening, and what this rank had done by MPI until then.
    """
    comm, (started, began, traffic) = world.comm, since
    from himach.opening.frame_steps import transform_of

    asked = _asked(world, job, opened, common)
    paths = on_every_rank(comm, partial(_paths, job, opened))
    files = files_of(comm, job, opened)
    views = on_every_rank(comm, partial(set_up, comm.rank, chains, opened, transform_of(job), files, job.member, paths))
    if files is not None:  # what setup() opened
        seen = {path: told for path, told in files.digests.items() if len(told) == DIGITS}
        asked["digests"] = {**seen, **asked["digests"]}
    with kept_pairs(world, job, out.path, out.labels, chains, views, opened, files) as kept:
        atoms = needed_atoms(views)
        looked: Mapping[str, int] = {}
        if paths is not None:
            atoms = paths.follow(atoms)
            looked = _count_jumps(world, opened, paths, kept, atoms)
        ready = time.time()
        share = assign_frames(world, opened, kept, atoms)
        assigned = time.time()
        with freed(comm, share), nullcontext() if paths is None else freed(comm, paths):
            guarded = common is None or common.guarded
            tools = (views, atoms, paths)
            passed, read = _map_and_reduce(world, job, chains, opened, tools, share, kept, out.quiet, started, guarded)
            read = {place: count + looked.get(place, 0) for place, count in read.items()}
        _say_empty(chains, opened.frames, passed.mapped)
        reduced = time.time()
        ends = [chain[-1] for chain in chains]
        team, tables = tables_of(
            world, out.labels, passed.rows, out.path is not None and job.member is None, _memory(job)
        )
        outcomes = team.lead(lambda: outcomes_of(ends, passed.results or [], tables))
        before = {"startup": ready - started, "zazen": assigned - ready}
        seconds = {**before, **passed.seconds, "finish": time.time() - reduced}
        seconds = largest(comm, {**seconds, "total": time.time() - started})
        seconds |= {"write": 0.0, "draw": 0.0, "whole": seconds["total"]}
        record = record_of(world, asked, share, kept, passed, read, seconds, (started, out.said))
        record["faulty"]["missing"] = len(job.select(opened.origin.n_frames)) - record["frames"]
        if common is None:
            record["planning"] = observed(world, passed, share, read, {**before, "opening": opened.at - started})
            record["mpi"] = cast(Mpi, largest(comm, asdict(world.traffic.since(traffic))))
        else:
            common.seen.add(passed.own, read, opened.at - began)
        record["units"] = on_first_rank(comm, lambda: units(out.labels, outcomes)) or {}
        told = team.lead(lambda: estimates_of(out.labels, outcomes, job))
        if job.confidence != "off":
            record["uncertainty"] = told or {}
        record["analyses"] = with_intervals(record["analyses"], out.labels, told or {})
        if job.live is not None:
            record["live"] = dict(job.live)
        if out.path is not None:
            record["files"] = team.lead(partial(out.write, ends, outcomes or [], record)) or []
        team.close()
    return Done(outcomes, record, ends)


def _paths(job: Job, opened: Opened) -> Paths | None:
    """Return what follows atoms, if they are followed."""
    if not job.nojump:
        return None
    from himach.opening.paths import Paths

    return Paths(job, opened)


def _count_jumps(
    world: World, opened: Opened, paths: Paths, kept: CheckpointRun | None, atoms: Atoms | None
) -> Mapping[str, int]:
    """Count how atoms jump between all frames up to the last that is to be mapped; return what was read (collective).

    What is read of the origin stays in the cache, from where the pass takes it.
    """
    n_steps = len(opened.frames)
    if kept is not None and kept.found.remaining is not None:
        ends = kept.found.remaining.ends
        n_steps = int(ends[-1]) if len(ends) else 0
    source = _source(world, opened, Needs(atoms, POSITIONS))
    keep = False
    try:
        paths.count(world, source, n_steps)
        keep = True
    finally:
        source.close(keep)
    return _read_of(source)


def _read_of(source: Source) -> Mapping[str, int]:
    return {"cache": source.bytes_cache, "origin": source.bytes_origin, "damaged": source.damaged}


def _source(world: World, opened: Opened, needs: Needs) -> Source:
    """Return where this rank's frames come from."""
    from himach.io.dataset.lookup import server_of
    from himach.io.dataset.source import Source

    keep, server = opened.quota > 0, server_of(opened.cached)
    return Source(
        opened.origin, opened.cached, keep, server, needs, opened.watch, world.node.size, first=opened.frames[0]
    )


def _asked(world: World, job: Job, opened: Opened, common: Common | None) -> dict[str, Any]:
    """Return what the record says of the request (collective)."""
    from himach.runner.outcome.run_record import asked_for, dataset_of
    from himach.runner.outcome.system import system_record

    system = on_first_rank(world.comm, partial(system_record, opened), share=True)
    if common is not None and common.asked:
        return {**common.asked, "dataset": dataset_of(opened), "system": system}
    asked = on_first_rank(world.comm, partial(asked_for, job, opened, world.library()), share=True)
    if common is not None:
        common.asked = asked
    return {**asked, "system": system}


def stages(analysis: Analysis) -> list[Analysis]:
    """Return the analysis and those that follow by `then`."""
    chain = [analysis]
    begun = {id(analysis)}
    while (stage := chain[-1].next_stage()) is not None:
        # One class may be in several stages, each an instance with a `then` of its own; a `then` that comes back, class
        # or instance, goes round for ever.
        then = id(chain[-1].then)
        if then in begun or len(chain) == MOST_STAGES:
            raise UsageError(f"{analysis.label()}: its stages come back to {stage.label()}; a chain must end")
        begun.add(then)
        chain.append(stage)
    rows = len(chain) == 1 and analysis.yields_rows()
    needed = [(chain[0], "map"), *((stage, "reduce") for stage in chain if not rows)]
    for stage, method in needed:
        if not stage.defines(method) and not (method == "reduce" and stage.defines("reduce_blocks")):
            raise UsageError(f"{stage.label()} has no {method}(): every analysis needs one")
    return chain


def set_up(
    rank: int,
    chains: Sequence[Sequence[Analysis]],
    opened: Opened,
    transform: Callable[[Universe], None] | None,
    files: OpenedFiles | None = None,
    member: str | None = None,
    paths: Paths | None = None,
) -> list[View]:
    """Give every analysis its own Universe and call setup(); return what binds frames to each."""
    from himach.io.universe.view import View

    views: list[View] = []
    dt = opened.dt
    for i, chain in enumerate(chains):
        view = View(
            opened.topology,
            opened.origin,
            opened.frames,
            opened.first,
            name=chain[0].label(),
            copy=i > 0,
            transform=transform,
            member=member,
            finite=any(kind.__module__.startswith("himach.examples.") for kind in type(chain[0]).__mro__),
            follow=None if paths is None else partial(paths.positions_at, opened),
        )
        for stage in chain:
            stage.__dict__.update(frames=opened.frames, dt=dt, **({} if member is None else {"member": member}))
            try:
                stage.select_groups(view.universe)
            except UsageError as error:
                raise UsageError(f"{stage.label()}: {error}") from error
            with located(stage, "setup", rank), nullcontext() if files is None else files.looking():
                stage.setup(view.universe)
        if chain[0].defines("atoms"):
            with located(chain[0], "atoms", rank):
                # As the class has it: setup() may have an attribute of that name.
                view.ask(type(chain[0]).atoms(chain[0], view.universe))
        view.settle()
        views.append(view)
    return views


def assign_frames(world: World, opened: Opened, kept: CheckpointRun | None, atoms: Atoms | None = None) -> Share:
    """Agree with all nodes who reads which frame, of those that are to be mapped; `atoms` of them, None: all."""
    from himach.io.dataset.subsets import readable
    from himach.zazen import assign

    held = None if world.leaders is None else readable(opened.cached, atoms, opened.origin)
    origin, whole = opened.origin.present, not opened.pushed
    frames = opened.frames if kept is None or kept.found.remaining is None else kept.found.remaining
    return on_every_rank(world.comm, lambda: assign(world, held, frames, origin=origin, whole=whole))


@contextmanager
def freed(comm: Communicator, shared: _Closed) -> Iterator[None]:
    """Free what the ranks of a node share, also where all of them fail: a process may run again, with less memory."""
    try:
        yield
    except BaseException as error:
        if comm.size == 1 or is_everywhere(error):
            shared.close()
        raise
    shared.close()


def _map_and_reduce(
    world: World,
    job: Job,
    chains: Sequence[Sequence[Analysis]],
    opened: Opened,
    tools: tuple[Sequence[View], Atoms | None, Paths | None],
    share: Share,
    kept: CheckpointRun | None,
    quiet: bool,
    started: float,
    guarded: bool,
) -> tuple[Passed, Mapping[str, int]]:
    """Take every frame of this rank through map(), all pairs through reduce().

    Returns
    -------
    tuple
        What the pass gave, and the bytes read, by place, with the copies in the cache that were damaged.
    """
    from himach.io.dataset.origin_watch import OriginChangedError

    comm, frames, (views, atoms, paths) = world.comm, opened.frames, tools
    source = _source(world, opened, Needs(atoms, POSITIONS))
    binds = [partial(view.bind, late=source.late) for view in views]
    memory = Memory(_memory(job) // world.node.size, scratch_directory())
    memory.warn = partial(warnings.warn, stacklevel=2)
    if job.out is None or job.member is not None:  # the first rank is to have the whole of it
        memory.table = _memory(job)
    total = sum(share.counts.values())
    with Progress(comm, total, sys.stderr, quiet=quiet) as display:
        meeting = Meeting(
            comm, None if job.member is None else math.inf
        )  # other members follow, so nobody leaves alone
        keeper = None if kept is None else keeper_of(job, kept, comm, total, source, memory.limit, started)
        ends = mapping_ends(job.max_time, started)
        requests = StopRequests(ends, source.hurry if keeper is None else keeper.hurry, comm=comm)
        if keeper is not None:
            meeting.meanwhile = keeper.look

        def look() -> None:
            meeting.look()
            meeting.meanwhile()

        def wait() -> None:
            for view in views:
                view.go_back()
            display.finish(look)

        work = Work(
            frames=frames,
            take=partial(_take, share, source),
            read=source.read if paths is None else partial(paths.read, source),
            bind=binds,
            progress=meeting.watched(display),
            wait=wait,
            universes=[view.universe for view in views],
            guarded=guarded,
        )
        keep, well = True, False
        try:
            with requests, nullcontext() if keeper is None else keeper.heeding(requests):
                passed = run_pass(world, chains, work, meeting.together, memory, keeper)
            well = True
        except OriginChangedError:
            keep = False
            raise
        finally:
            written = source.close(keep)
            if keeper is not None:
                keeper.close(well)
    opened.close()
    if keeper is not None:
        warn_once(comm, not_kept(kept, keeper))
    _settle(world, opened.cached, share, written)
    warn_once(comm, [source.lost] if source.lost else [])
    return passed, _read_of(source)


def _say_empty(chains: Sequence[Sequence[Analysis]], frames: Selected, mapped: Sequence[int]) -> None:
    """Warn of each map() that yielded nothing at all; only the first rank's warnings are shown."""
    for chain, pairs in zip(chains, mapped, strict=True):
        if not pairs:
            of = "the frame" if len(frames) == 1 else f"any of the {len(frames)} frames"
            warnings.warn(f"{chain[0].label()}: map() yielded nothing in {of}, so there are no results", stacklevel=2)


def needed_atoms(views: Sequence[View]) -> Atoms | None:
    """Return the atoms that any analysis needs, ascending; None for all."""
    import numpy as np

    some = [view.needs for view in views if view.needs is not None]
    if len(some) < len(views):
        return None
    # Of one there is no need of numpy.unique(), which imports numpy.ma.
    union = some[0].copy() if len(some) == 1 else np.unique(np.concatenate(some))
    union.flags.writeable = False
    return union


def _settle(world: World, cached: CachedFrames | None, share: Share, written: Written) -> None:
    """Drop the copies that other nodes' make superfluous, and say what could not be kept."""
    from himach.io.store.store import Dataset, StoreError

    if isinstance(cached, Dataset) and world.leaders is not None:
        with suppress(StoreError):  # they are surplus in the next run, too
            for numbers in share.surplus():
                cached.drop(numbers)
    reasons = []
    skipped = world.comm.allreduce(written.skipped)
    if written.skipped:
        why = (
            written.reason or "it would have held up the analysis; later runs keep them, or `himach stage` all at once"
        )
        reasons.append(f"{skipped} frames were not kept in the cache: {why} (node {world.name})")
    warn_once(world.comm, reasons)


def _take(share: Share, source: Source) -> Steps | None:
    """Take the next task; after the last one, see that what was read is still so."""
    steps = share.take()
    if steps is None:
        source.confirm()
    return steps


def _memory(job: Job) -> int:
    return int(job.memory or default_memory())
