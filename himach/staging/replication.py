"""Staging without the origin: `replicate()` copies frames from node to node, `pull()` from servers of other machines.

To copy, all nodes exchange flags of the frames they hold, so that each computes the same moves by itself (`plan`).
"""

import operator
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from himach.errors import UsageError
from himach.frame import RawFrame
from himach.io.datasets.attachment import AUTHOR, COPIES, INDEX, STAMP, TIMES, read_stamp
from himach.io.datasets.lookup import Candidate, find, find_offline, list_names, open_cache, refuse_mixed
from himach.io.frame_source import Numbers
from himach.io.store.cached_frames import CachedFrames, select_range
from himach.io.store.store import Dataset, Store, StoreConflictError, StoreError
from himach.ranks.collective import on_first_rank, run_collectively
from himach.ranks.communicator import Communicator, World
from himach.staging.options import StageOptions
from himach.staging.shares import fill, gather_stored, own_part

Flags = npt.NDArray[np.bool_]
Moves = Mapping[tuple[int, int], Numbers]  # frames by (source node, target node)

FRAMES_AT_ONCE = 1 << 20  # frames whose flags nodes exchange at a time
BYTES_AT_ONCE = 256 << 20  # bytes of frames that a node sends in a round
SAMPLED_FRAMES = 100  # frames sampled for their size
VECTORS_BYTES = 36  # bytes per atom, with velocities and forces
FRAMES_TAG = 41
NOTHING: Numbers = np.empty(0, np.int64)


def attach_copies(world: World, dataset: Dataset, copies: int) -> None:
    """Record the number of copies in each node's store, so that it is known when one store is lost."""
    content = str(copies).encode()

    def attach() -> None:
        if world.leaders is not None and dataset.attachment(COPIES) != content:
            dataset.attach(COPIES, content)

    run_collectively(world.comm, attach)


def requested_copies(dataset: Dataset) -> int:
    """Return the number of copies of each frame requested when the dataset was staged; 0 if none was."""
    content = dataset.attachment(COPIES) or b""
    return int(content) if content.isdigit() else 0


def replicate(world: World, dataset: Dataset, n_frames: int, copies: int) -> int:
    """Copy frames that are native on fewer than `copies` nodes; return how many, print how many failed (collective)."""

    def work() -> tuple[int, int]:
        return (0, 0) if world.leaders is None else _replicate(world.leaders, dataset, n_frames, copies)

    written, unread = map(world.comm.allreduce, run_collectively(world.comm, work))
    run_collectively(world.comm, dataset.close)
    if unread and world.comm.rank == 0:
        print(
            f"himach: {unread} copies were not made, as frames could not be read or were evicted meanwhile: "
            "'himach cache verify --drop' on each node drops what is damaged, himach stage --repair makes the copies",
            file=sys.stderr,
        )
    return int(written)


def _replicate(leaders: Communicator, dataset: Dataset, n_frames: int, copies: int) -> tuple[int, int]:
    """Copy frames; return the numbers written and not received by this node."""
    written = unread = 0
    run_collectively(leaders, dataset.refresh)
    present = select_range(leaders.allreduce(dataset.native, op=operator.or_), 0, n_frames)
    for start in range(0, len(present), FRAMES_AT_ONCE):
        numbers = np.asarray(present[start : start + FRAMES_AT_ONCE].to_array(), dtype=np.int64)
        own = run_collectively(leaders, partial(dataset.holds, numbers, native=True))
        for batch in _rounds(leaders, dataset, plan(np.array(leaders.allgather(own)), numbers, copies)):
            frames = exchange(leaders, batch, dataset.read)
            requested = sum(len(moved) for (_, target), moved in batch.items() if target == leaders.rank)
            unread += requested - len(frames)
            written += run_collectively(leaders, partial(write_natively, dataset, frames))
    return written, unread


def plan(native: Flags, numbers: Numbers, copies: int) -> dict[tuple[int, int], Numbers]:
    """Return the frames, of ascending `numbers`, to move by (source node, target node), the same on every node.

    `native`, bool (nodes, frames): what each has. The copies of a node's frames are spread over the other nodes.
    """
    nodes = len(native)
    present = np.array(native)
    first_holder = present.argmax(axis=0)
    source = np.where(present[numbers % nodes, np.arange(len(numbers))], numbers % nodes, first_holder)
    moves: dict[tuple[int, int], list[Numbers]] = {}
    missing = np.where(present.any(axis=0), copies - present.sum(axis=0), 0)
    for copy in range(1, nodes):
        target = (source + 1 + (numbers // nodes + copy - 1) % (nodes - 1)) % nodes
        selected = (missing > 0) & ~present[target, np.arange(len(numbers))]
        for route in {(int(a), int(b)) for a, b in zip(source[selected], target[selected], strict=True)}:
            moves.setdefault(route, []).append(numbers[selected & (source == route[0]) & (target == route[1])])
        missing = missing - selected
    return {route: np.sort(np.concatenate(parts)) for route, parts in sorted(moves.items())}


def _rounds(leaders: Communicator, dataset: Dataset, moves: Moves) -> Iterator[dict[tuple[int, int], Numbers]]:
    """Yield the moves of each round; the number of rounds is the same on every node."""
    samples = [numbers[:SAMPLED_FRAMES] for (source, _), numbers in moves.items() if source == leaders.rank]
    atoms = run_collectively(leaders, lambda: int(dataset.atoms(samples[0]).max(initial=1)) if samples else 1)
    max_bytes = leaders.allreduce(VECTORS_BYTES * atoms, op=max)
    max_frames = max(map(len, moves.values()), default=0)
    rounds = -(-max_frames * max_bytes * leaders.size // BYTES_AT_ONCE)
    at_once = {route: -(-len(numbers) // rounds) for route, numbers in moves.items()}
    for index in range(rounds):
        yield {route: numbers[index * at_once[route] :][: at_once[route]] for route, numbers in moves.items()}


def exchange(
    comm: Communicator, moves: Moves, read: Callable[[Numbers], Iterable[RawFrame | None]]
) -> list[RawFrame]:  # fmt: skip
    """Send the frames of `moves` by (source rank, target rank), but for unreadable ones; return those received here."""
    sends = {target: numbers for (source, target), numbers in moves.items() if source == comm.rank}
    needed = np.unique(np.concatenate([NOTHING, *sends.values()]))

    def read_out() -> dict[int, list[RawFrame]]:
        frames = {frame.number: deepcopy(replace(frame, more=None)) for frame in read(needed) if frame is not None}
        return {target: [frames[n] for n in numbers.tolist() if n in frames] for target, numbers in sends.items()}

    outgoing = run_collectively(comm, read_out)  # before any rank sends: else a message stays for the next exchange
    requests = [comm.isend(group, target, FRAMES_TAG) for target, group in outgoing.items()]
    received = [comm.recv(source=source, tag=FRAMES_TAG) for source, target in moves if target == comm.rank]
    for request in requests:
        request.wait()
    return [frame for group in received for frame in group]


def write_natively(dataset: Dataset, frames: Iterable[RawFrame], report: Callable[[int], None] | None = None) -> int:
    """Write frames to a node's store; return the number of new ones."""
    written = 0
    for count, frame in enumerate(frames, 1):
        written += dataset.write(
            frame.number, frame.time, frame.box, frame.positions, frame.velocities, frame.forces, native=True
        )
        if report is not None:
            report(count)
    dataset.flush()
    return written


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
    best = on_first_rank(comm, lambda: _newest(find(remote, list_names(job.trajectories)), job), share=True)
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
    by_rank = comm.gather(Counter({"on no server that answered": n_missing, **misses}))
    totals: Counter[str] = sum(by_rank or (), Counter())
    if n_left := totals.total():
        reasons = ", ".join(f"{reason}: {count}" for reason, count in sorted(totals.items()))
        print(f"himach: {n_left} of {n_frames} frames are left out ({reasons})", file=sys.stderr)


def open_on_nodes(world: World, store: Store, job: StageOptions) -> tuple[Dataset, int]:
    """Open a dataset that these nodes hold, on each of them; return it and its number of frames (collective)."""
    comm = world.comm
    stored = run_collectively(comm, lambda: [] if world.leaders is None else find(store, list_names(job.trajectories)))
    by_rank = comm.allgather(stored)
    best = on_first_rank(comm, lambda: _newest([item for group in by_rank for item in group], job), share=True)
    holder = next(rank for rank, group in enumerate(by_rank) if best in group)

    def read_description() -> dict[str, bytes]:
        return description(store.dataset(best.name, best.generation), best) if comm.rank == holder else {}

    dataset = _open_dataset(world, store, best, comm.bcast(run_collectively(comm, read_description), root=holder))
    return dataset, comm.allreduce(_count_frames(dataset, best), op=max)


def _newest(candidates: Sequence[Candidate], job: StageOptions) -> Candidate:
    """Return the newest of the datasets of a name."""
    refuse_mixed(candidates)
    chosen = find_offline(candidates, job.keywords)
    if chosen is None:
        raise UsageError(f"no dataset {job.trajectories[0]} is there: 'himach datasets' lists those that are")
    return chosen[0]


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
            states = [(stamp.sequence, stamp.n_frames) for stamp in (previous, best.stamp) if stamp is not None]
            outdated = states[0] < states[-1]
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
