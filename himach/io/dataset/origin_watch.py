"""`OriginWatch`: checks on every rank that an origin is still as the first rank opened it.

The first rank records the states and the content of the files in an `OriginNote`. Every rank compares its own view of
the files with the note: on opening, periodically while reading, before storing a frame, and after the last frame. A
file that only grew counts as unchanged, and so does another copy of the same content.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from himach.errors import TrajectoryError
from himach.io.dataset.origin_stamp import FileState, OriginStamp, digest, frame_files, lasting_files
from himach.io.remote.url import absolute
from himach.io.trajectory.failures import retry
from himach.io.trajectory.origin import Origin

#: Pauses in seconds before another check on a node whose view of a file differs from the first rank's.
PAUSES = (0.2, 1.0)
OPENINGS = 3  # attempts to open files that change meanwhile

T = TypeVar("T")


class OriginChangedError(TrajectoryError):
    """The origin has changed since the run began, or differs between nodes."""


@dataclass(frozen=True)
class OriginNote:
    """An origin as the first rank found it."""

    files: tuple[FileState, ...]  # its `lasting_files`
    content: str  # `digest` of them

    @classmethod
    def from_origin(cls, origin: Origin, stamp: OriginStamp | None = None) -> OriginNote:
        """Record a reachable origin; with its `stamp`, usually without reading files."""
        paths = lasting_files(origin)
        if stamp is not None and paths == [file.path for file in stamp.files]:
            return cls(stamp.files, stamp.content)
        files = tuple(map(FileState.from_path, paths))
        return cls(files, digest(files))


def open_unchanged(paths: Sequence[str | os.PathLike[str]], open_files: Callable[[], T]) -> T:
    """Call `open_files`, again if the trajectory files changed meanwhile other than by growth; return its result."""
    names = [*map(absolute, paths)]
    for _ in range(OPENINGS):
        before = [FileState.from_path(path) for path in names]
        try:
            result = _open_or_retry(open_files)
        except OSError as error:
            raise TrajectoryError(f"{error.filename or names[0]} cannot be read: {error.strerror or error}") from error
        changes = [(old, FileState.from_path(old.path)) for old in before]
        changed = [old.path for old, new in changes if old != new and new.size <= old.size]
        if not changed:
            return result
    raise OriginChangedError(
        f"{changed[0]} changes while it is opened; run again when nothing writes to it any more, other than at its end"
    )


def _open_or_retry(open_files: Callable[[], T]) -> T:
    try:
        return open_files()
    except (OSError, TrajectoryError) as error:
        return retry(open_files, error)


class OriginWatch:
    """Compares this rank's view of the origin's files with a note."""

    def __init__(self, note: OriginNote, origin: Origin, rank_name: str, leads: bool = True) -> None:
        self._note = note
        self._origin = origin
        self._rank_name = rank_name
        self._noted_files = {file.path: file for file in note.files}
        self._equal_states = dict(self._noted_files)  # states with the noted content
        stamps = [path for file, _ in origin.files() for path in file.stamps]
        self._paths = tuple(path for path in self._noted_files if leads or path in stamps)

    def check_at_start(self) -> None:
        """Compare the existing files before the first frame is read; reading reports missing files."""
        present = [path for path in self._paths if FileState.from_path(path).size >= 0]
        difference = self._find_difference(present)
        for pause in PAUSES:
            if not difference:
                return
            time.sleep(pause)  # a network file system caches attributes for seconds, or a copy is in progress
            difference = self._find_difference(present)
        if difference:
            raise OriginChangedError(
                f"{difference} on {self._rank_name}, unlike on rank 0: all ranks must see the same trajectory; mount "
                "the same file system on all nodes, or copy the file to each of them again"
            )

    def check(self) -> None:
        """Compare all files."""
        difference = self._find_difference(self._paths)
        if difference:
            raise OriginChangedError(
                f"{difference}: the trajectory has changed since this run opened it (found on {self._rank_name}); "
                "frames of two contents would be mixed, so nothing that was read is used or kept; run again when "
                "nothing writes to the file any more, other than at its end"
            )

    def holds(self, numbers: Sequence[int]) -> bool:
        """Tell whether the files of these frames are unchanged."""
        return not self._find_difference(frame_files(self._origin, numbers) & self._noted_files.keys())

    def changed(self, number: int) -> bool:
        """Tell whether a frame's file changed since `check`, other than by growth; open files of directories only."""
        path, _ = self._origin.locate(number)
        noted = self._noted_files.get(path)
        if noted is None:  # a frame directory
            return not self.holds([number])
        now = FileState.from_path(path)
        return now.size <= noted.size and now != self._equal_states[path]

    def _find_difference(self, paths: Iterable[str]) -> str:
        """Return which file differs and how; empty if none does."""
        compare = partial(self._compare, tuple(paths))
        try:
            try:
                return compare()
            except OSError as error:
                return retry(compare, error)
        except OSError as error:
            return f"{error.filename or self._origin.paths[0]} cannot be read ({error.strerror or error})"

    def _compare(self, paths: Sequence[str]) -> str:
        now = [FileState.from_path(path, fresh=True) for path in paths]
        new = [file for file in now if file != self._equal_states[file.path]]
        for file in new:
            if file.size < (size := self._noted_files[file.path].size):
                return f"{file.path} {_describe_loss(file.size, size)}"
        if new and digest(self._note.files) != self._note.content:
            several = f"one of the {len(self._noted_files)} files of {self._origin.paths[0]}"
            return f"{new[0].path if len(self._noted_files) == 1 else several} has other content"
        self._equal_states.update({file.path: file for file in new})
        return ""


def _describe_loss(size: int, noted: int) -> str:
    return "is not there any more" if size < 0 else f"has {size} bytes and had {noted}"
