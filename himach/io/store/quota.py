"""Quota: how much a store may hold, what it holds, and which of its segments go first.

`survey()` looks at files alone, as opening a dataset counts as its use. `chosen_quota()` is the one rule for the quota,
which `Store.set_quota` passes on to the C library; whoever writes to the store then keeps to it, evicting what was not
used for longest.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from himach.errors import UsageError
from himach.io.store import bodhi
from himach.io.store.sizes import parse_size, show_size
from himach.io.store.store import Store, StoreFullError, StoreNotFoundError

__all__ = ["Segment", "StoreSizes", "check_quota", "chosen_quota", "set_chosen_quota", "survey"]

QUOTA = "HIMACH_QUOTA"
SMALLEST_SEGMENT = 1 << 20


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment, as its files show it.

    Attributes
    ----------
    directory
        Subdirectory of its dataset.
    id
        Its id.
    native
        Whether it holds natives; else aliens.
    pushed
        Whether its dataset has no origin to be read from again: it goes only when somebody names it.
    derived
        Whether it is of a dataset's time-major form, which is made of what the store holds: it goes first.
    nbytes
        Bytes of the segment and its index.
    last_used
        When its dataset was last used, in nanoseconds since 1970.
    """

    directory: str
    id: int
    native: bool
    pushed: bool
    derived: bool
    nbytes: int
    last_used: int


@dataclass(frozen=True)
class StoreSizes:
    """What a store and its disk hold.

    Attributes
    ----------
    used
        Bytes of all files of the store.
    free, size
        Bytes free for this user on the file system, and all that it has.
    reserve
        Bytes of the file system that himach leaves free.
    segments
        All segments, those that go first first: of the dataset not used for longest, aliens before natives, oldest
        first.
    """

    used: int
    free: int
    size: int
    reserve: int
    segments: tuple[Segment, ...]


def survey(path: Path) -> StoreSizes:
    """Look at the files of the store at `path`, which need not exist; files that vanish meanwhile are no error."""
    try:
        usage, segments = bodhi.survey(os.fsencode(path))
    except StoreNotFoundError:
        existing = next(folder for folder in path.absolute().parents if folder.is_dir())
        usage, segments = {**bodhi.survey(os.fsencode(existing))[0], "used": 0}, []
    return StoreSizes(**usage, segments=tuple(Segment(*one) for one in segments))


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
        Bytes of a full segment; 0 for what the library chooses.

    Raises
    ------
    UsageError
        If the quota is smaller than a segment.
    StoreFullError
        If the disk has less than its reserve, even if all segments that may go went.
    """
    segment = segment or SMALLEST_SEGMENT
    if quota < segment:
        raise UsageError(
            f"{path}: the quota of {show_size(quota)} ({quota} bytes) is smaller than a segment of "
            f"{show_size(segment)} ({segment} bytes); set a larger one by {QUOTA} ('himach "
            "stage' and 'himach cache start' also have --quota)"
        )
    found = survey(path)
    if found.free + sum(segment.nbytes for segment in found.segments if not segment.pushed) < found.reserve:
        raise StoreFullError(
            f"{path}: the disk has {show_size(found.free)} ({found.free} bytes) free, and himach leaves "
            f"{show_size(found.reserve)} ({found.reserve} bytes) to others; make room, or put the store elsewhere with "
            "HIMACH_CACHE"
        )


def set_chosen_quota(store: Store) -> tuple[int, str]:
    """Have a store keep to the chosen quota.

    Returns
    -------
    quota
        Bytes that the store may hold; 0: the disk has no room for a segment, so that nothing is kept.
    reason
        Why nothing is kept; "" otherwise.

    Raises
    ------
    UsageError
        If ``$HIMACH_QUOTA`` cannot be kept to.
    """
    try:
        quota = chosen_quota(store.path)
        check_quota(store.path, quota)
        store.set_quota(quota)
    except (StoreFullError, UsageError) as error:
        if isinstance(error, UsageError) and os.environ.get(QUOTA):
            raise
        return 0, f"no frames are kept in the cache: {error}"
    return quota, ""
