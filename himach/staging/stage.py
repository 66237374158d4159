"""Staging: all ranks read a trajectory once and store its frames natively, each on its own node.

`stage()` opens the trajectory, finds out which frames no node holds natively yet, and has every rank read and write its
part of those. What is written is kept whatever happens then, so a stage that was interrupted goes on where it was.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from himach.errors import TrajectoryError, UsageError
from himach.frame import RawFrame
from himach.io.dataset.attachment import attach_origin
from himach.io.dataset.lookup import Candidate, find, own_generation, refuse_others
from himach.io.dataset.origin_choice import OriginChoice
from himach.io.dataset.origin_stamp import OriginStamp
from himach.io.dataset.origin_watch import OriginChangedError, OriginNote, OriginWatch
from himach.io.store.place import open_chosen
from himach.io.store.quota import check_quota, chosen_quota
from himach.io.store.store import Dataset, Store, StoreError, StoreFullError
from himach.io.timemajor.holding import NodeFrames, as_tracks, frames_held
from himach.io.timemajor.making import forget_frames
from himach.io.trajectory.index.xdr_index import XdrIndex
from himach.io.trajectory.origin import Origin, open_origin
from himach.io.universe.topology import load_topology
from himach.opening.dataset import OpenRequest, open_dataset, watch_origin
from himach.opening.parallel_scan import NodeBytes
from himach.opening.shared_index import free
from himach.parallel.collective import Meeting, on_every_rank, on_first_rank
from himach.parallel.communicator import Communicator, World
from himach.parallel.progress import Progress
from himach.staging.fetch_remote import pull, repair
from himach.staging.growth import open_growing, wait_for_growth
from himach.staging.layout import lay_out
from himach.staging.named_dataset import is_held_only, open_held
from himach.staging.options import StageOptions
from himach.staging.replication import attach_copies, check_copies, replicate, wanted_copies

__all__ = ["Staged", "stage"]

Numbers = npt.NDArray[np.int64]

FLUSH_SECONDS = 1.0
#: Frames of which nodes tell each other at a time, whether they are native; and which a rank has listed.
CHUNK_FRAMES = 1 << 23
READ_AT_ONCE = 1 << 12


@dataclass(frozen=True)
class Staged:
    """What came of staging, the same on every rank.

    Attributes
    ----------
    name
        Of the dataset.
    frames
        In the trajectory.
    new
        Staged now, over all nodes; the others were native somewhere before.
    nodes
        Natives on each node.
    copied
        Copies made now of frames that some node held.
    layout
        What came of the layout that was asked for.
    """

    name: str
    frames: int
    new: int
    nodes: dict[str, int]
    copied: int = 0
    layout: str = ""

    def __str__(self) -> str:
        places = ", ".join(f"{count} on {node}" for node, count in self.nodes.items())
        copied = f", {self.copied} copies made" if self.copied else ""
        layout = f"; {self.layout}" if self.layout else ""
        return f"{self.name}: {self.frames} frames staged, {self.new} of them now{copied} ({places}){layout}"


def stage(world: World, job: StageOptions) -> Staged:
    """Stage a trajectory as one of the ranks of `world` (collective).

    Parameters
    ----------
    world
        The ranks.
    job
        The same on every rank.

    Raises
    ------
    UsageError, TrajectoryError
        As `open_origin`, `load_topology`, `open_store` and `check_quota` do, on every rank.
    StoreConflictError
        If the dataset's name is that of another trajectory, or of what a simulation pushed.
    StoreFullError
        If a node's quota or disk has no room for its part; what was staged is kept.
    """
    store = _open_store(world.comm, job)
    on_every_rank(world.comm, partial(_set_quota, store, job))
    on_every_rank(world.comm, partial(check_copies, world, job.copies or 1))
    if job.repair:
        dataset, n_frames, copied = repair(world, store, job)
        return _laid_out(world, job, dataset, Staged(dataset.name, n_frames, 0, {}, copied))
    if job.server:
        dataset, n_frames, new = pull(world, store, job, partial(_part, world, job.placement))
        copied = _copy(world, job, dataset, n_frames)
        return _laid_out(world, job, dataset, Staged(dataset.name, n_frames, new, {}, copied))
    if job.layout is not None and is_held_only(world, job):
        dataset, n_frames = open_held(world, store, job, job.layout)
        copied = _copy(world, job, dataset, n_frames)
        return _laid_out(world, job, dataset, Staged(dataset.name, n_frames, 0, {}, copied))
    opened = open_dataset(
        world,
        OpenRequest(
            job,
            name=job.name,
            by_name=False,
            open_files=partial(_open, job),
            open_cached=partial(_begin, world, store, job),
            store=store,
        ),
    )
    assert isinstance(opened.cached, Dataset) and opened.watch is not None and opened.noted is not None
    origin, dataset, watch, stamp, memory = opened.origin, opened.cached, opened.watch, opened.noted, opened.held
    new = _fill(world, job, dataset, origin, watch, range(origin.n_frames))
    while job.follow and (grown := wait_for_growth(world, job, origin)) is not None:
        free(origin, memory)
        span = range(origin.n_frames, grown[0].n_frames)
        origin, memory = grown
        stamp = on_first_rank(world.comm, partial(_stamp_grown, watch, origin, job, stamp), share=True)
        on_every_rank(world.comm, partial(_attach_origin, world, dataset, origin, stamp, job))
        watch = watch_origin(world, origin, OriginNote.of(origin, stamp))
        new += _fill(world, job, dataset, origin, watch, span)
    free(origin, memory)
    copied = _copy(world, job, dataset, origin.n_frames)
    return _laid_out(world, job, dataset, Staged(job.name, origin.n_frames, new, {}, copied))


def _laid_out(world: World, job: StageOptions, dataset: Dataset, staged: Staged) -> Staged:
    """Bring what was staged into the layout that is asked for; count what each node then has."""
    told = "" if job.layout is None else lay_out(world, dataset, job.layout, job.quiet)
    return replace(staged, nodes=_count(world, dataset), layout=told)


def _copy(world: World, job: StageOptions, dataset: Dataset, n_frames: int) -> int:
    """Make the copies that are asked for now, or were when the dataset was staged first."""
    if job.copies is not None:
        attach_copies(world, dataset, job.copies)
    copies = min(len(world.nodes), job.copies or world.comm.allreduce(wanted_copies(dataset), op=max))
    return replicate(world, dataset, n_frames, copies)[0] if copies > 1 else 0


def _open_store(comm: Communicator, job: StageOptions) -> Store:
    def opened() -> Store:
        store, reason = open_chosen(job.cache)
        if store is None:
            raise UsageError(reason)
        return store

    return on_every_rank(comm, opened)


def _set_quota(store: Store, job: StageOptions) -> None:
    quota = chosen_quota(store.path, job.quota)
    check_quota(store.path, quota, job.segment_size)
    store.set_quota(quota)


def _open(job: StageOptions, known: Mapping[str, XdrIndex]) -> Origin:
    """Open the trajectory, and check that the topology fits, as it will be kept for good."""
    if job.follow:
        origin = open_growing(job, known)
    else:
        origin = open_origin(job.trajectories, job.topology, job.keywords, known)
    if job.topology is not None:
        load_topology(job.topology, origin, job.keywords)
    return origin


def _begin(
    world: World, store: Store, job: StageOptions, choice: OriginChoice, held: Sequence[Candidate]
) -> Dataset:  # fmt: skip
    """Open the dataset on every rank: the generation that a store has of this content, else one for all.

    The store of each node notes what the dataset is, unless another trajectory has just come under its name.
    """
    origin, stamp = choice.origin, choice.stamp
    assert origin is not None and stamp is not None
    generation: bytes = world.node.bcast(own_generation(held, choice.generations))
    made: list[Dataset] = []

    def begin() -> None:
        if world.leaders is None:
            return
        with store.locked():
            refuse_others(stamp, find(store, [job.name]))
            if generation not in store.generations(job.name):
                made.append(store.dataset(job.name, generation))
            attach_origin(store.dataset(job.name, generation), stamp, origin, job.topology)

    try:
        on_every_rank(world.comm, begin)
    except Exception:  # on another node, maybe: then the name is not taken here either
        with suppress(StoreError):
            for dataset in made:
                store.remove(dataset.path.name)
        raise
    return on_every_rank(world.comm, lambda: store.dataset(job.name, generation, segment_bytes=job.segment_size))


def _attach_origin(world: World, dataset: Dataset, origin: Origin, stamp: OriginStamp, job: StageOptions) -> None:
    """Attach to the dataset, once a node, what an analysis without the origin needs."""
    if world.leaders is not None:
        attach_origin(dataset, stamp, origin, job.topology)


def _stamp_grown(watch: OriginWatch, grown: Origin, job: StageOptions, before: OriginStamp) -> OriginStamp:
    """Return the stamp of an origin that has more frames now, and those that it had."""
    stamp = OriginStamp.of(grown, job.keywords, [before])
    watch.check(last=False)
    return stamp


def _count(world: World, dataset: Dataset) -> dict[str, int]:
    """Return how many natives each node holds."""
    dataset.refresh()
    mine = (world.name, len(frames_held(dataset))) if world.leaders is not None else None
    return dict(sorted(told for told in world.comm.allgather(mine) if told is not None))


def _fill(
    world: World,
    job: StageOptions,
    dataset: Dataset,
    origin: Origin,
    watch: OriginWatch,
    span: range,
) -> int:
    """Read and write the frames of `span` that are native nowhere; return how many all ranks have written."""
    mine = _part(world, job.placement, span, dataset, tracks=job.layout in (None, "time"))
    total = world.comm.allreduce(len(mine))
    meeting = Meeting(world.comm)
    with Progress(world.comm, total, sys.stderr, quiet=job.quiet) as display:

        def fill() -> int:
            written = _write(dataset, _read(origin, mine), watch, meeting.watched(display), len(mine))
            display.finish(meeting.look)
            return written

        written = meeting.together(fill)
    return int(world.comm.allreduce(written))


def _part(world: World, placement: str, span: range, dataset: Dataset, tracks: bool = False) -> Numbers:
    """Return the frames of `span` that this rank stages, ascending: of its node's that are native nowhere, a part.

    With `tracks`, those count as native that are in the time-major form alone.

    Where a frame goes depends on nothing but the span and the nodes, so that a resumed stage spreads as one in one go.
    """
    nodes, node = len(world.nodes), world.node_index
    if placement == "spread":
        first = span.start + (node - span.start) % nodes
        of_node = range(first, span.stop, nodes)
    else:
        of_node = span[node * len(span) // nodes : (node + 1) * len(span) // nodes]
    memory = NodeBytes(world, len(of_node))
    held = as_tracks(dataset) if tracks else dataset
    on_every_rank(world.comm, partial(_mark_missing, world, held, span, of_node, memory.content))
    world.node.barrier()
    counts = [
        int(np.count_nonzero(memory.content[at : at + CHUNK_FRAMES])) for at in range(0, len(of_node), CHUNK_FRAMES)
    ]
    total, size, rank = sum(counts), world.node.size, world.node.rank
    begin, end = (part * (total // size) + min(part, total % size) for part in (rank, rank + 1))  # as array_split does
    found, before = [np.empty(0, np.int64)], 0
    for chunk, count in enumerate(counts):
        if before < end and before + count > begin:
            missing = (
                np.flatnonzero(memory.content[chunk * CHUNK_FRAMES : (chunk + 1) * CHUNK_FRAMES]) + chunk * CHUNK_FRAMES
            )
            found.append(of_node.start + of_node.step * missing[max(0, begin - before) : end - before])
        before += count
    world.node.barrier()
    memory.close()
    return np.concatenate(found)


def _mark_missing(
    world: World, held: Dataset | NodeFrames, span: range, of_node: range, missing: npt.NDArray[np.uint8]
) -> None:
    """Set, for each of a node's frames, whether it is native nowhere; on the first ranks, which do it together.

    They tell each other bits, of some frames at a time.
    """
    if world.leaders is None:
        return
    done = 0
    for begin in range(span.start, span.stop, CHUNK_FRAMES):
        some = range(begin, min(span.stop, begin + CHUNK_FRAMES))
        native, alien = (np.zeros(-(-len(some) // 64), dtype=np.uint64) for _ in range(2))
        held.mark(some, native, alien)
        if world.leaders.size > 1:
            mine = native.copy()
            world.leaders.Allreduce(mine, native, op=world.bor)
        first = done
        while done < len(of_node) and of_node[done] < some.stop:
            done = min(len(of_node), done + max(1, -(-(some.stop - of_node[done]) // of_node.step)))
        bits = np.unpackbits(native.view(np.uint8), bitorder="little")
        numbers = np.arange(first, done) * of_node.step + of_node.start - begin
        missing[first:done] = bits[numbers] == 0


def _read(origin: Origin, numbers: Numbers) -> Iterator[RawFrame]:
    """Read frames, some at once."""
    for begin in range(0, len(numbers), READ_AT_ONCE):
        yield from origin.read(numbers[begin : begin + READ_AT_ONCE])


def _write(
    dataset: Dataset, frames: Iterator[RawFrame], watch: OriginWatch, progress: Callable[[int], None], total: int
) -> int:
    """Write frames natively; what was written is kept whatever happens then, but for what another origin may have."""
    written = done = 0
    flushed = time.monotonic()
    unconfirmed: list[int] = []
    with _closing(dataset, unconfirmed):
        for frame in _told_of_change(frames, watch):
            if time.monotonic() > flushed + FLUSH_SECONDS:
                watch.check(last=False)
                dataset.flush()
                flushed = time.monotonic()
                unconfirmed.clear()
            elif watch.changed(frame.number):
                watch.check()
            try:
                new = dataset.write(
                    frame.number, frame.time, frame.box, frame.positions, frame.velocities, frame.forces, native=True
                )
            except StoreFullError as error:
                raise StoreFullError(
                    f"{error}; {done} of {total} frames of this rank are there: give a larger --quota, stage on more "
                    "nodes, or see 'himach cache evict'"
                ) from None
            if new:
                unconfirmed.append(frame.number)
                written += 1
            done += 1
            progress(done)
        if done:
            watch.check()
    return written


def _told_of_change(frames: Iterator[RawFrame], watch: OriginWatch) -> Iterator[RawFrame]:
    """Give frames; where one cannot be read because the origin has changed, that is what is told."""
    try:
        yield from frames
    except TrajectoryError:
        watch.check()
        raise


@contextmanager
def _closing(dataset: Dataset, unconfirmed: Sequence[int]) -> Iterator[None]:
    """Flush and release at the end; where something went wrong already, that is what is told.

    If the origin has changed, the frames that were written since it was looked at last are dropped.
    """
    try:
        yield
    except BaseException as error:
        with suppress(Exception):
            dataset.close()
        if isinstance(error, OriginChangedError):
            with suppress(StoreError):
                dataset.drop(unconfirmed, native=True)
                forget_frames(dataset, unconfirmed)
        raise
    dataset.close()
