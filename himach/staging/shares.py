"""Shared parts of staging: a node's store, a rank's frames, the display, and trajectories that are being written."""

from __future__ import annotations

import math
import operator
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from pyroaring import BitMap64

from himach.errors import NoFrameError, TrajectoryError
from himach.io.datasets.opening import open_to_write, share_from_first
from himach.io.datasets.request import DatasetRequest
from himach.io.frame_source import Numbers
from himach.io.store.store import Store
from himach.io.trajectories.origin import Origin, open_origin
from himach.io.trajectories.xdr_file import XdrFile
from himach.io.trajectories.xdr_index import XdrIndex
from himach.ranks.collective import Meeting, run_collectively
from himach.ranks.communicator import Communicator, World
from himach.ranks.progress import Progress
from himach.staging.options import StageOptions


def open_store(comm: Communicator, job: StageOptions) -> Store:
    """Open this node's store and set its quota (collective)."""
    return run_collectively(comm, partial(open_to_write, job.cache, "", job.quota))


def gather_stored(world: World, stored: Callable[[], BitMap64]) -> BitMap64:
    """Return the frames that any node has, from what `stored` returns on each node's first rank (collective)."""
    own = run_collectively(world.comm, lambda: None if world.leaders is None else stored())
    frames: BitMap64 = world.node.bcast(world.leaders and world.leaders.allreduce(own, op=operator.or_))
    return frames


def own_part(world: World, placement: str, frames: BitMap64, stored: BitMap64) -> Numbers:
    """Return this rank's part of its node's `frames` that are not `stored`, ascending.

    What is stored decides on no frame's node, so a resumed stage spreads frames like an unbroken one.
    """
    nodes, node, n = len(world.nodes), world.node_index, len(frames)
    if placement == "runs":
        missing = frames[node * n // nodes : (node + 1) * n // nodes] - stored
    else:
        missing = (frames & BitMap64(range(node, frames[-1] + 1 if frames else 0, nodes))) - stored
    rank, ranks, n = world.node.rank, world.node.size, len(missing)
    return np.asarray(missing[rank * n // ranks : (rank + 1) * n // ranks].to_array(), dtype=np.int64)


def fill(world: World, job: StageOptions, n_frames: int, write: Callable[[Callable[[int], None]], int]) -> int:
    """Let each rank `write` its frames and report the count after each; return how many all wrote (collective)."""
    meeting = Meeting(world.comm)
    with Progress(world.comm, int(world.comm.allreduce(n_frames)), sys.stderr, quiet=job.quiet) as display:

        def work() -> int:
            written = write(meeting.watched(display))
            display.finish(meeting.poll)
            return written

        return int(world.comm.allreduce(meeting.together(work)))


POLL_SECONDS = 0.25  # minimum seconds between polls of growing files
POLL_FACTOR = 10  # limits polling to a tenth of the time
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


def _open_quietly(request: DatasetRequest, indexes: Mapping[str, XdrIndex]) -> Origin:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a truncated last frame is expected here
        return open_origin(request.trajectories, request.topology, request.keywords, indexes)


class GrowingFiles:
    """A trajectory of which the last file grows: `origin` as it was at the last poll, None before its first frame."""

    def __init__(self, request: DatasetRequest, origin: Origin | None = None) -> None:
        self.origin = origin
        self._request = request
        self._states: list[tuple[int, int]] = []
        self._next_poll = 0.0

    def poll(self) -> Origin | None:
        """Open the trajectory again if its files have changed; spend at most a tenth of the time on that."""
        now = time.monotonic()
        if now >= self._next_poll:
            files = [] if self.origin is None else self.origin.files
            paths = [path for file in files for path in file.stamps] or self._request.trajectories
            # A manifest may list more frames in the same number of bytes.
            states = [(status.st_size, status.st_mtime_ns) for status in map(os.stat, map(os.path.expanduser, paths))]
            if states != self._states:
                self._states = states
                self._reopen({file.path: file.index for file in files if isinstance(file, XdrFile)})
            self._next_poll = time.monotonic() + max(POLL_SECONDS, POLL_FACTOR * (time.monotonic() - now))
        return self.origin

    def _reopen(self, indexes: Mapping[str, XdrIndex]) -> None:
        try:
            new = _open_quietly(self._request, indexes)
        except TrajectoryError:
            return  # the file is being written; the next poll finds it whole
        old = self.origin
        if old is not None and (new.n_frames < old.n_frames or new.n_atoms != old.n_atoms):
            raise TrajectoryError(
                f"{new.paths[-1]} had {old.n_frames} frames of {old.n_atoms} atoms and now has {new.n_frames} of "
                f"{new.n_atoms}: it was replaced while it was followed"
            )
        self.origin = new


def wait_for_growth(world: World, job: StageOptions, origin: Origin) -> Origin | None:
    """Wait on the first rank until the trajectory has more whole frames; return None if it is idle too long."""
    # Waiting in a broadcast would keep one core per rank busy.
    grown = Meeting(world.comm).together(lambda: _await_growth(job, origin) if world.comm.rank == 0 else None)
    return share_from_first(world, lambda: grown)[0]


def _await_growth(job: StageOptions, origin: Origin) -> Origin | None:
    start, files = time.monotonic(), GrowingFiles(job, origin)
    while job.idle is None or time.monotonic() < start + job.idle:
        grown = files.poll()
        if grown is not None and grown.n_frames > origin.n_frames:
            return grown
        time.sleep(POLL_SECONDS)
    return None
