"""Folder for a live run's pairs between outcomes: `pairs_between()`; this run removes it, or the next one does."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from himach.locks import HeldError, Lock
from himach.ranks.collective import on_first_rank
from himach.ranks.communicator import World
from himach.ranks.launch.memory import scratch_directory
from himach.ranks.quiet import say

PREFIX = "himach-live-"
LOCK = "lock"  # shows that the run is alive
PAIRS = "pairs"


@contextmanager
def pairs_between(world: World, pairs: Path | None, out: Path | None, quiet: bool) -> Iterator[Path | None]:
    """Yield a temporary directory for pairs; None if there is none or the user named one (collective)."""
    if pairs is not None:
        yield None
        return
    comm = world.comm
    locks: list[Lock] = []

    def make() -> Path | None:
        parent = scratch_directory() if len(world.nodes) == 1 else out and out.expanduser().absolute().parent
        if parent is None or not os.access(parent, os.W_OK):
            return None
        for left in parent.glob(f"{PREFIX}*/{LOCK}"):  # of this user's killed runs
            with suppress(OSError, HeldError):
                if left.parent.lstat().st_uid == os.geteuid():
                    _remove(Lock(left))
        folder = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=parent))
        locks.append(Lock(folder / LOCK))
        # Other runs never see this name without its lock.
        folder = folder.rename(parent / folder.name.removeprefix("."))
        locks[0].path = folder / LOCK
        return folder

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
        for lock in locks:
            _remove(lock)


def _remove(lock: Lock) -> None:
    shutil.rmtree(lock.path.parent, ignore_errors=True)
    lock.release()
