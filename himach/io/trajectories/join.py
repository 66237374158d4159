"""Joining consecutive trajectories: `join()` drops the frames that a restart wrote again.

It refuses files with equal first frames or times, which look like parallel simulations.
"""

from __future__ import annotations

import hashlib
import itertools
import warnings
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from himach.errors import TrajectoryError, UsageError
from himach.io.trajectories.index.timeline import tolerance
from himach.io.trajectories.xdr_file import FrameFile

_ENSEMBLE = "independent simulations as --ensemble (in Python ensemble=)"


@dataclass
class FilePart:
    """The first `n_frames` frames of a file as part of a dataset."""

    file: FrameFile
    n_frames: int

    def time(self, index: int) -> float:
        """Return the time of a frame of the file; reads the frame if the times are not known."""
        return float(self.file.times[index]) if self.file.times is not None else self.file.read(index).time


def join(files: Sequence[FrameFile]) -> list[FilePart]:
    """Return the files as parts of a dataset, without the frames of earlier files that a later file has again."""
    parts = [FilePart(file, file.n_frames) for file in files]
    if not all(file.timed for file in files):
        _check_starts(files)
        return parts  # frames that are merely counted cannot overlap
    for earlier, later in itertools.pairwise(parts):
        _drop_overlap(earlier, later)
        earlier.file.release()
    return parts


def _check_starts(files: Sequence[FrameFile]) -> None:
    """Refuse files if two have the same first frame."""
    files_by_digest: dict[bytes, FrameFile] = {}
    for file in files if len(files) > 1 else ():
        try:
            digest = hashlib.sha256(file.read(0).positions).digest()
        except Exception:  # reading it raises again if it is selected
            continue
        finally:
            file.release()
        if digest in files_by_digest:
            raise _duplicate_error(f"the first frames of {files_by_digest[digest].path} and {file.path} are equal", "")
        files_by_digest[digest] = file


def _duplicate_error(what: str, otherwise: str) -> UsageError:
    return UsageError(
        f"{what}, so they look like two simulations, not like a restart: give {_ENSEMBLE}, or leave out the file that "
        f"was written again{otherwise}"
    )


def _drop_overlap(earlier: FilePart, later: FilePart) -> None:
    first = later.time(0)
    start = earlier.time(0)
    limit = first - tolerance(first)
    if start > first + tolerance(first):
        raise TrajectoryError(
            f"time runs backwards: {later.file.path} begins at {first:g} ps (its frame 0), before the first frame of "
            f"{earlier.file.path}, at {start:g} ps, which it is to follow; give the files in the order of time, "
            f"{_ENSEMBLE}, or the time step as the universe keyword dt"
        )
    if not start < limit:  # also for nan
        raise _duplicate_error(
            f"{earlier.file.path} and {later.file.path} both begin at {start:g} ps",
            "; if they do follow one another, give the time step as the universe keyword dt",
        )
    n_kept = bisect_left(range(earlier.n_frames), limit, key=earlier.time)
    n_dropped = earlier.n_frames - n_kept
    if n_dropped:
        since, end, later_end = earlier.time(n_kept), earlier.time(earlier.n_frames - 1), later.time(later.n_frames - 1)
        earlier.n_frames = n_kept
        again = "has them again"
        if later_end < end - tolerance(end):  # the rest is a path that the simulation abandoned
            again = f"begins anew there, though it ends at {later_end:g} ps and they go on to {end:g} ps,"
        warnings.warn(
            f"{n_dropped} frame{'s' if n_dropped > 1 else ''} of {earlier.file.path}, from {since:g} ps on, dropped: "
            f"{later.file.path} {again} and its frames are kept",
            stacklevel=2,
        )
