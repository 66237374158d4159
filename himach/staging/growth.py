"""Following a trajectory that is being written: `open_growing()`, and `wait_for_growth()` for more of its frames."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping

from himach.errors import NoFrameError, TrajectoryError
from himach.io.datasets.opening import share_from_first
from himach.io.trajectories.index.xdr_index import XdrIndex
from himach.io.trajectories.origin import Origin, open_origin
from himach.io.trajectories.xdr_file import XdrFile
from himach.ranks.collective import Meeting
from himach.ranks.communicator import World
from himach.staging.options import StageOptions

POLL_SECONDS = 1.0
POLL_DIVISOR = 10  # limits polling of a growing file to a tenth of the time
DAMAGE_SECONDS = 10.0  # seconds without growth after which an unreadable file counts as damaged
ENDLESS_SECONDS = float("inf")


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
            patience = ENDLESS_SECONDS if isinstance(error, NoFrameError) else DAMAGE_SECONDS
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


def _file_state(path: str) -> tuple[int, int]:
    """Return size and mtime: a manifest may list more frames in the same number of bytes."""
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def _await_growth(job: StageOptions, origin: Origin) -> Origin | None:
    start = time.monotonic()
    pause = POLL_SECONDS
    paths = [path for file, _ in origin.files() for path in file.stamps]
    indexes = {file.path: file.index for file, _ in origin.files() if isinstance(file, XdrFile)}
    last_states: list[tuple[int, int]] = []
    while job.idle is None or time.monotonic() < start + job.idle:
        time.sleep(pause if job.idle is None else min(pause, max(0.01, start + job.idle - time.monotonic())))
        states = [_file_state(path) for path in paths]
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
