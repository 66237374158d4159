"""The place of this node's store, its quota, and the sizes of what is in it."""

import os
from dataclasses import dataclass
from pathlib import Path

from himach.errors import UsageError
from himach.io.store import bodhi
from himach.io.store.sizes import parse_size, show_size
from himach.io.store.store import Store, StoreError, StoreFullError, StoreNotFoundError
from himach.locks import DISK_FULL
from himach.ranks.communicator import node_name

QUOTA = "HIMACH_QUOTA"
SMALLEST_SEGMENT = 1 << 20


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment as found on disk."""

    directory: str  # subdirectory of its dataset
    id: int
    native: bool  # whether it holds natives; else aliens
    pushed: bool  # whether its dataset has no origin to reread: evicted only if the user names it
    nbytes: int  # bytes of the segment and its index
    last_used: int  # time of its dataset's last use, nanoseconds since 1970


@dataclass(frozen=True)
class StoreSizes:
    """Sizes of a store and its disk."""

    used: int  # bytes of all files of the store
    free: int
    size: int
    reserve: int  # bytes of the file system that himach leaves free
    segments: tuple[Segment, ...]


def survey(path: Path) -> StoreSizes:
    """Measure the store at `path`, which need not exist; files that vanish meanwhile are no error."""
    try:
        usage, segments = bodhi.survey(os.fsencode(path))
    except StoreNotFoundError:
        existing = next(folder for folder in path.absolute().parents if folder.is_dir())
        usage, segments = {**bodhi.survey(os.fsencode(existing))[0], "used": 0}, []
    return StoreSizes(**usage, segments=tuple(Segment(*row) for row in segments))


def chosen_quota(path: Path, value: str | int | None = None) -> int:
    """Return the quota of a store in bytes."""
    text = value if value is not None else os.environ.get(QUOTA) or None
    if text is None:
        sizes = survey(path)
        return (sizes.free + sizes.used) // 2
    return text if isinstance(text, int) else parse_size(text)


def check_quota(path: Path, quota: int) -> None:
    """Refuse a quota or a disk that leaves no room for frames."""
    if quota < SMALLEST_SEGMENT:
        raise UsageError(
            f"{path}: the quota of {show_size(quota)} ({quota} bytes) is smaller than a segment of "
            f"{show_size(SMALLEST_SEGMENT)} ({SMALLEST_SEGMENT} bytes); set a larger one by {QUOTA} ('himach "
            "stage' and 'himach cache start' also have --quota)"
        )
    sizes = survey(path)
    if sizes.free + sum(segment.nbytes for segment in sizes.segments if not segment.pushed) < sizes.reserve:
        raise StoreFullError(
            f"{path}: the disk has {show_size(sizes.free)} ({sizes.free} bytes) free, and himach leaves "
            f"{show_size(sizes.reserve)} ({sizes.reserve} bytes) to others; make room, or put the store elsewhere with "
            "HIMACH_CACHE"
        )


def set_chosen_quota(store: Store) -> tuple[int, str]:
    """Apply the chosen quota to a store; return 0 and the reason if no frames can be kept."""
    try:
        quota = chosen_quota(store.path)
        check_quota(store.path, quota)
        store.set_quota(quota)
    except (StoreFullError, UsageError) as error:
        if isinstance(error, UsageError) and os.environ.get(QUOTA):
            raise
        return 0, f"no frames are kept in the cache: {error}"
    return quota, ""


AUTO, OFF = "auto", "off"
VARIABLE = "HIMACH_CACHE"


def store_place(choice: str | os.PathLike[str] | None = None) -> Path:
    """Return the directory of this node's store; create nothing."""
    chosen = _named_directory(choice)
    if chosen:
        return Path(chosen.replace("{node}", node_name())).expanduser()
    own = f"himach-{os.geteuid()}"
    scratch = os.environ.get("SLURM_TMPDIR")
    if scratch:
        return Path(scratch, own)
    home = os.environ.get("XDG_CACHE_HOME")
    return Path(home, "himach") if home else Path("/var/tmp", own)


def open_store(choice: str | os.PathLike[str] | None = None, *, create: bool = True, read_only: bool = False) -> Store:
    """Open the store at `store_place`."""
    return Store(store_place(choice), create=create, read_only=read_only, follow_link=bool(_named_directory(choice)))


def open_chosen(choice: str) -> tuple[Store | None, str]:
    """Open the store that the user of a run chose."""
    if choice == OFF:
        return None, ""
    try:
        return open_store(choice), ""
    except (StoreError, OSError) as error:
        place = store_place(choice)
        reason = str(error) if isinstance(error, StoreError) else f"{place}: {error.strerror}"
        if _is_full(error):  # any store may fill up: a miss, not an error
            return None, f"no frames are cached: {reason}; make room, or name a directory on another disk as the cache"
        if not _named_directory(choice):
            return None, f"no frames are cached: {reason}; name a directory on a local disk as the cache"
        named = f"${VARIABLE}" if choice == AUTO else "cache"
        raise UsageError(
            f"{named} names {place}, which cannot hold the cache: {reason}; name a directory of your own on a local "
            "disk, or turn the cache off"
        ) from error


def _is_full(error: Exception) -> bool:
    return isinstance(error, StoreFullError) or getattr(error, "errno", None) in DISK_FULL


def find_other_owner(choice: str) -> tuple[Path, int] | None:
    """Return path and owner of a store that the user named, if it is another user's; else None."""
    place = store_place(choice)
    try:
        owner = place.stat().st_uid
    except OSError:
        return None
    return (place, owner) if _named_directory(choice) and owner != os.geteuid() else None


def _named_directory(choice: str | os.PathLike[str] | None) -> str:
    """Return the directory that the user named, unchanged; empty for the default place."""
    return os.environ.get(VARIABLE, "") if choice is None or choice == AUTO else os.fspath(choice)
