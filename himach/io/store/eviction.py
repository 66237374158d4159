"""Quota and eviction: how much a store may hold, and which segments go when it would hold more.

`survey()` finds out what lies where by looking at files alone; `plan()` chooses, from such facts and nothing else;
`act()` deletes, and never what a writer or reader holds. `make_room()` is the one call for writers. Opening a dataset
counts as its use, so nothing here opens one but to delete from it.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from himach.errors import UsageError
from himach.io.store.segment_file import VERSION
from himach.io.store.sizes import parse_size, show_size
from himach.io.store.store import (
    SUBDIRECTORY,
    Store,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreNotFoundError,
    StoreSystemError,
    StoreVersionError,
)

__all__ = [
    "Freed",
    "Segment",
    "Survey",
    "act",
    "check_quota",
    "chosen_quota",
    "make_room",
    "plan",
    "reserve",
    "segment_bytes",
    "survey",
]

QUOTA = "HIMACH_QUOTA"
LARGEST_SEGMENT = 256 << 20
SMALLEST_SEGMENT = 1 << 20
SEGMENTS_IN_QUOTA = 8  # a quota should be many segments, since whole ones go
LARGEST_RESERVE = 1 << 30
RESERVED_SHARE = 20  # a twentieth of the file system stays free, or LARGEST_RESERVE

_SEGMENT = re.compile(r"([na])-([0-9a-f]{16})\.(seg|idx)")


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment, as far as it matters for choosing.

    Attributes
    ----------
    directory
        Subdirectory of its dataset.
    id
        Its id.
    native
        Whether it holds natives; else aliens.
    nbytes
        Bytes of the segment and its index.
    last_used
        When its dataset was last used, in nanoseconds since 1970.
    """

    directory: str
    id: int
    native: bool
    nbytes: int
    last_used: int


@dataclass(frozen=True)
class Survey:
    """What a store and its disk hold.

    Attributes
    ----------
    segments
        All segments.
    used
        Bytes of all files of the store.
    free, size
        Bytes free for this user on the file system, and all that it has.
    """

    segments: tuple[Segment, ...]
    used: int
    free: int
    size: int

    def shortage(self, nbytes: int, quota: int) -> int:
        """Return how many bytes must go before `nbytes` more fit the quota and leave the reserve; 0 if they fit."""
        return max(0, self.used + nbytes - quota, reserve(self.size) + nbytes - self.free)


@dataclass
class Freed:
    """What `act` did.

    Attributes
    ----------
    nbytes
        Bytes freed.
    segments
        The segments deleted.
    busy
        Those that were to go, with the reason why they did not.
    """

    nbytes: int = 0
    segments: list[Segment] = field(default_factory=list)
    busy: list[tuple[Segment, str]] = field(default_factory=list)


def reserve(size: int) -> int:
    """Return how many bytes of a file system of this size himach leaves free."""
    return min(LARGEST_RESERVE, size // RESERVED_SHARE)


def segment_bytes(quota: int) -> int:
    """Return the size at which a segment should be full, for a quota."""
    return max(SMALLEST_SEGMENT, min(LARGEST_SEGMENT, quota // SEGMENTS_IN_QUOTA))


def chosen_quota(path: Path, given: str | int | None = None) -> int:
    """Return the quota of a store, bytes.

    Parameters
    ----------
    path
        The store's directory.
    given
        What the user gave: a size, else ``$HIMACH_QUOTA`` counts, else half of what is free or held by the store.
    """
    text = given if given is not None else os.environ.get(QUOTA) or None
    if text is None:
        found = survey(path)
        return (found.free + found.used) // 2
    return text if isinstance(text, int) else parse_size(text)


def check_quota(path: Path, quota: int, segment: int = 0) -> None:
    """Refuse a quota or a disk that leaves no room for anything.

    Parameters
    ----------
    path
        The store's directory.
    quota
        Bytes that the store may hold.
    segment
        Bytes of a full segment; 0 for `segment_bytes`.

    Raises
    ------
    UsageError
        If the quota is smaller than a segment.
    StoreFullError
        If the disk has less than its reserve, even if all segments went.
    """
    segment = segment or segment_bytes(quota)
    if quota < segment:
        raise UsageError(
            f"{path}: the quota of {show_size(quota)} ({quota} bytes) is smaller than a segment of "
            f"{show_size(segment)} ({segment} bytes); give a larger --quota, or set {QUOTA}"
        )
    found = survey(path)
    least = reserve(found.size)
    if found.free + sum(segment.nbytes for segment in found.segments) < least:
        raise StoreFullError(
            f"{path}: the disk has {show_size(found.free)} ({found.free} bytes) free, and himach leaves "
            f"{show_size(least)} ({least} bytes) to others; make room, or put the store elsewhere with HIMACH_CACHE"
        )


def survey(path: Path) -> Survey:
    """Look at the files of the store at `path`, which need not exist; files that vanish meanwhile are no error."""
    segments: list[Segment] = []
    used = 0
    for entry in _entries(path):
        if SUBDIRECTORY.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            own, nbytes = _survey_dataset(Path(entry.path))
            segments += own
            used += nbytes
        else:
            used += _facts(entry)[0]
    existing = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    disk = os.statvfs(existing)
    return Survey(tuple(segments), used, disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize)


def plan(segments: Iterable[Segment], nbytes: int, spare: Collection[str] = ()) -> list[Segment]:
    """Choose the segments that go: datasets not used for longest first, in each aliens before natives, oldest first.

    Parameters
    ----------
    segments
        What there is.
    nbytes
        Bytes wanted.
    spare
        Subdirectories of datasets of which none may go.

    Returns
    -------
    list
        As few of that order as make up `nbytes`; all of them if they do not.
    """
    order = sorted(
        (segment for segment in segments if segment.directory not in spare),
        key=lambda segment: (segment.last_used, segment.directory, segment.native, segment.id),
    )
    chosen = []
    for segment in order:
        if nbytes <= 0:
            break
        chosen.append(segment)
        nbytes -= segment.nbytes
    return chosen


def act(store: Store, chosen: Iterable[Segment]) -> Freed:
    """Delete segments, but for those that a writer or reader holds."""
    freed = Freed()
    by_dataset: dict[str, list[Segment]] = {}
    for segment in chosen:
        by_dataset.setdefault(segment.directory, []).append(segment)
    for directory, segments in by_dataset.items():
        with _unused(store.path / directory / "meta"):
            _evict(store, directory, segments, freed)
    return freed


def make_room(store: Store, nbytes: int, quota: int, *, spare: Collection[str] = ()) -> bool:
    """See to it that `nbytes` more fit into the store, evicting if they do not.

    Parameters
    ----------
    store
        Open for writing.
    nbytes
        Bytes about to be written. Writers that work at once each ask for what all of them together may write before
        they ask again; then the quota holds whatever they do.
    quota
        Bytes that the store may hold.
    spare
        Subdirectories of datasets of which nothing may go: the one that is being written, or it would eat itself.

    Returns
    -------
    bool
        False if there is no room and none could be made. Nothing is evicted where even all that might go is not enough.
    """
    held: set[tuple[str, int]] = set()
    while True:
        found = survey(store.path)
        short = found.shortage(nbytes, quota)
        if not short:
            return True
        free_to_go = [segment for segment in found.segments if (segment.directory, segment.id) not in held]
        chosen = plan(free_to_go, short, spare)
        if sum(segment.nbytes for segment in chosen) < short:
            return False
        freed = act(store, chosen)
        held |= {(segment.directory, segment.id) for segment, _ in freed.busy}
        if not freed.segments and not freed.busy:
            return False


def _survey_dataset(folder: Path) -> tuple[list[Segment], int]:
    sizes: dict[tuple[bool, int], int] = {}
    used = last_used = 0
    for entry in _entries(folder):
        nbytes, modified = _facts(entry)
        used += nbytes
        match = _SEGMENT.fullmatch(entry.name)
        if match is not None:
            key = match[1] == "n", int(match[2], 16)
            sizes[key] = sizes.get(key, 0) + nbytes
        elif entry.name == "meta":
            last_used = modified
    return [Segment(folder.name, key, native, nbytes, last_used) for (native, key), nbytes in sizes.items()], used


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _facts(entry: os.DirEntry[str]) -> tuple[int, int]:
    """Return size and time of modification of a regular file; zeros for what is none."""
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return 0, 0
    return (status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else (0, 0)


@contextmanager
def _unused(meta: Path) -> Iterator[None]:
    """Let what opens a dataset in here not make it the one last used."""
    try:
        before = meta.stat()
    except OSError:
        yield
        return
    yield
    with suppress(OSError):
        os.utime(meta, ns=(before.st_atime_ns, before.st_mtime_ns))


def _evict(store: Store, directory: str, segments: list[Segment], freed: Freed) -> None:
    try:
        delete = _deleter(store, directory)
    except StoreError as error:
        freed.busy += [(segment, str(error)) for segment in segments]
        return
    for segment in segments:
        try:
            delete(segment)
        except StoreBusyError:
            freed.busy.append((segment, "a writer or reader holds it"))
        except StoreError as error:  # of another version, or somebody else has evicted it
            freed.busy.append((segment, str(error)))
        else:
            freed.segments.append(segment)
            freed.nbytes += segment.nbytes


def _deleter(store: Store, directory: str) -> Callable[[Segment], None]:
    """Return what deletes a segment of this dataset."""
    try:
        dataset = store.open_directory(directory)
    except StoreNotFoundError:  # nothing says any more what it is, so nobody can use it, but it takes space
        return lambda segment: _delete_orphan(store.path / directory, segment)
    return lambda segment: dataset.evict(segment.id)


def _delete_orphan(folder: Path, segment: Segment) -> None:
    """Delete a segment under its two locks, as docs/formats.md asks."""
    path = folder / f"{'n' if segment.native else 'a'}-{segment.id:016x}.seg"
    try:
        with open(path, "r+b") as file:
            magic, version = struct.unpack("<4sH", file.read(6).ljust(6, b"\0"))
            if magic == b"BdhS" and version != VERSION:
                raise StoreVersionError(f"{path} is of format version {version}; this himach reads version {VERSION}")
            for byte in (0, 1):
                lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
                fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
            path.unlink()
            path.with_suffix(".idx").unlink(missing_ok=True)
    except BlockingIOError:
        raise StoreBusyError(f"{path} is held by a writer or reader") from None
    except OSError as error:
        raise StoreSystemError(f"{path}: {error.strerror}") from None
