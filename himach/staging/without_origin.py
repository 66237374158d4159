"""Staging without the origin: `pull()`, of what servers elsewhere hold, and `repair()`, of what these nodes hold."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path

import numpy as np
from pyroaring import BitMap64

from himach.errors import HimachError, UsageError
from himach.frame import RawFrame
from himach.io.dataset.attachment import AUTHOR, COPIES, INDEX, STAMP, TIMES, read_stamp
from himach.io.dataset.lookup import Candidate, find, find_offline, list_names, open_cache, refuse_mixed
from himach.io.dataset.origin_stamp import OriginStamp
from himach.io.dataset.origin_watch import open_unchanged
from himach.io.store.cached_frames import CachedFrames
from himach.io.store.store import Dataset, Store, StoreConflictError, StoreError
from himach.io.trajectory.origin import Origin, open_origin
from himach.parallel.collective import Meeting, on_first_rank, run_collectively
from himach.parallel.communicator import Communicator, World
from himach.parallel.progress import Progress
from himach.selection import is_sparse
from himach.staging.options import StageOptions
from himach.staging.replication import attach_copies, check_copies, replicate, wanted_copies, write_natively
from himach.staging.shares import Numbers, missing_part

MOST_NAMED = 5  # frames
READ_AT_ONCE = 64  # frames that are held in memory
TOPOLOGY = re.compile(r"topology-[0-9a-f]{16}")  # names of attached topology files


def pull(world: World, store: Store, job: StageOptions) -> tuple[Dataset, int, int]:
    """Stage what servers of other machines hold (collective): each rank reads its part, and writes it natively."""
    comm = world.comm
    remote, reason = run_collectively(comm, lambda: open_cache(job.server))
    assert remote is not None
    reasons = sorted({one for one in comm.allgather(reason) if one})  # each rank has asked the servers for itself
    if comm.rank == 0:
        for one in reasons:
            print(f"himach: {one}", file=sys.stderr)
    best = on_first_rank(
        comm, lambda: _newest([("the servers", find(remote, list_names(job.trajectories)))], job), share=True
    )
    source = run_collectively(comm, lambda: remote.dataset(best.name, best.generation))
    described = on_first_rank(comm, lambda: description(source, best), share=True)
    dataset = _begin(world, store, best, described)
    n_frames = int(comm.bcast(_end_of(source, best)))
    there = source.native | source.alien
    if is_sparse(n_frames, len(there)):
        held = _lacking(world, there, dataset)
        nowhere = n_frames - len(there) if comm.rank == 0 else 0
    else:
        mine = missing_part(world, job.placement, range(n_frames), dataset)
        held = run_collectively(comm, lambda: mine[source.holds(mine)])
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


def repair(world: World, store: Store, job: StageOptions) -> tuple[Dataset, int, int]:
    """Restore the number of copies of a dataset's frames, of what the nodes hold (collective)."""
    comm = world.comm
    mine = run_collectively(comm, lambda: [] if world.leaders is None else find(store, list_names(job.trajectories)))
    several = comm.allgather((world.name, mine))
    best = on_first_rank(comm, lambda: _newest(several, job), share=True)
    same = (best.name, best.generation, _state_of(best.stamp))  # as late: an origin that grew keeps its generation
    holder = next(
        rank
        for rank, (_, some) in enumerate(several)
        if same in [(one.name, one.generation, _state_of(one.stamp)) for one in some]
    )

    def described() -> dict[str, bytes]:
        return description(store.dataset(best.name, best.generation), best) if comm.rank == holder else {}

    dataset = _begin(world, store, best, comm.bcast(run_collectively(comm, described), root=holder))
    copies = job.copies or comm.allreduce(wanted_copies(dataset), op=max)
    if not copies:
        raise UsageError(f"nobody said how many copies of {best.name} there should be: give --copies, too")
    check_copies(world, copies)
    attach_copies(world, dataset, copies)
    n_frames = comm.allreduce(_end_of(dataset, best), op=max)
    made, lost = replicate(world, dataset, n_frames, copies, partial(_heal, dataset, best.stamp))
    if comm.rank == 0 and len(lost):
        print(
            f"himach: {len(lost)} frames are damaged on every node that holds them, and the origin does not give them: "
            f"{', '.join(map(str, lost[:MOST_NAMED].tolist()))}{', ...' if len(lost) > MOST_NAMED else ''}",
            file=sys.stderr,
        )
    return dataset, n_frames, made


def _heal(dataset: Dataset, stamp: OriginStamp, numbers: Numbers) -> Numbers:
    """Write frames anew as the origin has them, if it can be reached and is as it was; return which were written."""
    for done in range(0, len(numbers), READ_AT_ONCE):
        frames = _reread(stamp, numbers[done : done + READ_AT_ONCE])
        if not frames:
            return numbers[:done]
        write_natively(dataset, frames)
    return numbers


def _reread(stamp: OriginStamp, numbers: Numbers) -> list[RawFrame]:
    """Read frames of the origin; none if it cannot be reached, or is not what the stamp tells."""
    keywords = json.loads(stamp.keywords)

    def opened() -> Origin:
        topology = next((Path(path) for path in reversed(list(stamp.topologies)) if Path(path).exists()), None)
        return open_origin(stamp.paths, topology, keywords)

    try:
        if stamp.is_pushed:
            return []
        origin = open_unchanged(stamp.paths, opened)
        frames = [deepcopy(frame) for frame in origin.read(numbers.tolist())]
        return frames if stamp.compare(OriginStamp.from_origin(origin, keywords, [stamp])) != "changed" else []
    except (HimachError, OSError):
        return []


def _newest(found: Sequence[tuple[str, Sequence[Candidate]]], job: StageOptions) -> Candidate:
    """Return the newest of what nodes hold; say which of them hold what the origin was before.

    That is left as it is, and never mixed with what the origin is now.
    """
    every = [candidate for _, some in found for candidate in some]
    refuse_mixed(every)
    chosen = find_offline(every, job.keywords)
    if chosen is None:
        raise UsageError(f"no dataset {job.trajectories[0]} is there: 'himach datasets' lists those that are")
    best = chosen[0]
    older = sorted({node for node, some in found if any(_is_older(candidate, best) for candidate in some)})
    if older:
        print(
            f"himach: frames of what {best.name} was before lie on {', '.join(older)}: they are not "
            f"copied; 'himach cache evict {best.name}' there lets go of all",
            file=sys.stderr,
        )
    return best


def _is_older(candidate: Candidate, best: Candidate) -> bool:
    stamp, newest = candidate.stamp, best.stamp
    is_before = stamp.sequence < newest.sequence and stamp.content != newest.content
    return candidate.name == best.name and is_before and stamp.compare(newest) == "changed"


def _state_of(stamp: OriginStamp) -> tuple[int, int, str]:
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

    def attach() -> None:
        if world.leaders is None:
            return
        with store.locked():
            others = [one for one in find(store, [best.name]) if one.stamp.content != best.stamp.content]
            if any(not set(one.stamp.paths) & set(best.stamp.paths) for one in others):
                raise StoreConflictError(f"the store of node {world.name} has another dataset {best.name}")
            dataset = store.dataset(best.name, best.generation)
            before = read_stamp(dataset)
            # Frames must not come under a stamp of before there were any such.
            behind = before is not None and _state_of(before)[:2] < _state_of(best.stamp)[:2]
            for name, content in described.items():
                if behind or dataset.attachment(name) is None:
                    dataset.attach(name, content)

    run_collectively(world.comm, attach)
    return run_collectively(world.comm, lambda: store.dataset(best.name, best.generation))


def _end_of(dataset: CachedFrames, best: Candidate) -> int:
    """Return how many frames a dataset has; of one that was pushed, as far as is known here."""
    if not best.stamp.is_pushed:
        return best.stamp.n_frames
    try:
        ends = dataset.bounds(native=True)
    except StoreError:
        ends = None
    return 0 if ends is None else ends[1] + 1
