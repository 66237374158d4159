"""Rounds of assembling on one rank: slices read, sent in bounded messages, written and dropped at once: `Rounds`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.io.push.held_slices import HeldSlices, SliceKind
from himach.io.store.bodhi import GatherHandle
from himach.io.store.store import StoreFullError
from himach.parallel.collective import run_collectively
from himach.parallel.communicator import Communicator, World
from himach.staging.assembly.complete_frames import Assembled, Finder
from himach.staging.assembly.target import Target, Writing

Bytes = npt.NDArray[np.uint8]

#: Bytes of a message, at most.
MESSAGE_BYTES = 1 << 24
#: Seconds between two looks at what is under way.
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 5e-5, 1e-3
_BYTE = "B"
_TAG = 7030


class Inbox:
    """Memory for what comes from other ranks, which is used again and again."""

    def __init__(self) -> None:
        self._buffers: dict[int, Bytes] = {}

    def room(self, source: int, size: int) -> Bytes:
        """Return memory for so many bytes of a rank, until the next of the same."""
        buffer = self._buffers.get(source)
        if buffer is None or len(buffer) < size:
            buffer = self._buffers[source] = np.empty(size + size // 8, np.uint8)
        return buffer[:size]


def send_all(comm: Communicator, outgoing: Sequence[Bytes], sizes: Sequence[int], inbox: Inbox) -> list[Bytes]:
    """Send ``outgoing[r]`` to rank r, for all other ranks at once, and return what each has sent here (collective)."""
    incoming = [inbox.room(source, 0 if source == comm.rank else size) for source, size in enumerate(sizes)]
    requests: list[Any] = []
    for source, data in enumerate(incoming):
        requests += [comm.Irecv([piece, _BYTE], source, _TAG) for piece in _pieces(data)]
    for target, data in enumerate(outgoing):
        if target != comm.rank:
            requests += [comm.Isend([piece, _BYTE], target, _TAG) for piece in _pieces(data)]
    _await(requests)
    return incoming


def _await(requests: list[Any]) -> None:
    """Wait for all without taking the processor from those that read and write meanwhile."""
    pause = MIN_PAUSE_SECONDS
    while requests:
        left = [request for request in requests if not request.Test()]
        if len(left) == len(requests):
            time.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)
        else:
            pause = MIN_PAUSE_SECONDS
        requests = left


def _pieces(data: Bytes) -> list[Bytes]:
    return [data[begin : begin + MESSAGE_BYTES] for begin in range(0, len(data), MESSAGE_BYTES)]


Numbers = npt.NDArray[np.int64]

#: Bytes of frames that a rank puts together in a round; so many rounds are in memory at most, as slices or frames.
ROUND_BYTES = 8 << 20
MAX_ROUNDS = 4
MAX_ROUND_FRAMES = 8192
#: Drops of slices that may be under way.
MAX_DROPS = 2
#: Seconds after which a store that had no room looks again.
REFUSED_SECONDS = 0.12
#: Why frames cannot be put together, and how many bytes go to which rank.
Ready = tuple[dict[int, str], dict[int, int]]


@dataclass
class Round:
    """Memory for a round, and what is known of it."""

    gather: GatherHandle
    inbox: Inbox = field(default_factory=Inbox)
    read: Future[dict[int, int]] | None = None


class Rounds:
    """Puts frames of one kind together, with all ranks."""

    def __init__(self, world: World, target: Target, kind: SliceKind, held: HeldSlices, done: Assembled) -> None:
        self._world, self._held, self._done = world, held, done
        self._comm = world.comm
        self._n_atoms = kind.n_atoms
        self._free = [self._new_round() for _ in range(MAX_ROUNDS)]
        self._target = target
        self._writing = Writing(target, kind.n_atoms)
        self._written: deque[tuple[Round, Future[bool]]] = deque()
        self._left: list[Round] = []  # of which some frames found no room
        self._dropped: deque[Future[None]] = deque()
        self._gone = 0  # frames whose slices were dropped last

    def _new_round(self) -> Round:
        return Round(GatherHandle(self._n_atoms, self._comm.size, self._comm.rank))

    def go(self, finder: Finder) -> None:
        """Put together what is there (collective)."""
        at_once = min(MAX_ROUND_FRAMES, max(1, ROUND_BYTES // (12 * self._n_atoms)))
        with (
            ThreadPoolExecutor(1, "slices-read") as reader,
            ThreadPoolExecutor(1, "slices-write") as writer,
            ThreadPoolExecutor(1, "slices-drop") as dropper,
        ):
            self._writer, self._dropper = writer, dropper
            before: Round | None = None
            for numbers, ranks in finder.plans(at_once):
                now = self._free.pop()
                now.gather.begin(np.ascontiguousarray(numbers), np.ascontiguousarray(ranks))
                now.read = reader.submit(self._held.gather, now.gather, numbers)
                if before is not None:
                    self._send(before)
                before = now
            if before is not None:
                self._send(before)
            self._end()

    def _send(self, now: Round) -> None:
        """Send what was read of a round and have it written; settle what came of those before (collective)."""
        outgoing: list[Bytes] = []

        def ready() -> Ready:
            assert now.read is not None
            unread = now.read.result()
            outgoing[:] = [now.gather.parcel(rank) for rank in range(self._comm.size)]
            while len(self._written) > MAX_ROUNDS - 3:  # others are read, sent, and written
                self._await_written()
            reason = f"on node {self._world.name} cannot be read"
            return {number: f"the slice of rank {rank} {reason}" for number, rank in unread.items()}, sizes(outgoing)

        full, coming = self._settle(ready)
        if full:
            self._make_room()
        incoming = send_all(self._comm, outgoing, coming, now.inbox)
        self._written.append((now, self._writer.submit(self._writing.write, now.gather, incoming)))

    def _await_written(self) -> None:
        of, written = self._written.popleft()
        (self._free if written.result() else self._left).append(of)

    def _await_all(self) -> Ready:
        """Wait until all that was to be written is on disk, or cannot be."""
        while self._written:
            self._await_written()
        self._writer.submit(self._writing.flush).result()
        return {}, {}

    def _settle(self, ready: Callable[[], Ready]) -> tuple[bool, list[int]]:
        """Drop the slices of what is on disk, on every node (collective)."""

        def told() -> tuple[Ready, list[int], dict[int, str], bool]:
            is_ready = ready()
            self._await_dropped(MAX_DROPS)
            return is_ready, *self._writing.take(), self._writing.full is not None

        every = self._comm.allgather(run_collectively(self._comm, told))
        gone = np.sort(np.array([number for _, durable, _, _ in every for number in durable], dtype=np.int64))
        for (unread, _), _, bad, _ in every:
            self._done.note(unread)
            self._done.note(bad)
        self._done.frames += len(gone)
        own = every[self._comm.rank][1]
        self._done.nodes[self._world.name] = self._done.nodes.get(self._world.name, 0) + len(own)
        if len(gone):
            self._dropped.append(self._dropper.submit(self._held.drop, gone))
        self._gone = len(gone)
        return any(full for *_, full in every), [going.get(self._comm.rank, 0) for (_, going), *_ in every]

    def _make_room(self) -> None:
        """Drop slices so that frames that found no room find some, as long as that helps (collective)."""

        def again() -> tuple[int, bool]:
            time.sleep(REFUSED_SECONDS)
            self._writing.full = None
            left: list[Round] = []
            before = self._writing.count
            for one in self._left:
                done = self._writer.submit(self._writing.again, one.gather).result()
                (self._free if done else left).append(one)
            self._left = left
            return self._writing.count - before, bool(left)

        def refuse() -> None:
            if self._writing.full is not None:
                raise StoreFullError(f"{self._writing.full}; {self._target.advice()}")

        while True:
            self._settle(self._await_all)
            gone = self._gone
            run_collectively(self._comm, self._await_dropped)
            every = self._comm.allgather(run_collectively(self._comm, again))
            if not any(left for _, left in every):
                return
            if not gone and not any(count for count, _ in every):
                run_collectively(self._comm, refuse)

    def _await_dropped(self, but: int = 0) -> None:
        """Wait until slices of frames that are on disk are dropped, all but those of the last `but` times."""
        while len(self._dropped) > but or (self._dropped and self._dropped[0].done()):
            self._dropped.popleft().result()

    def _end(self) -> None:
        """Settle what is left (collective)."""

        def lost() -> None:
            if self._writing.lost is not None:
                raise StoreFullError(f"{self._writing.lost}; {self._target.advice()}")

        while self._settle(self._await_all)[0]:
            self._make_room()
        run_collectively(self._comm, self._await_dropped)
        run_collectively(self._comm, lost)


def sizes(outgoing: Sequence[Bytes]) -> dict[int, int]:
    """Return how many bytes go to which rank, where there are any."""
    return {rank: len(data) for rank, data in enumerate(outgoing) if len(data)}
