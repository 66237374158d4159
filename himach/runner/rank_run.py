"""State of a run on one rank, `RankRun`: it opens the frames, sets the analyses up, and assigns frames to readers."""

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.analysis import Analysis
from himach.checkpoint.checkpoint_writer import CheckpointWriter
from himach.checkpoint.reuse import CheckpointRun
from himach.checkpoint.sources import OpenedFiles
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
from himach.io.trajectories.urls.url_names import public_name
from himach.io.universe.view import View
from himach.ranks.collective import on_first_rank, run_collectively, warn_once
from himach.ranks.communicator import World
from himach.ranks.launch.memory import default_memory, scratch_directory
from himach.runner.index_groups import name_groups, read_groups
from himach.runner.kept_pairs import unrequested_keep_time
from himach.runner.options import Job, stages
from himach.runner.place import OutcomePlace, located
from himach.staging.assemble import assemble_for_run
from himach.zazen import assign
from himach.zazen.node_frames import Share

Atoms = npt.NDArray[np.int64]


@dataclass
class EnsembleContext:
    """State that the runs of an ensemble's members share, so that a rank determines it once."""

    store: tuple[Store | ServedStore | None, int] | None = None  # the cache and its quota in bytes
    request: dict[str, Any] = field(default_factory=dict)  # request fields of the first member's record
    guarded: bool = True  # whether to check what map() changes


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
    def open(cls, world: World, job: Job, common: EnsembleContext | None = None, started: float = 0.0) -> "RankRun":
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
            nojump=self.paths is not None,
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


def needed_atoms(views: Sequence[View]) -> Atoms | None:
    """Return the atoms that any analysis needs, ascending; None for all."""
    needs = [view.needs for view in views if view.needs is not None]
    if len(needs) < len(views):
        return None
    # A single array needs no numpy.unique(), which imports numpy.ma.
    union = needs[0].copy() if len(needs) == 1 else np.unique(np.concatenate(needs))
    union.flags.writeable = False
    return union
