"""Shared parts of staging: `open_store()`, `missing_part()`, a rank's frames that are native nowhere, `fill()`."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from himach.errors import UsageError
from himach.io.datasets.subsets import Readable
from himach.io.store.quota import check_quota, chosen_quota, open_chosen
from himach.io.store.store import Store
from himach.ranks.collective import Meeting, run_collectively
from himach.ranks.communicator import Communicator, World
from himach.ranks.progress import Progress
from himach.staging.options import StageOptions

Numbers = npt.NDArray[np.int64]

PART_TAG = 43


def open_store(comm: Communicator, job: StageOptions) -> Store:
    """Open this node's store and set its quota (collective)."""

    def open_with_quota() -> Store:
        store, reason = open_chosen(job.cache)
        if store is None:
            raise UsageError(reason)
        quota = chosen_quota(store.path, job.quota)
        check_quota(store.path, quota, job.segment_size)
        store.set_quota(quota)
        return store

    return run_collectively(comm, open_with_quota)


def missing_part(world: World, placement: str, span: range, stored: Readable, aliens: bool = False) -> Numbers:
    """Return the frames of `span` that this rank stages, ascending: its part of its node's frames native nowhere.

    The node of a frame depends only on the span and the nodes, so a resumed stage spreads frames like an unbroken one.
    """
    nodes, node = len(world.nodes), world.node_index
    if placement == "spread":
        assigned = range(span.start + (node - span.start) % nodes, span.stop, nodes)
    else:
        assigned = span[node * len(span) // nodes : (node + 1) * len(span) // nodes]

    def find_missing() -> list[Numbers]:
        if world.leaders is None:
            return []
        native, alien = (np.zeros(-(-len(span) // 64), dtype=np.uint64) for _ in range(2))
        stored.mark(span, native, alien)
        if aliens:
            native |= alien
        if world.leaders.size > 1:
            world.leaders.Allreduce(native.copy(), native, op=world.bor)
        bits = np.unpackbits(native.view(np.uint8), count=len(span), bitorder="little")
        places = np.flatnonzero(bits[assigned.start - span.start : assigned.stop - span.start : assigned.step] == 0)
        return np.array_split(assigned.start + assigned.step * places, world.node.size)

    parts = run_collectively(world.comm, find_missing)
    if not parts:
        part: Numbers = world.node.recv(source=0, tag=PART_TAG)
        return part
    for request in [world.node.isend(numbers, rank, PART_TAG) for rank, numbers in enumerate(parts) if rank]:
        request.wait()
    return parts[0]


def fill(world: World, job: StageOptions, n_frames: int, write: Callable[[Callable[[int], None]], int]) -> int:
    """Let each rank `write` its `n_frames` frames with a progress display; return how many all wrote (collective).

    `write` takes a function to be called with the count after each frame, and returns the number of new frames.
    """
    meeting = Meeting(world.comm)
    with Progress(world.comm, int(world.comm.allreduce(n_frames)), sys.stderr, quiet=job.quiet) as display:

        def work() -> int:
            written = write(meeting.watched(display))
            display.finish(meeting.poll)
            return written

        return int(world.comm.allreduce(meeting.together(work)))
