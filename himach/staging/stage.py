"""Staging: all ranks read a trajectory once and store its frames natively; what is written stays on any failure."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
from pyroaring import BitMap64

from himach.atoms import Atoms
from himach.errors import UsageError
from himach.frame import RawFrame
from himach.io.datasets.attachment import attach_origin
from himach.io.datasets.lookup import Candidate, OriginChoice, choose_generation, find, refuse_others
from himach.io.datasets.opening import choose_together, note_elsewhere, watch_origin
from himach.io.datasets.origin_stamp import OriginChangedError, OriginWatch
from himach.io.datasets.subsets import Subset, open_readable, open_subset
from himach.io.datasets.writeback import copy_rows
from himach.io.frame_source import WHOLE, Numbers, ReadOptions
from himach.io.store.store import Dataset, Store, StoreError, StoreFullError
from himach.io.trajectories.origin import Origin
from himach.io.universe.topology import copy_topology, load_topology
from himach.io.universe.view import View
from himach.ranks.collective import on_first_rank, run_collectively
from himach.ranks.communicator import World
from himach.staging.options import StageOptions
from himach.staging.replication import attach_copies, open_on_nodes, pull, replicate, requested_copies
from himach.staging.shares import fill, gather_stored, open_store, own_part

FLUSH_SECONDS = 1.0
READ_AT_ONCE = 1 << 12


@dataclass(frozen=True)
class Staged:
    """Result of staging, the same on every rank."""

    name: str  # of the dataset
    frames: int  # in the trajectory
    new: int  # frames staged by this call on all nodes; the others were native somewhere before
    nodes: dict[str, int]  # native frames on each node; for a subset, frames whose atoms the node has
    copied: int = 0  # copies made by this call
    atoms: int = 0  # atoms staged of each frame; 0: all

    def __str__(self) -> str:
        places = ", ".join(f"{count} on {node}" for node, count in self.nodes.items())
        copied = f", {self.copied} copies made" if self.copied else ""
        atoms = f"{self.atoms:,} atoms of " if self.atoms else ""
        return f"{self.name}: {atoms}{self.frames} frames staged, {self.new} of them now{copied} ({places})"


def stage(world: World, job: StageOptions) -> Staged:
    """Stage a trajectory as one of the ranks of `world` (collective)."""
    store = open_store(world.comm, job)
    run_collectively(world.comm, partial(_check_copies, world, job.copies or 1))
    if job.repair or job.server:
        new = 0
        if job.repair:
            dataset, n_frames = open_on_nodes(world, store, job)
        else:
            dataset, n_frames, new = pull(world, store, job)
        copied = _make_copies(world, job, dataset, n_frames)
        return Staged(dataset.name, n_frames, new, _count(world, dataset), copied)
    note_elsewhere(job)
    choice, _, candidates = choose_together(world, store, job, [job.name], by_name=False)
    origin = choice.origin
    assert origin is not None
    watch = watch_origin(world, origin, choice.stamp)
    atoms = on_first_rank(world.comm, partial(_choose_atoms, job, origin), share=True)
    dataset = _open_dataset(world, store, job, choice, candidates)
    if atoms is not None and len(atoms) < origin.n_atoms:
        return _stage_atoms(world, job, dataset, origin, watch, atoms)
    new = _fill(world, job, dataset, origin, watch, range(origin.n_frames))
    copied = _make_copies(world, job, dataset, origin.n_frames)
    return Staged(job.name, origin.n_frames, new, _count(world, dataset), copied)


def _stage_atoms(
    world: World, job: StageOptions, dataset: Dataset, origin: Origin, watch: OriginWatch, atoms: Numbers
) -> Staged:
    """Stage some atoms of all frames, in the format of runs, and the whole first frame, which setup() needs."""
    subset = run_collectively(world.comm, lambda: open_subset(dataset, atoms))
    new = _fill(world, job, dataset, origin, watch, range(origin.n_frames), subset)
    _fill(world, job, dataset, origin, watch, range(1))

    staged = partial(_stored, dataset, origin, subset)
    return Staged(job.name, origin.n_frames, new, _count(world, dataset, staged), atoms=len(atoms))


def _stored(dataset: Dataset, origin: Origin, subset: Subset | None) -> BitMap64:
    """Return the frames that this node holds natively; for a subset, those whose atoms it has."""
    if subset is None:
        dataset.refresh()
        return dataset.native
    numbers = np.arange(origin.n_frames)
    return BitMap64(numbers[open_readable(dataset, subset.atoms, origin.n_atoms).holds(numbers)])


def _check_copies(world: World, copies: int) -> None:
    if not copies:
        raise UsageError("the number of copies of the dataset is unknown: give --copies, too")
    if copies > len(world.nodes):
        raise UsageError(
            f"{copies} copies of each frame lie on as many nodes, and this runs on {len(world.nodes)} "
            f"({', '.join(world.nodes)})"
        )


def _make_copies(world: World, job: StageOptions, dataset: Dataset, n_frames: int) -> int:
    """Make the number of copies requested now or when the dataset was first staged."""
    if job.copies is not None:
        attach_copies(world, dataset, job.copies)
    copies = job.copies or world.comm.allreduce(requested_copies(dataset), op=max)
    if job.repair:
        run_collectively(world.comm, partial(_check_copies, world, copies))
    copies = min(len(world.nodes), copies)
    return replicate(world, dataset, n_frames, copies) if copies > 1 else 0


def _choose_atoms(job: StageOptions, origin: Origin) -> Numbers | None:
    """Return the atoms to stage, None for all; check that the topology fits, because it is kept permanently."""
    if job.topology is None and job.atoms is None:
        return None
    topology = load_topology(job.topology, origin, job.keywords)
    if job.atoms is None:
        return None
    view = View(copy_topology(topology), origin, range(1), next(origin.read([0])), name="stage")
    return np.unique(Atoms.from_value(job.atoms).select_fixed(view.universe, "atoms").ix).astype(np.int64)


def _open_dataset(
    world: World, store: Store, job: StageOptions, choice: OriginChoice, candidates: Sequence[Candidate]
) -> Dataset:  # fmt: skip
    """Open the generation that a store has of this content, else a new one for all; attach the stamp on each node."""
    origin, stamp = choice.origin, choice.stamp
    assert origin is not None
    generation: bytes = world.node.bcast(choose_generation(candidates, choice.generations))

    def refuse() -> None:
        if world.leaders is not None:
            refuse_others(stamp, find(store, [job.name]))

    def attach() -> None:
        if world.leaders is not None:
            with store.locked():  # another trajectory may be staged under the name at the same moment
                refuse()
                attach_origin(store.dataset(job.name, generation), stamp, origin, job.topology)

    run_collectively(world.comm, refuse)  # on all nodes, before one of them takes the name
    run_collectively(world.comm, attach)
    return run_collectively(world.comm, lambda: store.dataset(job.name, generation))


def _count(world: World, dataset: Dataset, stored: Callable[[], BitMap64] | None = None) -> dict[str, int]:
    """Return the number of native frames on each node, or of those `stored` there."""
    dataset.refresh()
    own_entry = (world.name, len(stored() if stored else dataset.native)) if world.leaders is not None else None
    return dict(sorted(entry for entry in world.comm.allgather(own_entry) if entry is not None))


def _fill(
    world: World,
    job: StageOptions,
    dataset: Dataset,
    origin: Origin,
    watch: OriginWatch,
    span: range,
    subset: Subset | None = None,
) -> int:
    """Stage the frames of `span` that are native nowhere, or atoms that no node has; return how many (collective)."""
    stored = gather_stored(world, partial(_stored, dataset, origin, subset))
    part = own_part(world, job.placement, BitMap64(span), stored)
    frames, target = _read(origin, part, subset), dataset if subset is None else subset.dataset
    return fill(
        world, job, len(part), lambda report: _write(target, frames, watch, report, len(part), native=subset is None)
    )


def _read(origin: Origin, numbers: Numbers, subset: Subset | None) -> Iterator[RawFrame]:
    """Read frames in batches; for a subset, only the rows of its atoms."""
    options = WHOLE if subset is None else ReadOptions(subset.atoms)
    for start in range(0, len(numbers), READ_AT_ONCE):
        for frame in origin.read(numbers[start : start + READ_AT_ONCE], options):
            yield frame if subset is None else copy_rows(frame, subset.atoms)


def _write(
    dataset: Dataset,
    frames: Iterator[RawFrame],
    watch: OriginWatch,
    progress: Callable[[int], None],
    total: int,
    native: bool,
) -> int:
    """Write frames and keep them on any failure, except those that a changed origin may have given."""
    written = n_done = 0
    flushed = time.monotonic()
    unconfirmed: list[int] = []
    try:
        for frame in watch.reading(frames):
            if time.monotonic() > flushed + FLUSH_SECONDS:
                watch.check()
                dataset.flush()
                flushed = time.monotonic()
                unconfirmed.clear()
            elif watch.changed(frame.number):
                watch.check()
            try:
                new = dataset.write(
                    frame.number, frame.time, frame.box, frame.positions, frame.velocities, frame.forces, native=native
                )
            except StoreFullError as error:
                raise StoreFullError(
                    f"{error}; {n_done} of {total} frames of this rank are there: give a larger --quota, stage on more "
                    "nodes, or see 'himach cache evict'"
                ) from None
            if new:
                unconfirmed.append(frame.number)
                written += 1
            n_done += 1
            progress(n_done)
        if n_done:
            watch.check()
    except BaseException as error:
        with suppress(Exception):  # the earlier error tells more
            dataset.close()
        if isinstance(error, OriginChangedError):
            with suppress(StoreError):
                dataset.drop(unconfirmed, native=native)
        raise
    dataset.close()
    return written
