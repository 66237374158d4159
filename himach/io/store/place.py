"""Where a node's store lies: `store_place()`, and `open_store()`, the store that the user chose."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from himach.errors import UsageError
from himach.io.store.store import Store, StoreError, StoreFullError
from himach.parallel.communicator import node_name

AUTO, OFF = "auto", "off"
VARIABLE = "HIMACH_CACHE"


def store_place(choice: str | os.PathLike[str] | None = None) -> Path:
    """Return where this node's store lies; nothing is made.

    Parameters
    ----------
    choice
        A directory, in which ``{node}`` stands for the node's name; None or ``"auto"`` for the default:
        ``$HIMACH_CACHE``, in which ``{node}`` stands for the same; else ``himach-<uid>`` in the job's scratch
        directory ``$SLURM_TMPDIR``; else ``$XDG_CACHE_HOME/himach`` if that is set; else ``/var/tmp/himach-<uid>``.
    """
    chosen = _named(choice)
    if chosen:
        return Path(chosen.replace("{node}", node_name())).expanduser()
    own = f"himach-{os.geteuid()}"
    scratch = os.environ.get("SLURM_TMPDIR")
    if scratch:
        return Path(scratch, own)
    home = os.environ.get("XDG_CACHE_HOME")
    return Path(home, "himach") if home else Path("/var/tmp", own)


def open_store(choice: str | os.PathLike[str] | None = None, *, create: bool = True, read_only: bool = False) -> Store:
    """Open the store at `store_place`.

    Parameters
    ----------
    choice
        See `store_place`.
    create, read_only
        As of `Store`.

    Raises
    ------
    StoreError
        As `Store` does; also if the default place, which the user has not named, is a symbolic link.
    """
    return Store(store_place(choice), create=create, read_only=read_only, follow_link=bool(_named(choice)))


def open_chosen(choice: str) -> tuple[Store | None, str]:
    """Open the store that the user of a run chose.

    Parameters
    ----------
    choice
        ``"off"``, or as of `store_place`.

    Returns
    -------
    Store or None
        None if there is to be no cache.
    str
        Why there is none although there was to be one: its default place cannot be used, or a disk is full.

    Raises
    ------
    UsageError
        If a directory that the user named, also by ``$HIMACH_CACHE``, cannot hold a store, however much room it has.
    """
    if choice == OFF:
        return None, ""
    try:
        return open_store(choice), ""
    except (StoreError, OSError) as error:
        place = store_place(choice)
        reason = str(error) if isinstance(error, StoreError) else f"{place}: {error.strerror}"
        if _is_full(error):  # as it may be one day for every store: a miss, and no error
            return None, f"no frames are cached: {reason}; make room, or name a directory on another disk as the cache"
        if not _named(choice):
            return None, f"no frames are cached: {reason}; name a directory on a local disk as the cache"
        named = f"${VARIABLE}" if choice == AUTO else "cache"
        raise UsageError(
            f"{named} names {place}, which cannot hold the cache: {reason}; name a directory of your own on a local "
            "disk, or turn the cache off"
        ) from error


def _is_full(error: Exception) -> bool:
    return isinstance(error, StoreFullError) or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)


def owner_of(choice: str) -> tuple[Path, int] | None:
    """Return place and owner of a store that the user named, if it is another user's; None if not."""
    place = store_place(choice)
    try:
        owner = place.stat().st_uid
    except OSError:
        return None
    return (place, owner) if _named(choice) and owner != os.geteuid() else None


def _named(choice: str | os.PathLike[str] | None) -> str:
    """Return the directory that the user named, as it was given; empty for the default place."""
    return os.environ.get(VARIABLE, "") if choice is None or choice == AUTO else os.fspath(choice)
