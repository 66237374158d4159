"""Rounds of assembling on one rank: `Rounds` reads, sends, writes and drops slices concurrently."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.io.push.held_slices import HeldSlices, SliceKind
from himach.io.store.bodhi import GatherHandle
from himach.io.store.store import StoreFullError
from himach.ranks.collective import run_collectively
from himach.ranks.communicator import Communicator
from himach.staging.assembly.complete_frames import Assembled, Finder
from himach.staging.assembly.target import AssemblyTarget, FrameWriter

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


#: Bytes of frames that a rank assembles in a round, and the maximum number of rounds in memory, as slices or frames.
ROUND_BYTES = 8 << 20
MAX_ROUNDS = 4
MAX_ROUND_FRAMES = 8192
#: Maximum pending drops of slices.
MAX_DROPS = 2
#: Seconds after which a full store retries.
REFUSED_SECONDS = 0.12
#: Why frames cannot be assembled, by frame, and the bytes to send, by rank.
Ready = tuple[dict[int, str], dict[int, int]]


@dataclass
class Round:
    """Buffers and state of a round."""

    gather: GatherHandle
    read: Future[dict[int, int]] | None = None


class Rounds:
    """Assembles frames of one kind with the ranks of a communicator, one on each node."""

    def __init__(
        self,
        comm: Communicator,
        node: str,
        target: AssemblyTarget,
        kind: SliceKind,
        slices: HeldSlices,
        result: Assembled,
    ) -> None:
        self._comm, self._node, self._slices, self._result = comm, node, slices, result
        self._n_atoms = kind.n_atoms
        self._free = [Round(GatherHandle(kind.n_atoms, comm.size, comm.rank)) for _ in range(MAX_ROUNDS)]
        self._target = target
        self._writing = FrameWriter(target, kind.n_atoms)
        self._written: deque[tuple[Round, Future[bool]]] = deque()
        self._refused: list[Round] = []  # rounds with frames that the store refused
        self._dropped: deque[Future[None]] = deque()
        self._n_dropped = 0  # frames in the last drop

    def run(self, finder: Finder) -> None:
        """Assemble the complete frames (collective)."""
        at_once = min(MAX_ROUND_FRAMES, max(1, ROUND_BYTES // (12 * self._n_atoms)))
        with (
            ThreadPoolExecutor(1, "slices-read") as reader,
            ThreadPoolExecutor(1, "slices-write") as writer,
            ThreadPoolExecutor(1, "slices-drop") as dropper,
        ):
            self._writer, self._dropper = writer, dropper
            previous: Round | None = None
            for numbers, ranks in finder.plans(at_once):
                current = self._free.pop()
                current.gather.begin(np.ascontiguousarray(numbers), np.ascontiguousarray(ranks))
                current.read = reader.submit(self._slices.gather, current.gather, numbers)
                if previous is not None:
                    self._send(previous)
                previous = current
            if previous is not None:
                self._send(previous)
            self._finish()

    def _send(self, current: Round) -> None:
        """Send the slices of a round, submit its writing, and collect the results of earlier rounds (collective)."""
        outgoing: list[Bytes] = []

        def prepare() -> Ready:
            assert current.read is not None
            unread = current.read.result()
            outgoing[:] = [current.gather.parcel(rank) for rank in range(self._comm.size)]
            while len(self._written) > MAX_ROUNDS - 3:  # one each is being read, sent and written
                self._await_written()
            reason = f"on node {self._node} cannot be read"
            sizes = {rank: len(data) for rank, data in enumerate(outgoing) if len(data)}
            return {number: f"the slice of rank {rank} {reason}" for number, rank in unread.items()}, sizes

        full, incoming_sizes = self._drop_durable(prepare)
        if full:
            self._make_room()
        incoming = send_all(self._comm, outgoing, incoming_sizes)
        self._written.append((current, self._writer.submit(self._writing.write, current.gather, incoming)))

    def _await_written(self) -> None:
        item, written = self._written.popleft()
        (self._free if written.result() else self._refused).append(item)

    def _await_all(self) -> Ready:
        """Wait until every pending write is on disk or has failed."""
        while self._written:
            self._await_written()
        self._writer.submit(self._writing.flush).result()
        return {}, {}

    def _drop_durable(self, prepare: Callable[[], Ready]) -> tuple[bool, list[int]]:
        """Drop the slices of durable frames on every node (collective)."""

        def collect() -> tuple[Ready, list[int], dict[int, str], bool]:
            prepared = prepare()
            self._await_dropped(MAX_DROPS)
            return prepared, *self._writing.take(), self._writing.full is not None

        by_rank = self._comm.allgather(run_collectively(self._comm, collect))
        dropped = np.sort(np.array([number for _, durable, _, _ in by_rank for number in durable], dtype=np.int64))
        for (unread, _), _, absent, _ in by_rank:
            self._result.note(unread)
            self._result.note(absent)
        self._result.frames += len(dropped)
        written_here = by_rank[self._comm.rank][1]
        self._result.nodes[self._node] = self._result.nodes.get(self._node, 0) + len(written_here)
        if len(dropped):
            self._dropped.append(self._dropper.submit(self._slices.drop, dropped))
        self._n_dropped = len(dropped)
        return any(full for *_, full in by_rank), [parcels.get(self._comm.rank, 0) for (_, parcels), *_ in by_rank]

    def _make_room(self) -> None:
        """Drop slices and retry refused frames as long as that helps (collective)."""

        def retry() -> tuple[int, bool]:
            time.sleep(REFUSED_SECONDS)
            self._writing.full = None
            remaining: list[Round] = []
            before = self._writing.count
            for item in self._refused:
                written = self._writer.submit(self._writing.resume, item.gather).result()
                (self._free if written else remaining).append(item)
            self._refused = remaining
            return self._writing.count - before, bool(remaining)

        def refuse() -> None:
            if self._writing.full is not None:
                raise StoreFullError(f"{self._writing.full}; {self._target.advice()}")

        while True:
            self._drop_durable(self._await_all)
            n_dropped = self._n_dropped
            run_collectively(self._comm, self._await_dropped)
            by_rank = self._comm.allgather(run_collectively(self._comm, retry))
            if not any(remaining for _, remaining in by_rank):
                return
            if not n_dropped and not any(count for count, _ in by_rank):
                run_collectively(self._comm, refuse)

    def _await_dropped(self, allowed: int = 0) -> None:
        """Wait for pending drops of slices, except the last `allowed`."""
        while len(self._dropped) > allowed or (self._dropped and self._dropped[0].done()):
            self._dropped.popleft().result()

    def _finish(self) -> None:
        """Write and drop what is pending (collective)."""

        def raise_lost() -> None:
            if self._writing.lost is not None:
                raise StoreFullError(f"{self._writing.lost}; {self._target.advice()}")

        while self._drop_durable(self._await_all)[0]:
            self._make_room()
        run_collectively(self._comm, self._await_dropped)
        run_collectively(self._comm, raise_lost)
