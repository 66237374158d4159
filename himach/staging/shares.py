"""Shared parts of staging: a node's store, a rank's frames, the display; and `GrowingFiles`."""

import operator
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from pyroaring import BitMap64

from himach.errors import TrajectoryError
from himach.io.datasets.opening import open_to_write
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


class GrowingFiles:
    """A trajectory of which the last file grows: `origin` as it was at the last poll, None before its first frame."""

    def __init__(self, request: DatasetRequest) -> None:
        self.origin: Origin | None = None
        self._request = request
        self._states: list[tuple[int, int]] = []
        self._next_poll = 0.0

    def poll(self) -> Origin | None:
        """Open the trajectory again if its files have changed; spend at most a tenth of the time on that."""
        now = time.monotonic()
        if now >= self._next_poll:
            files = [] if self.origin is None else self.origin.files
            paths = [path for file in files for path in file.stamps] or self._request.trajectories
            states = [(status.st_size, status.st_mtime_ns) for status in map(os.stat, map(os.path.expanduser, paths))]
            if states != self._states:
                self._states = states
                self._reopen({file.path: file.index for file in files if isinstance(file, XdrFile)})
            self._next_poll = time.monotonic() + max(POLL_SECONDS, POLL_FACTOR * (time.monotonic() - now))
        return self.origin

    def _reopen(self, indexes: Mapping[str, XdrIndex]) -> None:
        request = self._request
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # a truncated last frame is expected here
                new = open_origin(request.trajectories, request.topology, request.keywords, indexes)
        except TrajectoryError:
            return  # the file is being written; the next poll finds it whole
        old = self.origin
        if old is not None and (new.n_frames < old.n_frames or new.n_atoms != old.n_atoms):
            raise TrajectoryError(
                f"{new.paths[-1]} had {old.n_frames} frames of {old.n_atoms} atoms and now has {new.n_frames} of "
                f"{new.n_atoms}: it was replaced while it was followed"
            )
        self.origin = new
