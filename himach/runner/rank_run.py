"""State of a run on one rank: `RankRun`, the steps that set it up, the pairs that it keeps, and its outcome."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from himach.analysis import Analysis
from himach.engine import Memory
from himach.errors import UsageError
from himach.frame import POSITIONS
from himach.io.datasets.frame_steps import Paths, universe_transform
from himach.io.datasets.opening import OpenFrames, open_frames, open_store
from himach.io.datasets.source import Source
from himach.io.datasets.subsets import open_readable
from himach.io.frame_source import ReadOptions
from himach.io.server.survey import ServedStore
from himach.io.store.store import Store
from himach.io.trajectories.urls.names import public_name
from himach.io.universe.view import View
from himach.output.claim import FOLDER, PAIRS
from himach.output.record import Record
from himach.planning.observation import MemberTimes
from himach.ranks.collective import is_everywhere, on_first_rank, run_collectively, warn_once
from himach.ranks.communicator import Communicator, World
from himach.ranks.launch.memory import default_memory, scratch_directory
from himach.ranks.quiet import say
from himach.runner.index_groups import name_groups, read_groups
from himach.runner.options import Job
from himach.runner.place import OutcomePlace, located
from himach.staging.assembly.assemble import assemble_for_run
from himach.zazen import assign
from himach.zazen.node_frames import Share

if TYPE_CHECKING:
    from himach.checkpoint.checkpoint_writer import CheckpointWriter
    from himach.checkpoint.map_fingerprint import MapFingerprint
    from himach.checkpoint.reuse import CheckpointRun
    from himach.checkpoint.sources import OpenedFiles

Atoms = npt.NDArray[np.int64]
#: Maximum number of stages in a chain: more come from a `then` that makes new ones for ever.
MOST_STAGES = 1000
#: Environment variable: seconds between two commits; a run without a request for pairs keeps them after twice that.
EVERY = "HIMACH_KEEP_EVERY"


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
    place: OutcomePlace | None = None  # where the outcome goes; None in a dry run
    started: float = 0.0  # when the user started the run
    index_groups: Mapping[str, list[int]] = field(default_factory=dict)  # atoms of groups of the index file, from 1
    files: OpenedFiles | None = None  # records the files that analyses open; None if no pairs are kept
    paths: Paths | None = None  # follows atoms, if NoJump is requested
    views: list[View] = field(default_factory=list)  # bind frames to each analysis
    atoms: Atoms | None = None  # atoms that any analysis needs, ascending; None for all
    checkpoint: CheckpointRun | None = None  # pairs of earlier runs and of this one
    share: Share = field(init=False)  # frames that the ranks of this node read; set by `assign`

    @classmethod
    def open(cls, world: World, job: Job, common: EnsembleContext | None = None, **state: Any) -> RankRun:
        """Open the frames of a job after assembling pushed slices (collective)."""
        chains = [stages(analysis) for analysis in job.analyses]
        opening, common = time.time(), common or EnsembleContext()
        store = common.store
        if job.universe_input is None or job.universe_input.frames is None:  # else frames are in memory
            store = store or open_store(world.comm, job.cache)
            warn_once(world.comm, assemble_for_run(world, store[0], job))
        return cls(world, job, open_frames(world, job, store), chains, opening, common, **state)

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
        if self.job.index is not None:  # read once, as it may be written meanwhile
            self.index_groups = on_first_rank(comm, partial(read_groups, self.job.index), share=True)
        self.views = run_collectively(comm, lambda: [self._set_up(chain) for chain in self.chains])
        self.atoms = needed_atoms(self.views)

    def _set_up(self, chain: Sequence[Analysis]) -> View:
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
            name_groups(view.universe, self.job.index, self.index_groups)
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

    @contextmanager
    def kept_pairs(self) -> Iterator[CheckpointRun | None]:
        """Open the kept pairs, if any, until the outcome is complete (collective)."""
        comm, job, opened, files = self.world.comm, self.job, self.opened, self.files
        assert self.place is not None
        out, labels = self.place.path, self.place.labels
        under_out = None if out is None or job.unkept else out / FOLDER / PAIRS
        pairs, reuse = comm.bcast((job.pairs or job.between or under_out, job.reuse))
        if pairs is None or files is None:  # both follow the first rank
            yield None
            return
        from himach.checkpoint.map_fingerprint import map_fingerprint
        from himach.checkpoint.reuse import PairsRequest, open_pairs

        first_stages = [chain[0] for chain in self.chains]

        def fingerprints() -> list[MapFingerprint]:
            stamp, frames, steps = opened.stamp, opened.frames, job.steps(opened.frames)
            return [
                map_fingerprint(first, view.universe, dataset=stamp, frames=frames, steps=steps)
                for first, view in zip(first_stages, self.views, strict=True)
            ]

        lasts = comm.bcast(job.pairs is not None or (job.between is not None and job.member is None))
        combined = [first.defines("combine") for first in first_stages]
        homes = [type(first).__module__ for first in first_stages]
        request = PairsRequest(pairs, labels, combined, homes, opened.frames, files, reuse, lasts, _interval())
        checkpoint = open_pairs(comm, request, fingerprints)
        files.mapping = [vars(first) for first in first_stages]
        succeeded = False
        try:
            warn_once(comm, [_damage_warning(pairs, checkpoint.plan.bad)] if checkpoint.plan.bad else [])
            requested = lasts or job.max_time is not None
            warn_once(comm, list(_unstable_warnings(pairs, labels, checkpoint)) if comm.rank == 0 and requested else [])
            announced = job.between is None and job.member is None
            if comm.rank == 0 and announced and (message := _resume_message(job, out, checkpoint)):
                say(f"himach: {message}", sys.stderr)
            yield checkpoint
            succeeded = True
        finally:
            if comm.rank == 0:
                checkpoint.release(succeeded and job.member is None)  # an ensemble removes all of its own together

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


def stages(analysis: Analysis) -> list[Analysis]:
    """Return the analysis and the stages that follow by `then`."""
    chain = [analysis]
    visited = {id(analysis)}
    while (stage := chain[-1].next_stage()) is not None:
        # One class may serve in several stages, as instances with their own `then`; a `then` that repeats never ends.
        stage_id = id(chain[-1].then)
        if stage_id in visited or len(chain) == MOST_STAGES:
            raise UsageError(f"{analysis.label()}: its stages come back to {stage.label()}; a chain must end")
        visited.add(stage_id)
        chain.append(stage)
    rows = len(chain) == 1 and analysis.yields_rows()
    needed = [(chain[0], "map"), *((stage, "reduce") for stage in chain if not rows)]
    for stage, method in needed:
        if not stage.defines(method):
            raise UsageError(f"{stage.label()} has no {method}(): every analysis needs one")
    return chain


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


def unrequested_keep_time(job: Job, started: float) -> float:
    """Return the time from which a run without a request for pairs keeps them."""
    at_once = job.member is not None and job.max_time is not None  # keep finished members, too
    return started if at_once else started + 2 * _interval()


def _interval() -> float:
    from himach.checkpoint.checkpoint_writer import EVERY as USUAL

    text = os.environ.get(EVERY)
    try:
        return USUAL if text is None else float(text)
    except ValueError:
        raise UsageError(f"{EVERY}={text}: it is a number of seconds") from None


def _resume_message(job: Job, out: Path | None, checkpoint: CheckpointRun) -> str:
    """Return how many frames are reused, also in a quiet run, or why all are mapped again."""
    total, reused, reason = len(checkpoint.request.frames), checkpoint.plan.reused, checkpoint.reason
    if not reused and job.quiet:
        return ""
    if not reused:
        frames = f"all {total:,} frames" if total > 1 else "the frame"
        return f"mapping {frames} again: {reason}" if reason else ""
    source = f"pairs in {job.pairs}" if checkpoint.request.lasting else f"by a run into {out} that did not end"
    message = f"{reused:,} of {total:,} frames were mapped before ({'; '.join(filter(None, [source, reason]))})"
    if reused < total:
        return f"{message}; mapping {total - reused:,}"
    return message if job.quiet else ""  # otherwise the summary says it


def _unstable_warnings(path: Path, labels: Sequence[str], checkpoint: CheckpointRun) -> Iterator[str]:
    """Yield warnings of values that no later run can compare, so that none uses the pairs."""
    for label, reasons in zip(labels, checkpoint.unstable, strict=True):
        for name, reason in reasons.items():
            yield (
                f"{label}: {name} ({reason}) cannot be compared with that of another run, so no later run uses the "
                f"pairs that are kept in {path}; make it in map(), or name it in `caches` if no result depends on it"
            )


def _damage_warning(path: Path, texts: Sequence[str]) -> str:
    what, their = (f"{len(texts)} parts", "their") if len(texts) > 1 else ("a part", "its")
    return f"{what} of the pairs kept in {path} cannot be used ({texts[0]}); {their} frames are mapped again"
