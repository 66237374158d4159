"""Staging without the origin: `repair()`, of what these nodes hold, and `pull()`, of what servers elsewhere hold."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from pyroaring import BitMap64

from himach.errors import UsageError
from himach.io.dataset.attachment import AUTHOR, COPIES, INDEX, STAMP, TIMES, attached_stamp
from himach.io.dataset.lookup import Candidate, find, names_of, offline_candidate, open_cache, refuse_mixed
from himach.io.dataset.origin_stamp import OriginStamp
from himach.io.server.served_store import ServedStore
from himach.io.store.cached_frames import CachedFrames
from himach.io.store.store import Dataset, Store, StoreConflictError, StoreError
from himach.parallel.collective import Meeting, on_every_rank, on_first_rank
from himach.parallel.communicator import Communicator, World
from himach.parallel.progress import Progress
from himach.selection import is_sparse
from himach.staging.copy_plan import Numbers
from himach.staging.options import StageOptions
from himach.staging.repair import from_origin
from himach.staging.replication import attach_copies, check_copies, replicate, wanted_copies, write_natively

__all__ = ["description", "end_of", "held_as", "pull", "repair"]

TOPOLOGY = re.compile(r"topology-[0-9a-f]{16}")  # names of attached topology files

MOST_NAMED = 5  # frames

Part = Callable[[range, Dataset], Numbers]  # which of these frames a rank stages in a dataset


def repair(world: World, store: Store, job: StageOptions) -> tuple[Dataset, int, int]:
    """Restore the number of copies of a dataset's frames, of what the nodes hold (collective).

    Returns
    -------
    tuple
        The dataset in this node's store, how many frames it has, and how many copies were made.

    Raises
    ------
    UsageError
        No node holds the dataset, or it is not known how many copies are wanted.
    """
    comm = world.comm
    best, dataset = held_as(world, store, job)
    copies = job.copies or comm.allreduce(wanted_copies(dataset), op=max)
    if not copies:
        raise UsageError(f"nobody said how many copies of {best.name} there should be: give --copies, too")
    check_copies(world, copies)
    attach_copies(world, dataset, copies)
    n_frames = comm.allreduce(end_of(dataset, best), op=max)
    made, lost = replicate(world, dataset, n_frames, copies, partial(from_origin, dataset, best.stamp))
    if comm.rank == 0 and len(lost):
        print(
            f"himach: {len(lost)} frames are damaged on every node that holds them, and the origin does not give them: "
            f"{', '.join(map(str, lost[:MOST_NAMED].tolist()))}{', ...' if len(lost) > MOST_NAMED else ''}",
            file=sys.stderr,
        )
    return dataset, n_frames, made


def held_as(world: World, store: Store, job: StageOptions) -> tuple[Candidate, Dataset]:
    """Open the dataset that some nodes hold under the name that is the trajectory, on all of them (collective).

    Raises
    ------
    UsageError
        No node holds it.
    """
    comm = world.comm
    told = comm.allgather(on_every_rank(comm, lambda: _found(world, store, job)))
    nodes = comm.allgather(world.name)
    best = on_first_rank(comm, partial(_best, [one for of_rank in told for one in of_rank], job), share=True)
    if comm.rank == 0:
        _tell_older(best, list(zip(nodes, told, strict=True)))
    holder = next(rank for rank, of_rank in enumerate(told) for one in of_rank if _is_same(one, best))
    mine = on_every_rank(comm, lambda: store.dataset(best.name, best.generation) if comm.rank == holder else None)
    described = comm.bcast(on_every_rank(comm, lambda: None if mine is None else description(mine, best)), root=holder)
    return best, _begin(world, store, best, described)


def pull(world: World, store: Store, job: StageOptions, part: Part) -> tuple[Dataset, int, int]:
    """Stage what servers of other machines hold (collective): each rank reads its part, and writes it natively.

    Returns
    -------
    tuple
        As of `repair`; of the frames that were written now.
    """
    comm = world.comm
    remote, reason = on_every_rank(comm, lambda: open_cache(job.server))
    assert remote is not None
    reasons = sorted({one for one in comm.allgather(reason) if one})  # each rank has asked the servers for itself
    if comm.rank == 0:
        for one in reasons:
            print(f"himach: {one}", file=sys.stderr)
    best = on_first_rank(comm, lambda: _newest(remote, job), share=True)
    source = on_every_rank(comm, lambda: remote.dataset(best.name, best.generation))
    described = on_first_rank(comm, lambda: description(source, best), share=True)
    dataset = _begin(world, store, best, described)
    n_frames = int(comm.bcast(end_of(source, best)))
    there = source.native | source.alien
    if is_sparse(n_frames, len(there)):
        held = _lacking(world, there, dataset)
        nowhere = n_frames - len(there) if comm.rank == 0 else 0
    else:
        mine = part(range(n_frames), dataset)
        held = on_every_rank(comm, lambda: mine[source.holds(mine)])
        nowhere = len(mine) - len(held)
    meeting = Meeting(comm)
    with Progress(comm, int(comm.allreduce(len(held))), sys.stderr, quiet=job.quiet) as display:
        reading = source.read(held)
        frames = (frame for frame in reading if frame is not None)

        def fill() -> int:
            written = write_natively(dataset, frames, meeting.watched(display))
            dataset.close()
            display.finish(meeting.look)
            return written

        written = meeting.together(fill)
    source.close()
    _tell_left_out(comm, n_frames, nowhere, reading.misses)
    return dataset, n_frames, int(comm.allreduce(written))


def _lacking(world: World, there: BitMap64, dataset: Dataset) -> Numbers:
    """Return the frames that this rank stages of those that are `there` and native nowhere, by number (collective)."""
    native = world.comm.allgather(dataset.native if world.leaders is not None else BitMap64())
    numbers = np.asarray((there - BitMap64.union(*native)).to_array(), dtype=np.int64)
    of_node = numbers[numbers % len(world.nodes) == world.node_index]
    return np.array_split(of_node, world.node.size)[world.node.rank]


def _tell_left_out(comm: Communicator, n_frames: int, nowhere: int, misses: Mapping[str, int]) -> None:
    """Say how many frames were not staged, and why (collective); ranks ask the servers each for itself."""
    told = comm.gather({"held by no server that answered": nowhere, **misses})
    if comm.rank != 0:
        return
    whys: Counter[str] = Counter()
    for one in told:
        whys.update(one)
    left = sum(whys.values())
    if left:
        reasons = ", ".join(f"{why}: {count}" for why, count in sorted(whys.items()) if count)
        print(f"himach: {left} of {n_frames} frames are left out ({reasons})", file=sys.stderr)


def _found(world: World, store: Store, job: StageOptions) -> list[Candidate]:
    """Return what this node's store has under the dataset's names."""
    return [] if world.leaders is None else find(store, names_of(job.trajectories))


def _best(found: Sequence[Candidate], job: StageOptions) -> Candidate:
    """Return the newest of what was found."""
    refuse_mixed(found)
    chosen = offline_candidate(found, job.keywords)
    if chosen is None:
        raise UsageError(f"no dataset {job.trajectories[0]} is there: 'himach datasets' lists those that are")
    return chosen[0]


def _tell_older(best: Candidate, found: Sequence[tuple[str, Sequence[Candidate]]]) -> None:
    """Say which nodes hold what the origin was before: it is left as it is, and never mixed with what it is now."""
    older = sorted(
        {node for node, held in found for one in held if one.name == best.name and _is_older(one.stamp, best.stamp)}
    )
    if older:
        print(
            f"himach: frames of what {best.name} was before lie on {', '.join(older)}: they are not copied; "
            f"'himach cache evict {best.name}' there lets go of all",
            file=sys.stderr,
        )


def _is_older(stamp: OriginStamp, best: OriginStamp) -> bool:
    return stamp.sequence < best.sequence and stamp.content != best.content and stamp.compare(best) == "changed"


def _newest(remote: Store | ServedStore, job: StageOptions) -> Candidate:
    """Return the newest of what servers hold, and tell of what is older."""
    found = find(remote, names_of(job.trajectories))
    best = _best(found, job)
    _tell_older(best, [("the servers", found)])
    return best


def _is_same(one: Candidate, best: Candidate) -> bool:
    """Tell whether that is what was chosen, as late: an origin that grew keeps its generation."""
    return (one.name, one.generation, _state(one.stamp)) == (best.name, best.generation, _state(best.stamp))


def _state(stamp: OriginStamp) -> tuple[int, int, str]:
    """Return how late a stamp is, and of what."""
    return stamp.sequence, stamp.n_frames, stamp.content


def description(dataset: CachedFrames, best: Candidate) -> dict[str, bytes]:
    """Return all that is attached to a dataset that others need to read it; nothing that is a pickle."""
    # A stamp may come from elsewhere, and must not name what is read as a pickle here.
    topologies = [name for name in best.stamp.topologies.values() if TOPOLOGY.fullmatch(name)]
    names = [TIMES, INDEX, COPIES, AUTHOR, *topologies, STAMP]  # the stamp last: then the description is whole
    return {name: content for name in names if (content := dataset.attachment(name)) is not None}


def _begin(world: World, store: Store, best: Candidate, described: Mapping[str, bytes]) -> Dataset:
    """Open the dataset in each node's store, with its whole description; it is made where it is not yet."""

    def begin() -> None:
        if world.leaders is None:
            return
        with store.locked():
            others = [one for one in find(store, [best.name]) if one.stamp.content != best.stamp.content]
            if any(not set(one.stamp.paths) & set(best.stamp.paths) for one in others):
                raise StoreConflictError(f"the store of node {world.name} has another dataset {best.name}")
            dataset = store.dataset(best.name, best.generation)
            before = attached_stamp(dataset)
            # Frames must not come under a stamp of before there were any such.
            behind = before is not None and _state(before)[:2] < _state(best.stamp)[:2]
            for name, content in described.items():
                if behind or dataset.attachment(name) is None:
                    dataset.attach(name, content)

    on_every_rank(world.comm, begin)
    return on_every_rank(world.comm, lambda: store.dataset(best.name, best.generation))


def end_of(dataset: CachedFrames, best: Candidate) -> int:
    """Return how many frames a dataset has; of one that was pushed, as far as is known here."""
    if not best.stamp.is_pushed:
        return best.stamp.n_frames
    try:
        ends = dataset.ends(native=True)
    except StoreError:
        ends = None
    return 0 if ends is None else ends[1] + 1
