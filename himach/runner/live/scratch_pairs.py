"""Folder for a live run's pairs between outcomes: `pairs_between()`; this run removes it, or the next one does."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from himach.locks import HeldError, Lock, holder
from himach.ranks.collective import on_first_rank
from himach.ranks.communicator import World
from himach.ranks.launch.memory import scratch_directory
from himach.ranks.quiet import say

PREFIX = "himach-live-"
LOCK = "lock"
PAIRS = "pairs"
NEW = 60.0  # seconds for which a folder may have no lock yet


@contextmanager
def pairs_between(world: World, pairs: Path | None, out: Path | None, quiet: bool) -> Iterator[Path | None]:
    """Yield a temporary directory for pairs; None if there is none or the user named one (collective)."""
    if pairs is not None:
        yield None
        return
    comm = world.comm
    folders: list[_Folder] = []

    def make() -> Path | None:
        directory = _choose_parent(len(world.nodes), out)
        if directory is not None:
            folders.append(_Folder(directory))
        return folders[0].path if folders else None

    try:
        path = on_first_rank(comm, make, share=True)
        if comm.allreduce(path is not None and os.path.exists(path / LOCK)) < comm.size:
            path = None
        if path is None and not quiet and comm.rank == 0:
            say(
                "himach: warning: every outcome maps all frames again, because these nodes have no directory in common "
                "for pairs: name one that all of them see (--pairs DIR, or an --out there)",
                sys.stderr,
            )
        yield None if path is None else path / PAIRS
    finally:
        for folder in folders:
            folder.remove()


def _choose_parent(nodes: int, out: Path | None) -> Path | None:
    """Return the parent directory for pairs, after removing leftovers of killed runs from it."""
    directory = scratch_directory() if nodes == 1 else None if out is None else out.expanduser().absolute().parent
    if directory is None or not os.access(directory, os.W_OK):
        return None
    _sweep(directory)
    return directory


class _Folder:
    """A folder of this run, with a lock that shows that the run is alive."""

    def __init__(self, directory: Path) -> None:
        folder = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=directory))
        self._lock = Lock(folder / LOCK)
        # Other runs never see this name without its lock.
        self.path = folder.rename(folder.with_name(folder.name.removeprefix(".")))

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()


def _sweep(directory: Path) -> None:
    """Remove folders of this user's killed runs."""
    for path in (*directory.glob(f"{PREFIX}*"), *directory.glob(f".{PREFIX}*")):
        with suppress(OSError, HeldError):
            if _is_dead(path):
                lock = Lock(path / LOCK)
                shutil.rmtree(path, ignore_errors=True)
                lock.release()


def _is_dead(path: Path) -> bool:
    """Return whether this is this user's folder of a dead run, as far as is visible without taking its lock."""
    status = os.lstat(path)
    is_new = path.name.startswith(".") and time.time() < status.st_mtime + NEW
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not is_new and not holder(path / LOCK)
