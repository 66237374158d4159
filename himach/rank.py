"""What one rank does in a run, from opening the trajectory to writing the outcome, in the order of a frame's way.

`perform()` joins communicator, source, share and engine, which know nothing of each other. An error of which
`is_everywhere()` is true was raised on all ranks; after any other, the ranks not concerned wait in vain and must be
aborted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from himach.analysis import Analysis
from himach.comm import Communicator, World
from himach.engine import run_pass
from himach.engine.failures import located
from himach.errors import HimachError, UsageError, as_himach
from himach.job import Job, select
from himach.output import default_outcome, make_record
from himach.progress import Progress

if TYPE_CHECKING:
    from MDAnalysis.core.topology import Topology

    from himach.frame import Frame, RawFrame
    from himach.io.origin import Origin

__all__ = ["Done", "is_everywhere", "perform", "stages"]

T = TypeVar("T")


@dataclass
class Done:
    """What a run gave, complete on rank 0.

    Attributes
    ----------
    outcomes
        One per analysis; None on other ranks.
    record
        See `himach.output`; None on other ranks.
    last_stages
        The instances that drew up the outcomes, set up at this rank.
    """

    outcomes: list[Any] | None
    record: dict[str, Any] | None
    last_stages: list[Analysis]


def is_everywhere(error: BaseException) -> bool:
    """Tell whether every rank raised `error`, so that none is left waiting."""
    return getattr(error, "_himach_everywhere", False)


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
        What went wrong, on the rank where it did, or on all of them (`is_everywhere`).
    """
    from himach.io.source import Source
    from himach.zazen import assign

    comm = world.comm
    chains = [stages(analysis) for analysis in job.analyses]
    origin, topology, first, frames = _open(comm, job)
    binds = _set_up(comm, chains, origin, topology, first, frames)
    ready = time.time()

    share = assign(world, None, frames, origin=True)
    source = Source(origin)
    assigned = time.time()
    display = Progress(comm, len(frames), quiet=job.quiet)
    passed = run_pass(comm, chains, frames, share.take, source.read, binds, display)
    display.finish()
    share.close()
    reduced = time.time()

    last_stages = [chain[-1] for chain in chains]
    outcomes = _on_first_rank(comm, lambda: _finish(last_stages, passed.results or []))
    seconds = _slowest(
        comm, {"startup": ready - started, "zazen": assigned - ready, **passed.seconds, "finish": time.time() - reduced}
    )
    cached, read = (
        sum(counts) for counts in zip(*comm.allgather((source.bytes_cache, source.bytes_origin)), strict=True)
    )
    seconds["total"] = time.time() - started
    if comm.rank != 0:
        return Done(None, None, last_stages)
    record = make_record(
        analyses=job.analyses,
        dataset={
            "path": [str(path) for path in origin.paths] if len(origin.paths) > 1 else str(origin.paths[0]),
            "frames": origin.n_frames,
            "atoms": origin.n_atoms,
            "fingerprint": origin.fingerprint,
        },
        frames=len(frames),
        ranks=comm.size,
        nodes=len(world.nodes),
        assignment=share.counts,
        bytes={"cache": cached, "origin": read, "shuffled": passed.shuffled},
        seconds=seconds,
        pairs=passed.pairs,
    )
    return Done(outcomes, record, last_stages)


def stages(analysis: Analysis) -> list[Analysis]:
    """Return the analysis and those that follow by `then`."""
    chain = [analysis]
    while (stage := chain[-1].next_stage()) is not None:
        if any(type(stage) is type(earlier) for earlier in chain):
            raise UsageError(f"{analysis.label()}: its stages come back to {stage.label()}; a chain must end")
        chain.append(stage)
    return chain


def _open(comm: Communicator, job: Job) -> tuple[Origin, Topology, RawFrame, range]:
    """Open the trajectory and the topology on the first rank, for all: N ranks would parse and index N times."""

    def opened() -> tuple[Origin, Topology, RawFrame, range]:
        from himach.io.origin import open_origin
        from himach.io.topology import load_topology

        origin = open_origin(job.trajectories, job.topology, job.keywords)
        topology = load_topology(job.topology, origin, job.keywords)
        frames = select(origin.n_frames, job.start, job.stop, job.step)
        return origin, topology, next(origin.read([frames[0]])), frames

    return _on_first_rank(comm, opened, share=True)


def _set_up(
    comm: Communicator,
    chains: Sequence[Sequence[Analysis]],
    origin: Origin,
    topology: Topology,
    first: RawFrame,
    frames: range,
) -> list[Callable[[RawFrame, int], Frame]]:
    """Give every analysis its own Universe and call setup(); return what binds a frame to each Universe."""
    from himach.io.view import View

    def set_up() -> list[Callable[[RawFrame, int], Frame]]:
        binds = []
        dt = origin.dt(frames)
        for i, chain in enumerate(chains):
            view = View(topology, origin, frames, first, copy=i > 0)
            for stage in chain:
                stage.__dict__.update(frames=frames, dt=dt)
                with located(stage, "setup", comm.rank):
                    stage.setup(view.universe)
            binds.append(view.bind)
        return binds

    return _on_every_rank(comm, set_up)


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


def _on_first_rank(comm: Communicator, function: Callable[[], T], share: bool = False) -> T:
    """Call `function` on rank 0; share what it returns with all ranks if asked, and its error in any case."""
    value: Any = None
    error: Exception | None = None
    if comm.rank == 0:
        try:
            value = function()
        except Exception as caught:
            error = caught
    _raise_everywhere(error, comm.bcast(_portable(error)))
    return comm.bcast(value) if share else value


def _on_every_rank(comm: Communicator, function: Callable[[], T]) -> T:
    """Call `function` on every rank; if it failed on some, raise the first one's error on all."""
    value: Any = None
    error: Exception | None = None
    try:
        value = function()
    except Exception as caught:
        error = caught
    failed = [word for word in comm.allgather(_portable(error)) if word is not None]
    _raise_everywhere(error, failed[0] if failed else None)
    return value


def _portable(error: Exception | None) -> HimachError | None:
    """Return the error without its cause, which may not travel."""
    return None if error is None else type(as_himach(error))(str(as_himach(error)))


def _raise_everywhere(own: Exception | None, error: HimachError | None) -> None:
    if error is None:
        return
    raised = as_himach(own) if own is not None else error
    raised.__dict__["_himach_everywhere"] = True
    raise raised from (own.__cause__ if isinstance(own, HimachError) else own)
