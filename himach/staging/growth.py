"""Following a trajectory that is being written: `open_growing()`, and `wait_for_growth()` for more of its frames."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from himach.errors import NoFrameError, TrajectoryError
from himach.io.trajectory.index.xdr_index import XdrIndex
from himach.io.trajectory.origin import Origin, open_origin
from himach.io.trajectory.xdr_file import XdrFile
from himach.opening.shared_index import NodeBytes, publish, settle
from himach.parallel.collective import on_first_rank
from himach.parallel.communicator import World

if TYPE_CHECKING:
    from himach.staging.options import StageOptions

POLL_SECONDS = 1.0
POLL_DIVISOR = 10  # looking at a growing file takes a tenth of the time at most
DAMAGE_SECONDS = 10.0  # seconds without growth after which a file that cannot be opened is taken for damaged
ENDLESS_SECONDS = float("inf")
REST = 0.05  # seconds between looks of ranks that wait for a file to grow


def open_growing(job: StageOptions, known: Mapping[str, XdrIndex]) -> Origin:
    """Open a trajectory of which not even the first frame may be complete."""
    sizes: list[int] = []
    grew = time.monotonic()
    while True:
        try:
            return _open_quietly(job, known)
        except TrajectoryError as error:
            now = [os.path.getsize(path) for path in job.trajectories]
            if now != sizes:
                sizes, grew = now, time.monotonic()
            # Few formats tell damage from a first frame that is being written; those that do are worth waiting for.
            patience = (
                job.idle
                if job.idle is not None
                else ENDLESS_SECONDS
                if isinstance(error, NoFrameError)
                else DAMAGE_SECONDS
            )
            if time.monotonic() > grew + patience:
                raise
            time.sleep(POLL_SECONDS)


def _open_quietly(job: StageOptions, known: Mapping[str, XdrIndex]) -> Origin:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the last frame is cut is why we are here
        return open_origin(job.trajectories, job.topology, job.keywords, known)


def wait_for_growth(
    world: World, job: StageOptions, origin: Origin
) -> tuple[Origin, Sequence[NodeBytes]] | None:  # fmt: skip
    """Wait on the first rank until the trajectory has more whole frames; None when it is idle for too long."""
    comm = world.comm
    answer: Origin | None = None
    error: Exception | None = None
    if comm.rank == 0:
        try:
            answer = _grown(job, origin)
            if answer is not None:
                publish(answer)
        except Exception as caught:  # raised on all ranks below
            error = caught
    if comm.size > 1:
        arrival = comm.Ibarrier()  # waiting in a broadcast would take a processor a rank
        while not arrival.Test():
            time.sleep(REST)

    def told() -> Origin | None:
        if error is not None:
            raise error
        return answer

    grown = on_first_rank(comm, told, share=True)
    return None if grown is None else (grown, settle(world, grown, {}))


def _look(path: str) -> tuple[int, int]:
    """Return what changes when a file does: a manifest of more frames may be of as many bytes."""
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def _grown(job: StageOptions, origin: Origin) -> Origin | None:
    since = time.monotonic()
    pause = POLL_SECONDS
    looked_at = [path for file, _ in origin.files() for path in file.stamps]
    indexes = {file.path: file.index for file, _ in origin.files() if isinstance(file, XdrFile)}
    seen: list[tuple[int, int]] = []
    while job.idle is None or time.monotonic() < since + job.idle:
        time.sleep(pause if job.idle is None else min(pause, max(0.01, since + job.idle - time.monotonic())))
        now = [_look(path) for path in looked_at]
        if now == seen:
            continue
        began = time.monotonic()
        seen = now
        try:
            grown = _open_quietly(job, indexes)
        except TrajectoryError:
            continue  # caught in the act of writing; the next look finds it whole, or idle
        if grown.n_frames < origin.n_frames or grown.n_atoms != origin.n_atoms:
            raise TrajectoryError(
                f"{origin.paths[-1]} had {origin.n_frames} frames of {origin.n_atoms} atoms and now has "
                f"{grown.n_frames} of {grown.n_atoms}: it was replaced while it was followed; stage it again"
            )
        if grown.n_frames > origin.n_frames:
            return grown
        pause = max(POLL_SECONDS, POLL_DIVISOR * (time.monotonic() - began))
    return None
