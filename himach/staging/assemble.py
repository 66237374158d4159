"""Assembling: slices become whole native frames, each on one node, in rounds of bounded memory, by a rank of each node.

A slice is dropped once its frame is on disk, so the process can be killed at any moment, and two can run at once:
frames written twice are identical.
"""

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.errors import HimachError, UsageError
from himach.io.datasets.request import DatasetRequest
from himach.io.push.held_slices import SUFFIX, HeldSlices, SliceKind, find_slices
from himach.io.server.survey import ServedStore
from himach.io.store.bodhi import GatherHandle
from himach.io.store.quota import open_chosen, set_chosen_quota
from himach.io.store.store import Dataset, Store, StoreError, StoreFullError
from himach.io.trajectories.urls.url_names import is_url
from himach.ranks.collective import is_everywhere, run_collectively
from himach.ranks.communicator import Communicator, World
from himach.staging.complete_frames import FOREIGN, Assembled, AssemblyTarget, Finder
from himach.staging.options import StageOptions
from himach.staging.shares import open_store

#: Minimum seconds between two polls, and minimum pause as a multiple of a poll's duration.
POLL_SECONDS = 0.5
POLL_FACTOR = 10


def has_slices(world: World, store: Store | None, name: str) -> bool:
    """Return whether any node has slices of a dataset (collective)."""
    own = run_collectively(
        world.comm, lambda: world.leaders is not None and store is not None and bool(store.generations(name + SUFFIX))
    )
    return bool(world.comm.allreduce(own))


def assemble(world: World, store: Store | None, name: str) -> Assembled:
    """Assemble all frames of a dataset whose slices are complete, by the first rank of each node (collective)."""
    leaders = world.leaders
    work = run_collectively(world.comm, lambda: None if leaders is None else _assemble(world, leaders, store, name))
    result: Assembled = world.node.bcast(work)
    return result


def _assemble(world: World, leaders: Communicator, store: Store | None, name: str) -> Assembled:
    by_kind = run_collectively(leaders, lambda: {} if store is None else find_slices(store, name, past=True))
    own_kinds = [kind for kind, slices in by_kind.items() if slices.datasets]
    kinds: list[SliceKind] = sorted({kind for node_kinds in leaders.allgather(own_kinds) for kind in node_kinds})
    writers = np.flatnonzero(leaders.allgather(store is not None))
    result = Assembled()
    record_superseded(leaders, by_kind)
    finders: list[Finder] = []
    try:
        for kind in kinds:
            target, slices = AssemblyTarget(store, name, kind), by_kind.get(kind, HeldSlices())
            finders.append(finder := Finder(leaders, world.sum, writers, target, kind, slices, result))
            # Check that all launches belong to one simulation before setting slices of any of them aside.
            target.agree_on_author(
                leaders, [slices for other, slices in by_kind.items() if kind.is_same_dataset(other)]
            )
            run_collectively(leaders, slices.refresh)
            Rounds(finder, world.name).run()
            finder.forget_native()
        for finder in finders:
            finder.drop_aside()
    finally:
        for finder in finders:
            finder.target.close()
    result.nodes = {
        node: count for counts in leaders.allgather(result.nodes) for node, count in counts.items() if count
    }
    return result


@dataclass(frozen=True)
class Launch:
    """A launch as a node knows it."""

    number: int  # in the node's store
    first: int | None  # first frame with a slice there
    superseded: int | None  # first frame whose slices a later launch is known to supersede


def record_superseded(leaders: Communicator, by_kind: Mapping[SliceKind, HeldSlices]) -> None:
    """Record on all nodes which slices later launches supersede (collective over the first ranks).

    Where nodes that know two launches differ on their order, or none knows both, neither is left aside.
    """

    def inspect() -> dict[SliceKind, Launch]:
        for slices in by_kind.values():
            slices.refresh()
        # Read `superseded` last: it is recorded before slices of the later launch are dropped.
        return {kind: Launch(slices.launch, slices.first, slices.superseded) for kind, slices in by_kind.items()}

    nodes = leaders.allgather(run_collectively(leaders, inspect))

    def record() -> None:
        for kind, slices in by_kind.items():
            firsts = [
                launch.first
                for node in nodes
                for other, launch in node.items()
                if kind.is_same_dataset(other) and _is_later(nodes, other, kind)
            ]
            if slices.superseded is None:  # else this node knows better: the mark may be used again
                firsts += [node[kind].superseded for node in nodes if kind in node]
            slices.supersede(firsts)

    run_collectively(leaders, record)


def _is_later(nodes: Sequence[Mapping[SliceKind, Launch]], kind: SliceKind, other: SliceKind) -> bool:
    order = [node[kind].number > node[other].number for node in nodes if kind in node and other in node]
    return bool(order) and all(order)


def assemble_for_run(world: World, store: Store | ServedStore | None, request: DatasetRequest) -> Sequence[str]:
    """Assemble the slices of a run's dataset; return messages, also of a full store, which ends no run (collective)."""
    if len(request.trajectories) != 1 or request.cache == "off":
        return []
    if os.path.isabs(request.trajectories[0]) or is_url(request.trajectories[0]):
        return []
    if world.comm.bcast(os.path.exists(os.path.expanduser(request.trajectories[0]))):
        return []
    return assemble_pushed(world, store, os.fspath(request.trajectories[0]))


def assemble_pushed(world: World, store: Store | ServedStore | None, name: str) -> Sequence[str]:
    """Assemble the slices pushed under a name, like `assemble_for_run` (collective)."""
    own_store = store if isinstance(store, Store) else None
    if not has_slices(world, own_store, name):
        return []
    try:
        result = assemble(world, own_store, name)
    except HimachError as error:
        # Either all ranks continue or none, although error classes may differ; if other ranks wait, all must end.
        if not is_everywhere(error) or world.comm.allreduce(isinstance(error, StoreError)) < world.comm.size:
            raise
        return [f"not all slices of {name} were put together: {error}"]
    return [f"{name}: {result}"] if result.absent or result.aside is not None else []


class SliceAssembler:
    """Assembles slices as they arrive, using at most a tenth of the time (collective)."""

    def __init__(self, world: World, cache: str, name: Path) -> None:
        self._world, self._name = world, name
        self._next = 0.0
        store, _ = run_collectively(world.comm, lambda: open_chosen(cache))
        self._store = store
        if store is not None:
            run_collectively(world.comm, lambda: set_chosen_quota(store))

    def poll(self) -> None:
        """Assemble the frames complete by now, if the pause has passed."""
        start = time.monotonic()
        if self._world.comm.bcast(start >= self._next):
            assemble_pushed(self._world, self._store, os.fspath(self._name))
            end = time.monotonic()
            self._next = end + max(POLL_SECONDS, POLL_FACTOR * (end - start))


def assemble_here(world: World, job: StageOptions) -> str:
    """Assemble the slices pushed under the job's trajectory's name; return a summary (collective)."""
    other_options = (job.dataset, job.topology, job.copies, job.atoms, job.repair, job.server, job.keywords)
    if len(job.trajectories) != 1 or any(other_options) or job.placement != "spread":
        raise UsageError(
            "--assemble takes the name under which slices were pushed, and of the other options only "
            "--cache, --quota and -n: stage the frames with the others when they are there"
        )
    store = open_store(world.comm, job)
    name = os.fspath(job.trajectories[0])
    if not has_slices(world, store, name):
        raise UsageError(f"no node has slices of a dataset {name}")
    result = assemble(world, store, name)

    def refuse() -> None:
        if result.aside is not None:
            raise HimachError(f"{name}: {result}")

    run_collectively(world.comm, refuse)
    return f"{name}: {result}"


Bytes = npt.NDArray[np.uint8]

#: Seconds between two polls of pending requests.
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 5e-5, 1e-3
_BYTE = "B"
_TAG = 7030


def send_all(comm: Communicator, outgoing: Sequence[Bytes], sizes: Sequence[int]) -> list[Bytes]:
    """Send ``outgoing[r]`` to every other rank r; return what each has sent here (collective)."""
    incoming = [np.empty(0 if source == comm.rank else size, np.uint8) for source, size in enumerate(sizes)]
    requests = [comm.Irecv([data, _BYTE], source, _TAG) for source, data in enumerate(incoming) if len(data)]
    for target, data in enumerate(outgoing):
        if target != comm.rank and len(data):
            requests.append(comm.Isend([data, _BYTE], target, _TAG))
    _await(requests)
    return incoming


def _await(requests: list[Any]) -> None:
    """Wait for all requests without taking the core from the threads that read and write."""
    pause = MIN_PAUSE_SECONDS
    while requests:
        pending = [request for request in requests if not request.Test()]
        if len(pending) == len(requests):
            time.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)
        else:
            pause = MIN_PAUSE_SECONDS
        requests = pending


#: Bytes of frames that a rank assembles in a round, of which there are three: one is read, one sent, one written.
ROUND_BYTES = 16 << 20
MAX_ROUND_FRAMES = 8192


@dataclass
class Written:
    """Frames of a round that are on disk, why others are absent, and the error of a store without room for the rest."""

    durable: list[int] = field(default_factory=list)
    absent: dict[int, str] = field(default_factory=dict)
    full: StoreFullError | None = None


class Rounds:
    """Assembles the frames of a finder with its ranks, one on each node."""

    def __init__(self, finder: Finder, node: str) -> None:
        self._finder, self._node, self._comm = finder, node, finder.leaders
        self._target, self._slices, self._result = finder.target, finder.slices, finder.result
        self._writing: Future[Written] | None = None  # the round being written

    def run(self) -> None:
        """Assemble the complete frames (collective)."""
        n_atoms = self._finder.n_atoms
        at_once = min(MAX_ROUND_FRAMES, max(1, ROUND_BYTES // (12 * n_atoms)))
        handles = itertools.cycle([GatherHandle(n_atoms, self._comm.size, self._comm.rank) for _ in range(3)])
        with (
            ThreadPoolExecutor(1, "slices-read") as reader,
            ThreadPoolExecutor(1, "slices-write") as self._writer,
        ):
            previous: tuple[GatherHandle, Future[dict[int, int]], bool] | None = None
            for numbers, ranks in self._finder.plans(at_once):
                gather = next(handles)
                gather.begin(np.ascontiguousarray(numbers), np.ascontiguousarray(ranks))
                is_own = bool((ranks == self._comm.rank).any())
                current = gather, reader.submit(self._slices.gather, gather, numbers), is_own
                if previous is not None:
                    self._send(*previous)
                previous = current
            if previous is not None:
                self._send(*previous)
            self._finish_writing()

    def _send(self, gather: GatherHandle, read: Future[dict[int, int]], is_own: bool) -> None:
        """Send the slices of a round when the last one is written; write frames, if this rank has some (collective)."""
        unread = run_collectively(self._comm, read.result)
        self._finish_writing()
        outgoing = [gather.parcel(rank) for rank in range(self._comm.size)]
        reason = f"on node {self._node} cannot be read"
        reasons = {number: f"the slice of rank {rank} {reason}" for number, rank in unread.items()}
        sizes = {rank: len(data) for rank, data in enumerate(outgoing) if len(data)}
        by_rank = self._comm.allgather((reasons, sizes))
        for rank_reasons, _ in by_rank:
            self._result.note(rank_reasons)
        incoming = send_all(self._comm, outgoing, [rank_sizes.get(self._comm.rank, 0) for _, rank_sizes in by_rank])
        dataset = run_collectively(self._comm, lambda: self._target.open_to_write() if is_own else None)
        self._writing = self._writer.submit(write_frames, gather, dataset, incoming)

    def _finish_writing(self) -> None:
        """Drop the slices of the frames on disk, also if the store has no room for the others (collective)."""
        if self._writing is None:
            return
        written = run_collectively(self._comm, partial(self._take, self._writing))
        self._writing = None
        by_rank = self._comm.allgather((written.durable, written.absent))
        durable = np.sort(np.array([number for numbers, _ in by_rank for number in numbers], np.int64))
        for _, absent in by_rank:
            self._result.note(absent)
        self._result.frames += len(durable)
        self._result.nodes[self._node] = self._result.nodes.get(self._node, 0) + len(written.durable)
        run_collectively(self._comm, partial(self._slices.drop, durable))
        run_collectively(self._comm, partial(self._refuse, written.full))

    def _take(self, writing: Future[Written]) -> Written:
        try:
            return writing.result()
        except StoreFullError as error:
            self._refuse(error)
            raise

    def _refuse(self, error: StoreFullError | None) -> None:
        if error is not None:
            raise StoreFullError(f"{error}; {self._target.advice}")


def write_frames(gather: GatherHandle, dataset: Dataset | None, incoming: Sequence[Bytes]) -> Written:
    """Assemble this rank's frames of a round from its slices and the `incoming` ones; write them to the disk."""
    written = Written()
    for data in incoming:
        if len(data):
            gather.take(data)
    if dataset is None:
        return written
    failures: dict[int, tuple[str, bool]] = {}
    try:
        gather.write(dataset.writer(native=True), written.durable, failures)
    except StoreFullError as error:
        written.full = error
    dataset.flush(durable=True)
    # A full disk may undo earlier writes.
    if written.full and not dataset.holds(np.array(written.durable, np.int64), native=True).all():
        raise written.full
    written.absent = {n: f"{FOREIGN} ({reason})" if stored else reason for n, (reason, stored) in failures.items()}
    return written
