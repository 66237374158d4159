"""Staging without the origin: `pull()` from servers of other machines, and `repair()` from these nodes."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from himach.errors import HimachError, UsageError
from himach.frame import RawFrame
from himach.io.datasets.attachment import AUTHOR, COPIES, INDEX, STAMP, TIMES, read_stamp
from himach.io.datasets.lookup import Candidate, find, find_offline, list_names, open_cache, refuse_mixed
from himach.io.datasets.origin_stamp import OriginStamp, open_unchanged
from himach.io.frame_source import Numbers, ReadOptions
from himach.io.store.cached_frames import CachedFrames, select_range
from himach.io.store.store import Dataset, Store, StoreConflictError, StoreError
from himach.io.trajectories.origin import open_origin
from himach.ranks.collective import on_first_rank, run_collectively
from himach.ranks.communicator import Communicator, World
from himach.staging.options import StageOptions
from himach.staging.replication import attach_copies, check_copies, replicate, requested_copies, write_natively
from himach.staging.shares import fill, gather_stored, own_part

MOST_NAMED = 5  # frames
READ_AT_ONCE = 64  # frames held in memory
CHECKED_AT_ONCE = 1 << 12
DAMAGED = ("damaged", "error of the disk")  # reasons of a miss that recurs
TOPOLOGY = re.compile(r"topology-[0-9a-f]{16}")  # names of attached topology files


def pull(world: World, store: Store, job: StageOptions) -> tuple[Dataset, int, int]:
    """Stage the frames that servers of other machines hold (collective); each rank writes its part natively."""
    comm = world.comm
    remote, reason = run_collectively(comm, lambda: open_cache(job.server))
    assert remote is not None
    reasons = sorted({text for text in comm.allgather(reason) if text})  # each rank asks the servers
    if comm.rank == 0:
        for text in reasons:
            print(f"himach: {text}", file=sys.stderr)
    best = on_first_rank(
        comm, lambda: _newest([("the servers", find(remote, list_names(job.trajectories)))], job), share=True
    )
    source = run_collectively(comm, lambda: remote.dataset(best.name, best.generation))
    attachments = on_first_rank(comm, lambda: description(source, best), share=True)
    dataset = _open_dataset(world, store, best, attachments)
    n_frames = int(comm.bcast(_count_frames(source, best)))
    available = on_first_rank(comm, lambda: select_range(source.native | source.alien, 0, n_frames), share=True)
    native = gather_stored(world, lambda: dataset.native)
    numbers = own_part(world, job.placement, available, native)
    n_missing = n_frames - len(select_range(available | native, 0, n_frames)) if comm.rank == 0 else 0
    reading = source.read(numbers)

    def write(report: Callable[[int], None]) -> int:
        n_written = write_natively(dataset, (frame for frame in reading if frame is not None), report)
        dataset.close()
        return n_written

    written = fill(world, job, len(numbers), write)
    source.close()
    _report_left_out(comm, n_frames, n_missing, reading.misses)
    return dataset, n_frames, written


def _report_left_out(comm: Communicator, n_frames: int, n_missing: int, misses: Mapping[str, int]) -> None:
    """Print how many frames were not staged and why (collective); each rank has its own misses."""
    by_rank = comm.gather(Counter({"held by no server that answered": n_missing, **misses}))
    totals: Counter[str] = sum(by_rank or (), Counter())
    if n_left := totals.total():
        reasons = ", ".join(f"{reason}: {count}" for reason, count in sorted(totals.items()))
        print(f"himach: {n_left} of {n_frames} frames are left out ({reasons})", file=sys.stderr)


def repair(world: World, store: Store, job: StageOptions) -> tuple[Dataset, int, int]:
    """Restore the number of copies of a dataset's frames from those on the nodes (collective)."""
    comm = world.comm
    stored = run_collectively(comm, lambda: [] if world.leaders is None else find(store, list_names(job.trajectories)))
    by_rank = comm.allgather((world.name, stored))
    best = on_first_rank(comm, lambda: _newest(by_rank, job), share=True)
    key = (best.name, best.generation, _stamp_key(best.stamp))  # an origin that grew keeps its generation
    holder = next(
        rank
        for rank, (_, candidates) in enumerate(by_rank)
        if key in [(candidate.name, candidate.generation, _stamp_key(candidate.stamp)) for candidate in candidates]
    )

    def read_description() -> dict[str, bytes]:
        return description(store.dataset(best.name, best.generation), best) if comm.rank == holder else {}

    dataset = _open_dataset(world, store, best, comm.bcast(run_collectively(comm, read_description), root=holder))
    copies = job.copies or comm.allreduce(requested_copies(dataset), op=max)
    if not copies:
        raise UsageError(f"nobody said how many copies of {best.name} there should be: give --copies, too")
    check_copies(world, copies)
    attach_copies(world, dataset, copies)
    n_frames = comm.allreduce(_count_frames(dataset, best), op=max)

    def mend() -> tuple[int, Numbers]:
        return (0, np.empty(0, np.int64)) if world.leaders is None else _mend(world.leaders, dataset, best.stamp)

    written, lost = run_collectively(comm, mend)
    copied = int(comm.allreduce(written)) + replicate(world, dataset, n_frames, copies)
    if comm.rank == 0 and len(lost):
        print(
            f"himach: {len(lost)} frames are damaged on every node that holds them, and the origin does not give them: "
            f"{', '.join(map(str, lost[:MOST_NAMED].tolist()))}{', ...' if len(lost) > MOST_NAMED else ''}",
            file=sys.stderr,
        )
    return dataset, n_frames, copied


def _mend(leaders: Communicator, dataset: Dataset, stamp: OriginStamp) -> tuple[int, Numbers]:
    """Rewrite frames damaged on all nodes, drop those intact elsewhere; return how many, and what the origin lacks."""
    own = run_collectively(leaders, partial(_unreadable, dataset))
    numbers = np.unique(np.concatenate(leaders.allgather(own)))
    cached = run_collectively(leaders, partial(dataset.holds, numbers, native=True))
    lost = numbers[~np.any(leaders.allgather(cached & ~np.isin(numbers, own)), axis=0)]
    rewritten = run_collectively(leaders, partial(_heal, dataset, stamp, np.intersect1d(own, lost)))
    lost = np.setdiff1d(lost, np.concatenate(leaders.allgather(rewritten)))
    copied = np.setdiff1d(own, np.concatenate([rewritten, lost]))
    run_collectively(leaders, partial(dataset.drop, copied, native=True))
    return len(rewritten), lost


def _unreadable(dataset: Dataset) -> Numbers:
    """Return the damaged native frames; every byte is checked."""
    dataset.refresh()
    native, damaged = iter(dataset.native), []
    while numbers := list(islice(native, CHECKED_AT_ONCE)):
        reading = dataset.read(np.array(numbers, np.int64), ReadOptions(unpack=False))
        damaged += [
            number
            for number, frame in zip(numbers, reading, strict=True)
            if frame is None and reading.reason in DAMAGED
        ]
    return np.array(damaged, np.int64)


def _heal(dataset: Dataset, stamp: OriginStamp, numbers: Numbers) -> Numbers:
    """Rewrite frames from the origin if it is reachable and unchanged; return the frames written."""
    count = 0
    for frames in _reread(stamp, numbers):
        write_natively(dataset, frames)
        count += len(frames)
    return numbers[:count]


def _reread(stamp: OriginStamp, numbers: Numbers) -> Iterator[list[RawFrame]]:
    """Yield frames of the origin in batches, as long as it is reachable and matches the stamp."""
    if stamp.is_pushed or not len(numbers):
        return
    keywords = json.loads(stamp.keywords)
    topology = next((Path(path) for path in reversed(list(stamp.topologies)) if Path(path).exists()), None)
    with suppress(HimachError, OSError):
        origin = open_unchanged(stamp.paths, partial(open_origin, stamp.paths, topology, keywords))
        for start in range(0, len(numbers), READ_AT_ONCE):
            frames = [deepcopy(frame) for frame in origin.read(numbers[start : start + READ_AT_ONCE].tolist())]
            if stamp.compare(OriginStamp.from_origin(origin, keywords, [stamp])) == "changed":
                return
            yield frames


def _newest(by_node: Sequence[tuple[str, Sequence[Candidate]]], job: StageOptions) -> Candidate:
    """Return the newest dataset on the nodes; print which hold an earlier state, never mixed with it."""
    candidates = [candidate for _, group in by_node for candidate in group]
    refuse_mixed(candidates)
    chosen = find_offline(candidates, job.keywords)
    if chosen is None:
        raise UsageError(f"no dataset {job.trajectories[0]} is there: 'himach datasets' lists those that are")
    best = chosen[0]
    older = sorted({node for node, group in by_node if any(_is_older(candidate, best) for candidate in group)})
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


def _stamp_key(stamp: OriginStamp) -> tuple[int, int, str]:
    """Return the order of a stamp, (sequence, frames), and its content."""
    return stamp.sequence, stamp.n_frames, stamp.content


def description(dataset: CachedFrames, best: Candidate) -> dict[str, bytes]:
    """Return the attachments that others need to read a dataset; never a pickle."""
    # A stamp may come from another machine and must not name an attachment that is unpickled here.
    topologies = [name for name in best.stamp.topologies.values() if TOPOLOGY.fullmatch(name)]
    names = [TIMES, INDEX, COPIES, AUTHOR, *topologies, STAMP]  # the stamp last: it marks the description as complete
    return {name: content for name in names if (content := dataset.attachment(name)) is not None}


def _open_dataset(world: World, store: Store, best: Candidate, attachments: Mapping[str, bytes]) -> Dataset:
    """Open or create the dataset in each node's store, with its whole description."""

    def attach() -> None:
        if world.leaders is None:
            return
        with store.locked():
            conflicting = [other for other in find(store, [best.name]) if other.stamp.content != best.stamp.content]
            if any(not set(other.stamp.paths) & set(best.stamp.paths) for other in conflicting):
                raise StoreConflictError(f"the store of node {world.name} has another dataset {best.name}")
            dataset = store.dataset(best.name, best.generation)
            previous = read_stamp(dataset)
            # A stamp older than the frames must not describe them.
            outdated = previous is not None and _stamp_key(previous)[:2] < _stamp_key(best.stamp)[:2]
            for name, content in attachments.items():
                if outdated or dataset.attachment(name) is None:
                    dataset.attach(name, content)

    run_collectively(world.comm, attach)
    return run_collectively(world.comm, lambda: store.dataset(best.name, best.generation))


def _count_frames(dataset: CachedFrames, best: Candidate) -> int:
    """Return the number of frames of a dataset; for a pushed one, as far as known here."""
    if not best.stamp.is_pushed:
        return best.stamp.n_frames
    try:
        bounds = dataset.bounds(native=True)
    except StoreError:
        bounds = None
    return 0 if bounds is None else bounds[1] + 1
