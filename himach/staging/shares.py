"""Shared parts of staging: a node's store, a rank's frames, the display, and trajectories that are being written."""

from __future__ import annotations

import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping

import numpy as np

from himach.errors import NoFrameError, TrajectoryError, UsageError
from himach.io.datasets.opening import share_from_first
from himach.io.datasets.subsets import Readable
from himach.io.frame_source import Numbers
from himach.io.store.quota import check_quota, chosen_quota, open_chosen
from himach.io.store.store import Store
from himach.io.trajectories.index.xdr_index import XdrIndex
from himach.io.trajectories.origin import Origin, open_origin
from himach.io.trajectories.xdr_file import XdrFile
from himach.ranks.collective import Meeting, run_collectively
from himach.ranks.communicator import Communicator, World
from himach.ranks.progress import Progress
from himach.staging.options import StageOptions

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
    """Let each rank `write` its frames and report the count after each; return how many all wrote (collective)."""
    meeting = Meeting(world.comm)
    with Progress(world.comm, int(world.comm.allreduce(n_frames)), sys.stderr, quiet=job.quiet) as display:

        def work() -> int:
            written = write(meeting.watched(display))
            display.finish(meeting.poll)
            return written

        return int(world.comm.allreduce(meeting.together(work)))


POLL_SECONDS = 1.0
POLL_DIVISOR = 10  # limits polling of a growing file to a tenth of the time
DAMAGE_SECONDS = 10.0  # seconds without growth after which an unreadable file counts as damaged


def open_growing(job: StageOptions, indexes: Mapping[str, XdrIndex]) -> Origin:
    """Open a trajectory whose first frame may still be incomplete."""
    sizes: list[int] = []
    last_growth = time.monotonic()
    while True:
        try:
            return _open_quietly(job, indexes)
        except TrajectoryError as error:
            new_sizes = [os.path.getsize(path) for path in job.trajectories]
            if new_sizes != sizes:
                sizes, last_growth = new_sizes, time.monotonic()
            # Few formats distinguish damage from an incomplete first frame; only for those, wait without limit.
            patience = math.inf if isinstance(error, NoFrameError) else DAMAGE_SECONDS
            if time.monotonic() > last_growth + (patience if job.idle is None else job.idle):
                raise
            time.sleep(POLL_SECONDS)


def _open_quietly(job: StageOptions, indexes: Mapping[str, XdrIndex]) -> Origin:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a truncated last frame is expected here
        return open_origin(job.trajectories, job.topology, job.keywords, indexes)


def wait_for_growth(world: World, job: StageOptions, origin: Origin) -> Origin | None:
    """Wait on the first rank until the trajectory has more whole frames; return None if it is idle too long."""
    # Waiting in a broadcast would keep one core per rank busy.
    grown = Meeting(world.comm).together(lambda: _await_growth(job, origin) if world.comm.rank == 0 else None)
    return share_from_first(world, lambda: grown)[0]


def _await_growth(job: StageOptions, origin: Origin) -> Origin | None:
    start = time.monotonic()
    pause = POLL_SECONDS
    paths = [path for file, _ in origin.files() for path in file.stamps]
    indexes = {file.path: file.index for file, _ in origin.files() if isinstance(file, XdrFile)}
    last_states: list[tuple[int, int]] = []
    while job.idle is None or time.monotonic() < start + job.idle:
        time.sleep(pause if job.idle is None else min(pause, max(0.01, start + job.idle - time.monotonic())))
        # A manifest may list more frames in the same number of bytes.
        states = [(status.st_size, status.st_mtime_ns) for status in map(os.stat, paths)]
        if states == last_states:
            continue
        poll_start = time.monotonic()
        last_states = states
        try:
            new_origin = _open_quietly(job, indexes)
        except TrajectoryError:
            continue  # the file is being written; the next poll finds it whole, or idle
        if new_origin.n_frames < origin.n_frames or new_origin.n_atoms != origin.n_atoms:
            raise TrajectoryError(
                f"{origin.paths[-1]} had {origin.n_frames} frames of {origin.n_atoms} atoms and now has "
                f"{new_origin.n_frames} of {new_origin.n_atoms}: it was replaced while it was followed; stage it again"
            )
        if new_origin.n_frames > origin.n_frames:
            return new_origin
        pause = max(POLL_SECONDS, POLL_DIVISOR * (time.monotonic() - poll_start))
    return None
