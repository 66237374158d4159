"""What one rank does in a run, from opening the trajectory to writing the outcome, in the order of a frame's way.

`perform()` joins communicator, source, share and engine, which know nothing of each other.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

from himach.agree import Meeting, on_every_rank, on_first_rank
from himach.analysis import Analysis
from himach.comm import Communicator, World
from himach.engine import Memory, run_pass
from himach.engine.failures import RAISED, failure
from himach.errors import UsageError
from himach.frame import POSITIONS, Needs
from himach.job import Job
from himach.memory import default_memory, scratch_directory
from himach.output.directory import prepare_out, write_run
from himach.output.names import unique_labels
from himach.output.record import Assignment, Bytes, DatasetRecord, Record, Seconds, analysis_record
from himach.output.table import default_outcome
from himach.progress import Progress

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from himach.frame import Frame, RawFrame
    from himach.io.keeper import Kept
    from himach.io.store import Dataset as Cached
    from himach.opening import Opened
    from himach.zazen.share import Share

    Steps = npt.NDArray[np.int64]

__all__ = ["Done", "perform", "stages"]


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
    """

    outcomes: list[Any] | None
    record: Record
    last_stages: list[Analysis]


def perform(world: World, job: Job, started: float) -> Done:
    """Carry out `job` as one of the ranks of `world`.

    Parameters
    ----------
    world
        The ranks.
    job
        The same on every rank.
    started
        `time.time()` at which the user started the run.

    Raises
    ------
    HimachError
        What went wrong, on the rank where it did, or on all of them (`himach.agree.is_everywhere`).
    """
    from himach.io.cache import server_of
    from himach.io.keeper import Quota
    from himach.io.source import Source
    from himach.opening import open_job
    from himach.zazen import assign

    comm = world.comm
    labels = unique_labels(job.labels)
    # What a script asks for on its first rank alone holds for all.
    out, quiet = comm.bcast((job.out, job.quiet))
    if out is not None:
        on_first_rank(comm, partial(prepare_out, out, labels))
    chains = [stages(analysis) for analysis in job.analyses]
    opened = open_job(world, job)
    origin, frames, cached = opened.origin, opened.frames, opened.cached
    binds, needs = _set_up(comm, chains, opened)
    ready = time.time()

    held = None if world.leaders is None else cached
    share = on_every_rank(comm, lambda: assign(world, held, frames, origin=origin.present))
    source = Source(origin, cached, Quota(opened.quota, world.node.size), server_of(cached), needs)
    memory = Memory(int(job.memory or default_memory()) // world.node.size, scratch_directory())
    assigned = time.time()
    with Progress(comm, len(frames), sys.stderr, quiet=quiet) as display:
        meeting = Meeting(comm)
        take = partial(_take, share, display, meeting)
        try:
            passed = run_pass(
                comm, chains, frames, take, source.read, binds, meeting.watched(display), meeting.together, memory
            )
        finally:
            kept = source.close()
    share.close()
    _settle(world, cached, share, kept)
    reduced = time.time()

    ends = [chain[-1] for chain in chains]
    outcomes = on_first_rank(comm, lambda: _finish(ends, passed.results or []))
    seconds = {"startup": ready - started, "zazen": assigned - ready, **passed.seconds, "finish": time.time() - reduced}
    seconds = _slowest(comm, {**seconds, "total": time.time() - started})
    from_cache, from_origin = map(sum, zip(*comm.allgather((source.bytes_cache, source.bytes_origin)), strict=True))
    paths = [str(path) for path in origin.paths]
    record = Record(
        himach=version("himach"),
        analyses=[analysis_record(analysis) for analysis in job.analyses],
        dataset=DatasetRecord(
            path=paths[0] if len(paths) == 1 else paths,
            frames=origin.n_frames,
            atoms=origin.n_atoms,
            fingerprint=origin.fingerprint,
        ),
        frames=len(frames),
        ranks=comm.size,
        nodes=len(world.nodes),
        assignment=cast(Assignment, share.counts),
        bytes=Bytes(cache=from_cache, origin=from_origin, shuffled=passed.shuffled),
        seconds=cast(Seconds, seconds),
        pairs=passed.pairs,
        errors=[],
    )
    if out is not None:
        drawing = partial(located, method="plot", rank=0)
        on_first_rank(comm, partial(write_run, out, labels, ends, outcomes, record, drawing))
    return Done(outcomes, record, ends)


def stages(analysis: Analysis) -> list[Analysis]:
    """Return the analysis and those that follow by `then`."""
    chain = [analysis]
    while (stage := chain[-1].next_stage()) is not None:
        if any(type(stage) is type(earlier) for earlier in chain):
            raise UsageError(f"{analysis.label()}: its stages come back to {stage.label()}; a chain must end")
        chain.append(stage)
    needed = [(chain[0], "map"), *((stage, "reduce") for stage in chain)]
    for stage, method in needed:
        if not stage.defines(method):
            raise UsageError(f"{stage.label()} has no {method}(): every analysis needs one")
    return chain


def _set_up(
    comm: Communicator, chains: Sequence[Sequence[Analysis]], opened: Opened
) -> tuple[list[Callable[[RawFrame, int], Frame]], Needs]:
    """Give every analysis its own Universe and call setup(); return what binds a frame to each, and what all need."""
    from himach.io.view import View

    def set_up() -> list[View]:
        views: list[View] = []
        origin, frames = opened.origin, opened.frames
        dt = origin.dt(frames)
        for i, chain in enumerate(chains):
            view = View(opened.topology, origin, frames, opened.first, name=chain[0].label(), copy=i > 0)
            for stage in chain:
                stage.__dict__.update(frames=frames, dt=dt)
                with located(stage, "setup", comm.rank):
                    stage.setup(view.universe)
            if chain[0].defines("atoms"):
                with located(chain[0], "atoms", comm.rank):
                    # As the class has it: setup() may have an attribute of that name.
                    view.ask(type(chain[0]).atoms(chain[0], view.universe))
            views.append(view)
        return views

    views = on_every_rank(comm, set_up)
    return [view.bind for view in views], Needs(_union([view.needs for view in views]), POSITIONS)


def _union(needs: Sequence[npt.NDArray[np.int64] | None]) -> npt.NDArray[np.int64] | None:
    """Return the atoms that any analysis needs, ascending; None for all."""
    import numpy as np

    some = [atoms for atoms in needs if atoms is not None]
    if len(some) < len(needs):
        return None
    union = np.unique(np.concatenate(some))
    union.flags.writeable = False
    return union


def _settle(world: World, cached: Cached | None, share: Share, kept: Kept) -> None:
    """Drop the copies that other nodes' make superfluous, and say what could not be kept."""
    import numpy as np

    from himach.io.store import StoreError
    from himach.opening import warn_once

    if cached is not None and world.leaders is not None and share.surplus:
        with suppress(StoreError):  # they are surplus in the next run, too
            cached.drop(np.fromiter(share.surplus, dtype=np.int64))
    reasons = []
    skipped = world.comm.allreduce(kept.skipped)
    if kept.skipped:
        why = kept.reason or "the disk is slower than the analysis"
        reasons.append(f"{skipped} frames were not kept in the cache: {why} (node {world.name})")
    warn_once(world.comm, reasons)


def _take(share: Share, display: Progress, meeting: Meeting) -> Steps | None:
    """Take the next task; after the last one, show how far the others are until all ranks can meet in the shuffle."""
    steps = share.take()
    if steps is None:
        display.finish(meeting.look)
    return steps


@contextmanager
def located(analysis: Analysis, method: str, rank: int) -> Iterator[None]:
    """Tell of an exception in a method of the analysis by where it happened; a refused parameter tells that itself."""
    try:
        yield
    except UsageError:
        raise
    except RAISED as error:
        raise failure(analysis, method, error, rank) from error


def _finish(stages: Sequence[Analysis], results: Sequence[Mapping[Any, Any]]) -> list[Any]:
    outcomes = []
    for stage, found in zip(stages, results, strict=True):
        if stage.defines("finish"):
            with located(stage, "finish", 0):
                outcomes.append(stage.finish(found))
        else:
            outcomes.append(default_outcome(found))
    return outcomes


def _slowest(comm: Communicator, seconds: Mapping[str, float]) -> dict[str, float]:
    """Return each phase's time on the rank that took longest."""
    everyone = comm.allgather(dict(seconds))
    return {name: max(rank[name] for rank in everyone) for name in seconds}
