"""Datasets in their original files: `open_origin()` joins trajectory files into one `Origin` of numbered frames.

One rank opens files: the `Origin` is pickled to the others with its indexes, and opens no file until it reads. `join()`
drops the frames that a restart wrote again, and refuses files that look like parallel simulations.
"""

import difflib
import glob
import hashlib
import itertools
import os
import re
import warnings
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.errors import HimachError, TrajectoryError, UsageError
from himach.frame import RawFrame
from himach.io.frame_source import WHOLE, FrameSource, Numbers, ReadOptions
from himach.io.trajectories.file_failures import reason, retry
from himach.io.trajectories.h5md.zarr_directory import SUFFIXES
from himach.io.trajectories.keywords import check
from himach.io.trajectories.open_file import open_file, stamp_files
from himach.io.trajectories.readahead import Ahead
from himach.io.trajectories.timeline import (
    FrameTimes,
    InterpolatedTimes,
    Times,
    even_times,
    first_backward,
    tolerance,
)
from himach.io.trajectories.urls.byte_file import ByteFile, local_path, read_status
from himach.io.trajectories.urls.transport import RemoteError
from himach.io.trajectories.urls.url_names import absolute, is_url
from himach.io.trajectories.xdr_file import FrameFile
from himach.io.trajectories.xdr_index import XdrIndex
from himach.selection import Selected, numbers_at

PUSHED = "pushed"  # kind of a dataset that has no origin
_FINGERPRINT_BYTES = 1 << 16


@dataclass(frozen=True)
class OriginFacts:
    """Attributes of `Origin` that opening reads from the files."""

    fingerprint: str
    timestep: float | None
    has_velocities: bool
    has_forces: bool


class Origin(FrameSource):
    """Frames of one dataset, numbered through from 0."""

    def __init__(
        self, files: Sequence[FrameFile], keywords: Mapping[str, Any], facts: OriginFacts | None = None
    ) -> None:
        self.files = tuple(files)
        self._starts = np.cumsum([0] + [file.n_frames for file in files])
        self._open_file: FrameFile | None = None
        self._ahead: Ahead | None = None
        self.keywords = {**files[0].keywords, **keywords}
        self.warnings: tuple[str, ...] = ()
        self.paths = tuple(file.path for file in files)
        self.kinds = tuple(file.kind for file in files)
        self.n_frames = int(self._starts[-1])
        self.n_atoms = files[0].n_atoms
        self.topology = files[0].topology
        self.known_times = self._join_times()  # ps; None if they are not known without reading frames
        facts = facts or self._read_facts()
        self.fingerprint = facts.fingerprint
        self.timestep = facts.timestep
        self.has_velocities = facts.has_velocities
        self.has_forces = facts.has_forces

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open_file": None, "_ahead": None}

    @property
    def present(self) -> bool:
        """Whether frames can be read from all its files."""
        return all(file.present for file in self.files)

    def holds(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """Return which of the frames exist, bool (n,)."""
        return (numbers >= 0) & (numbers < self.n_frames)

    def read(self, numbers: Iterable[int], options: ReadOptions = WHOLE) -> Iterator[RawFrame]:
        """Read frames in the order given, with readahead of their bytes."""
        previous, previous_time = -2, 0.0
        needed = options.first_atoms
        numbers = [int(number) for number in numbers]
        if wrong := [number for number in numbers if not 0 <= number < self.n_frames]:
            raise UsageError(f"there is no frame {wrong[0]}; {self.paths[0]} has {self.n_frames} frames, from 0")
        ahead = self._plan_ahead(numbers)
        waits = is_url(self.paths[0])  # the first frame shows which bytes each needs: requests download
        for place, number in enumerate(numbers):
            if ahead is not None and (place or not waits):
                ahead.reach(place)
            frame = self._read(number, needed)
            if previous + 1 == frame.number and frame.time < previous_time - tolerance(previous_time):
                self._refuse_time(frame.number, previous_time, frame.time)
            previous, previous_time = frame.number, frame.time
            yield frame

    def times(self, numbers: Sequence[int] | Numbers) -> Times:
        """Return the frames' times, float64 (n,), ps; reads the frames if their times are not known."""
        selected = np.asarray(numbers, dtype=np.int64)
        if self.known_times is not None:
            return np.asarray(self.known_times[selected], dtype=np.float64)
        return np.array([frame.time for frame in map(self._read, selected.tolist())], dtype=np.float64)

    def nbytes(self, numbers: Sequence[int] | Numbers) -> int:
        """Return the bytes that reading these frames takes: exact for formats of an index, else by the mean."""
        return sum(file.nbytes(local) for file, local in self._by_file(np.asarray(numbers, dtype=np.int64)))

    def dt(self, frames: Selected) -> float | None:
        """Return the time between selected frames, ps; None if it is uneven or there are fewer than two frames."""
        if len(frames) < 2:
            return None
        n_steps = len(frames) - 1
        if self.known_times is not None:
            times = self.known_times[numbers_at(frames, np.arange(n_steps + 1))]
            between = np.diff(times)
        else:
            steps = sorted({0, n_steps // 2, n_steps - 1})
            times = np.array([self.times([frames[step], frames[step + 1]]) for step in steps])
            between = times[:, 1] - times[:, 0]
        mean, error = float(times.flat[-1] - times.flat[0]) / n_steps, 2 * tolerance(np.abs(times).max())
        if np.any(np.abs(between - mean) > error):
            return None
        return float(between[0]) if np.all(between == between[0]) else _round_time(mean, error / n_steps)

    def locate(self, number: int) -> tuple[str, int]:
        """Return the file of a frame, and the frame's number within it."""
        index = int(np.searchsorted(self._starts, number, side="right")) - 1
        return self.files[index].path, number - int(self._starts[index])

    def frame_files(self, numbers: Sequence[int]) -> set[str]:
        """Return the paths of the files that have these frames."""
        files = self._by_file(np.asarray(numbers, dtype=np.int64))
        return set().union(*(file.frame_files(local) for file, local in files))

    def _by_file(self, numbers: Numbers) -> Iterator[tuple[FrameFile, Numbers]]:
        """Yield each file that has frames of `numbers`, and their numbers within it."""
        indices = np.searchsorted(self._starts, numbers, side="right") - 1
        for index in np.flatnonzero(np.bincount(indices)).tolist():  # unique() imports numpy.ma
            yield self.files[index], numbers[indices == index] - self._starts[index]

    def close(self) -> None:
        """Close the open file, until the next read."""
        if self._open_file is not None:
            self._open_file.release()
        self._open_file = None

    def _plan_ahead(self, numbers: Sequence[int]) -> Ahead | None:
        """Return the readahead for these frames; None for a single frame, which is read at once."""
        if len(numbers) < 2 or not self.present:
            return None
        if self._ahead is None:
            self._ahead = Ahead(self.n_frames, self.nbytes(numbers) // len(numbers), self._expect)
        self._ahead.start(numbers)
        return self._ahead

    def _expect(self, numbers: Sequence[int]) -> None:
        for file, local in self._by_file(np.asarray(numbers, dtype=np.int64)):
            file.expect(local.tolist())

    def _read(self, number: int, needed: int | None = None) -> RawFrame:
        index = int(np.searchsorted(self._starts, number, side="right")) - 1 if len(self.files) > 1 else 0
        file = self.files[index]
        if file is not self._open_file:
            self.close()
            self._open_file = file
        local = number - int(self._starts[index])
        try:
            frame = retry(partial(file.read, local, needed), file.release)
        except HimachError:
            raise
        except Exception as error:
            raise TrajectoryError(self._damage(number, local, file.path, error)) from error
        frame.number = number
        if self.known_times is not None:
            frame.time = float(self.known_times[number])
        return frame

    def _damage(self, number: int, local: int, path: str, error: BaseException) -> str:
        within = f" (frame {local} of the file)" if local != number else ""
        return (
            f"frame {number} of the dataset cannot be read from {path}{within}: {reason(error)}; "
            f"copy the file again, or leave the frame out by start {number + 1} or stop {number}"
        )

    def _read_facts(self) -> OriginFacts:
        """Read the ends of the files and the first frames."""
        first = next(self.read([0]))
        velocities, forces = first.velocities is not None, first.forces is not None
        start, following = self.times([0, 1]) if self.n_frames > 1 else (0.0, None)
        timestep = None if following is None else float(following - start)
        stamps = [path for file in self.files for path in file.stamps]
        return OriginFacts(_fingerprint(stamps), timestep, velocities, forces)

    def _join_times(self) -> FrameTimes | None:
        """Return all times if known without reading frames; raise if they run backwards."""
        if len(self.files) > 1 and not any(file.timed for file in self.files):  # they count frames
            return even_times(self.n_frames, float(self.keywords.get("dt", 1.0)), 0.0, self.files[0].time(0))
        times = self.files[0].times
        if len(self.files) > 1:
            known = [file.times[: file.n_frames] for file in self.files if file.times is not None]
            times = np.concatenate(known) if len(known) == len(self.files) else None
        if times is None:
            return None
        number = times.first_backward() if isinstance(times, InterpolatedTimes) else first_backward(times)
        if number is not None:
            self._refuse_time(number, times[number - 1], times[number])
        return times

    def _refuse_time(self, number: int, before: float, time: float) -> None:
        path, local = self.locate(number)
        raise TrajectoryError(
            f"{path}: time runs backwards, from {before:g} ps to {time:g} ps at frame {local} of the file "
            f"(frame {number} of the dataset); split the file there and give the pieces as several trajectories, "
            "or give the time step as the universe keyword dt"
        )


def open_origin(
    trajectories: Sequence[str | os.PathLike[str]],
    topology: str | os.PathLike[str] | None = None,
    keywords: Mapping[str, Any] | None = None,
    indexes: Mapping[str, XdrIndex] | None = None,
) -> Origin:
    """Open consecutive trajectory files as one dataset. For rank 0: the result is sent as a pickle."""
    if isinstance(trajectories, str | os.PathLike):
        trajectories = [trajectories]
    if not trajectories:
        raise UsageError("no trajectory given")
    keywords = dict(keywords or {})
    paths = [existing_path(path, "trajectory") for path in trajectories]
    if topology is not None:
        topology = local_path(existing_path(topology, "topology"))
    check(keywords, topology)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        files = [_open(path, topology, keywords, indexes or {}) for path in paths]
        _check_atoms(files)
        join(files)
        origin = Origin(files, keywords)
    for warning in caught:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    origin.warnings = tuple(str(warning.message) for warning in caught if warning.category is UserWarning)
    return origin


def _check_atoms(files: Sequence[FrameFile]) -> None:
    for file in files[1:]:
        if file.n_atoms != files[0].n_atoms:
            raise TrajectoryError(
                f"{files[0].path} has {files[0].n_atoms} atoms, {file.path} has {file.n_atoms}; "
                "trajectories that follow one another must have the same atoms"
            )


def existing_path(path: str | os.PathLike[str], what: str) -> str:
    """Return the absolute path of an existing file; raises UsageError with a hint for a mistyped name."""
    if is_url(path):
        name = absolute(path)
        if name.rstrip("/").endswith(SUFFIXES):
            raise UsageError(f"{name} is a Zarr directory: download it, and name the local one")
        try:
            read_status(name)
        except RemoteError as error:
            raise UsageError(f"{what} {name} cannot be read: {error.strerror}") from None
        return name
    full_path = os.path.abspath(os.path.expanduser(path))
    engine = re.match(r"imd:/+(.*)", os.fspath(path))
    if engine:
        raise UsageError(
            f"imd://{engine[1]} is a running engine: 'himach follow' (himach.follow) analyses its frames while they "
            "come, and keeps them as a dataset, which goes by its name"
        )
    try:
        os.stat(full_path)
        return full_path
    except FileNotFoundError:
        pass
    except OSError as error:
        raise UsageError(f"{what} {os.fspath(path)} cannot be reached: {error.strerror}") from None
    if glob.has_magic(full_path) and (paths := glob.glob(full_path)):
        raise UsageError(
            f"there is no {what} {os.fspath(path)}, but {len(paths)} that match it: leave the quotes out, so that the "
            "shell puts their names in its place; in Python give sorted(glob.glob(...))"
        )
    folder = Path(full_path).parent
    if not folder.is_dir():
        raise UsageError(f"there is no {what} {os.fspath(path)}: the folder {folder} does not exist")
    try:
        near_names = difflib.get_close_matches(Path(full_path).name, os.listdir(folder), n=1)
    except OSError:  # a folder with permission to enter but not to read
        near_names = []
    hint = f"; did you mean {str(folder / near_names[0])!r}?" if near_names else ""
    if what == "trajectory" and os.sep not in os.fspath(path):
        hint = f"; 'himach cache list' tells the datasets of this node's store{hint}"
    raise UsageError(f"there is no {what} {os.fspath(path)}{hint}")


def _open(path: str, topology: str | None, keywords: Mapping[str, Any], indexes: Mapping[str, XdrIndex]) -> FrameFile:
    try:
        return open_file(path, topology, keywords, indexes)
    except OSError as error:
        raise TrajectoryError(f"{path} cannot be read: {error.strerror or reason(error)}") from error


def read_fingerprint(paths: Sequence[str | os.PathLike[str]]) -> str:
    """Return the `Origin.fingerprint` of these trajectories without reading frames."""
    existing_paths = [existing_path(path, "trajectory") for path in paths]
    try:
        return _fingerprint([file for path in existing_paths for file in stamp_files(path)])
    except OSError as error:
        raise TrajectoryError(f"{error.filename} cannot be read: {error.strerror}") from None


def _fingerprint(files: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with ByteFile(path) as file:
            size = file.status.size
            digest.update(size.to_bytes(8, "little"))
            digest.update(file.pread(_FINGERPRINT_BYTES, 0))
            digest.update(file.pread(_FINGERPRINT_BYTES, max(0, size - _FINGERPRINT_BYTES)))
    return digest.hexdigest()


def _round_time(step: float, error: float) -> float:
    """Return the shortest decimal within the error of a mean time step and within 2 % of the step."""
    error = min(error, 0.02 * abs(step))
    return next((short for digits in range(13) if abs((short := round(step, digits)) - step) <= error), step)


_ENSEMBLE = "independent simulations as --ensemble (in Python ensemble=)"


def join(files: Sequence[FrameFile]) -> None:
    """Drop the last frames of files that the next file has again."""
    if not all(file.timed for file in files):
        _check_starts(files)  # frames that are merely counted cannot overlap
        return
    for earlier, later in itertools.pairwise(files):
        _drop_overlap(earlier, later)
        earlier.release()


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


def _drop_overlap(earlier: FrameFile, later: FrameFile) -> None:
    first = later.time(0)
    start = earlier.time(0)
    limit = first - tolerance(first)
    if start > first + tolerance(first):
        raise TrajectoryError(
            f"time runs backwards: {later.path} begins at {first:g} ps (its frame 0), before the first frame of "
            f"{earlier.path}, at {start:g} ps, which it is to follow; give the files in the order of time, "
            f"{_ENSEMBLE}, or the time step as the universe keyword dt"
        )
    if not start < limit:  # also for nan
        raise _duplicate_error(
            f"{earlier.path} and {later.path} both begin at {start:g} ps",
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
            f"{n_dropped} frame{'s' if n_dropped > 1 else ''} of {earlier.path}, from {since:g} ps on, dropped: "
            f"{later.path} {again} and its frames are kept",
            stacklevel=2,
        )
