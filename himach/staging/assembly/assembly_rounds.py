"""Rounds of assembling on one rank: `Rounds` reads slices in a thread, sends them, and writes frames in another."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.io.store.bodhi import GatherHandle
from himach.io.store.store import Dataset, StoreFullError
from himach.ranks.collective import run_collectively
from himach.ranks.communicator import Communicator
from himach.staging.assembly.assembly_target import FOREIGN
from himach.staging.assembly.complete_frames import Finder

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
#: Seconds after which a full store retries.
REFUSED_SECONDS = 0.12


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
        self._written: tuple[Callable[[], Written], Future[Written]] | None = None  # the round being written

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
        write = partial(write_frames, gather, dataset)
        self._written = write, self._writer.submit(write, incoming)

    def _finish_writing(self) -> None:
        """Drop the slices of the frames on disk, which makes room for the rest of a full store (collective)."""
        has_room = True
        while self._written is not None:
            write, writing = self._written
            written = run_collectively(self._comm, partial(self._take, writing))
            by_rank = self._comm.allgather((written.durable, written.absent, written.full is not None))
            durable = np.sort(np.array([number for numbers, _, _ in by_rank for number in numbers], np.int64))
            for _, absent, _ in by_rank:
                self._result.note(absent)
            self._result.frames += len(durable)
            self._result.nodes[self._node] = self._result.nodes.get(self._node, 0) + len(written.durable)
            run_collectively(self._comm, partial(self._slices.drop, durable))
            self._written = None
            if any(full for *_, full in by_rank):
                if not len(durable) and not has_room:
                    run_collectively(self._comm, partial(self._refuse, written.full))
                has_room = len(durable) > 0
                time.sleep(REFUSED_SECONDS)
                self._written = write, self._writer.submit(write)

    def _take(self, writing: Future[Written]) -> Written:
        try:
            return writing.result()
        except StoreFullError as error:
            self._refuse(error)
            raise

    def _refuse(self, error: StoreFullError | None) -> None:
        if error is not None:
            raise StoreFullError(f"{error}; {self._target.advice()}")


def write_frames(gather: GatherHandle, dataset: Dataset | None, incoming: Sequence[Bytes] = ()) -> Written:
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
