"""What one rank does in a run, from opening the trajectory to writing the outcome, in the order of a frame's way.

`perform()` joins communicator, source, share and engine, which know nothing of each other.
"""

from __future__ import annotations

import math
import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from himach.analysis import Analysis
from himach.engine import Memory, Work, run_pass
from himach.errors import UsageError
from himach.frame import POSITIONS, Needs
from himach.launch.memory import default_memory, scratch_directory
from himach.launch.stop_requests import StopRequests
from himach.opening.options import Job
from himach.output.parts import uneven_parts, units_of
from himach.output.record import Bytes, Record, Reused, Times, Uncertainty
from himach.output.table import Table, default_outcome, row_table
from himach.parallel.collective import Meeting, is_everywhere, on_every_rank, on_first_rank, warn_once
from himach.parallel.communicator import Communicator, World
from himach.parallel.progress import Progress
from himach.planning.observed import observed
from himach.runner.kept_pairs import files_of, keeper_of, kept_pairs, mapping_ends, not_kept
from himach.runner.outcome_place import OutcomePlace, located, outcome_place
from himach.selection import Selected

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

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
    from himach.opening.universe_input import UniverseInput
    from himach.zazen.share import Share

    Steps = npt.NDArray[np.int64]
    Atoms = npt.NDArray[np.int64]

__all__ = ["Common", "Done", "assign_frames", "freed", "needed_atoms", "one_thread", "perform", "set_up", "stages"]

#: Confidence of intervals, where none is asked for.
LEVEL = 0.95
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
    """

    store: tuple[Store | ServedStore | None, int] = (None, 0)
    asked: dict[str, Any] = field(default_factory=dict)
    guarded: bool = True


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
        opened = open_frames(world, job, assemble, (None, 0) if common is None else common.store)
        with freed(world.comm, opened), one_thread() if common is None else nullcontext():
            return _analyse(world, job, chains, opened, started, place, common)


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
    started: float,
    out: OutcomePlace,
    common: Common | None,
) -> Done:
    """Take the frames that are open through all methods of the analyses."""
    comm = world.comm
    asked = _asked(world, job, opened, common)
    files = files_of(comm, job, opened)
    views = on_every_rank(comm, partial(set_up, comm.rank, chains, opened, job.given, files, job.member))
    with kept_pairs(world, job, out.path, out.labels, chains, views, opened, files) as kept:
        ready = time.time()
        share = assign_frames(world, opened, kept, needed_atoms(views))
        assigned = time.time()
        with freed(comm, share):
            guarded = common is None or common.guarded
            passed, read = _map_and_reduce(world, job, chains, opened, views, share, kept, out.quiet, started, guarded)
        _say_empty(chains, opened.frames, passed.mapped)
        reduced = time.time()
        ends = [chain[-1] for chain in chains]
        outcomes = on_first_rank(comm, lambda: _finish(ends, passed.results or []))
        before = {"startup": ready - started, "zazen": assigned - ready}
        seconds = {**before, **passed.seconds, "finish": time.time() - reduced}
        seconds = _slowest(comm, {**seconds, "total": time.time() - started})
        seconds |= {"write": 0.0, "draw": 0.0, "whole": seconds["total"]}
        record = _record(world, asked, share, kept, passed, read, seconds, (started, out.said))
        record["planning"] = observed(world, passed, share, read, {**before, "opening": opened.at - started})
        record["units"] = on_first_rank(comm, lambda: _units(out.labels, outcomes)) or {}
        told = on_first_rank(comm, lambda: _estimates(out.labels, outcomes, job))
        if job.confidence != "off":
            record["uncertainty"] = told or {}
        if job.live is not None:
            record["live"] = dict(job.live)
        if out.path is not None:
            record["files"] = on_first_rank(comm, partial(out.write, ends, outcomes or [], record)) or []
    return Done(outcomes, record, ends)


def _asked(world: World, job: Job, opened: Opened, common: Common | None) -> dict[str, Any]:
    """Return what the record says of the request (collective)."""
    from himach.runner.run_record import asked_for, dataset_of

    if common is not None and common.asked:
        return {**common.asked, "dataset": dataset_of(opened)}
    asked = on_first_rank(world.comm, partial(asked_for, job, opened, world.library()), share=True)
    if common is not None:
        common.asked = asked
    return asked


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
        if not stage.defines(method):
            raise UsageError(f"{stage.label()} has no {method}(): every analysis needs one")
    return chain


def set_up(
    rank: int,
    chains: Sequence[Sequence[Analysis]],
    opened: Opened,
    given: UniverseInput | None,
    files: OpenedFiles | None = None,
    member: str | None = None,
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
            transform=None if given is None else given.transform,
            member=member,
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
    views: Sequence[View],
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
        What the pass gave, and the bytes read, by place.
    """
    from himach.io.dataset.lookup import server_of
    from himach.io.dataset.origin_watch import OriginChangedError
    from himach.io.dataset.source import Source

    comm, frames = world.comm, opened.frames
    needs = Needs(needed_atoms(views), POSITIONS)
    server, ranks = server_of(opened.cached), world.node.size
    source = Source(
        opened.origin, opened.cached, opened.quota > 0, server, needs, opened.watch, ranks, first=opened.frames[0]
    )
    binds = [partial(view.bind, late=source.late) for view in views]
    memory = Memory(int(job.memory or default_memory()) // world.node.size, scratch_directory())
    total = sum(share.counts.values())
    with Progress(comm, total, sys.stderr, quiet=quiet) as display:
        meeting = Meeting(
            comm, None if job.member is None else math.inf
        )  # other members follow, so nobody leaves alone
        keeper = None if kept is None else keeper_of(job, kept, comm, total, source, memory.limit, started)
        requests = StopRequests(mapping_ends(job, started), source.hurry if keeper is None else keeper.hurry, comm=comm)

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
            read=source.read,
            bind=binds,
            progress=meeting.watched(display),
            wait=wait,
            universes=[view.universe for view in views],
            guarded=guarded,
        )
        keep, well = True, False
        try:
            with requests, nullcontext() if keeper is None else keeper.heeding(requests):
                passed = run_pass(comm, chains, work, meeting.together, memory, keeper)
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
    return passed, {"cache": source.bytes_cache, "origin": source.bytes_origin}


def _say_empty(chains: Sequence[Sequence[Analysis]], frames: Selected, mapped: Sequence[int]) -> None:
    """Warn of each map() that yielded nothing at all; only the first rank's warnings are shown."""
    for chain, pairs in zip(chains, mapped, strict=True):
        if not pairs:
            of = "the frame" if len(frames) == 1 else f"any of the {len(frames)} frames"
            warnings.warn(f"{chain[0].label()}: map() yielded nothing in {of}, so there are no results", stacklevel=2)


def _record(
    world: World,
    asked: Mapping[str, Any],
    share: Share,
    kept: CheckpointRun | None,
    passed: Passed,
    read: Mapping[str, int],
    seconds: Mapping[str, float],
    told: tuple[float, list[str]],
) -> Record:
    """Return what the run was and did; told are when it began and what this rank was warned of."""
    everyone = world.comm.allgather(read)
    started, said = told
    for text in [text for rank in world.comm.allgather(list(said)) for text in rank]:
        if text not in said:
            said.append(text)
    times = [datetime.fromtimestamp(second).astimezone() for second in (started, time.time())]
    done = {
        "frames": sum(share.counts.values()) + (0 if kept is None else kept.found.reused),
        "reused": Reused(frames=0, reason="") if kept is None else Reused(frames=kept.found.reused, reason=kept.reason),
        "ranks": world.comm.size,
        "nodes": len(world.nodes),
        "assignment": share.counts,
        "bytes": Bytes(
            cache=sum(rank["cache"] for rank in everyone),
            origin=sum(rank["origin"] for rank in everyone),
            shuffled=passed.shuffled,
        ),
        "seconds": seconds,
        "pairs": passed.pairs,
        "errors": [],
        "warnings": said,  # what is still warned of comes into it
        "date": times[0].date().isoformat(),
        "times": Times(
            start=times[0].isoformat(timespec="milliseconds"), end=times[1].isoformat(timespec="milliseconds")
        ),
    }
    return cast(Record, {**asked, **done})


def needed_atoms(views: Sequence[View]) -> Atoms | None:
    """Return the atoms that any analysis needs, ascending; None for all."""
    import numpy as np

    some = [view.needs for view in views if view.needs is not None]
    if len(some) < len(views):
        return None
    union = np.unique(np.concatenate(some))
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


def _finish(stages: Sequence[Analysis], results: Sequence[Mapping[Any, Any]]) -> list[Any]:
    outcomes = []
    for stage, given in zip(stages, results, strict=True):
        found = row_table(*given.get(0, ([], [], []))) if stage.yields_rows() else given
        if stage.defines("finish"):
            with located(stage, "finish", 0):
                outcomes.append(stage.finish(found))
            for text in uneven_parts(outcomes[-1], stage.label()):
                warnings.warn(text, stacklevel=2)
        else:
            outcomes.append(found if isinstance(found, Table) else default_outcome(found, stage.key_names))
    return outcomes


def _units(labels: Sequence[str], outcomes: Sequence[Any]) -> dict[str, dict[str, str]]:
    try:
        return units_of(labels, outcomes)
    except UsageError:  # a table that is none says so when it is shown or written
        return {}


def _estimates(labels: Sequence[str], outcomes: Sequence[Any], job: Job) -> dict[str, Uncertainty]:
    from himach.runner.estimates import add_estimates

    usual = LEVEL if job.confidence is None else job.confidence
    level = None if usual == "off" else float(usual)
    try:
        return add_estimates(labels, outcomes, level, job.equilibration)
    except UsageError:  # as of units
        return {}


def _slowest(comm: Communicator, seconds: Mapping[str, float]) -> dict[str, float]:
    """Return each phase's time on the rank that took longest."""
    everyone = comm.allgather(dict(seconds))
    return {name: max(rank[name] for rank in everyone) for name in seconds}
