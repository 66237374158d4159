"""Folder for a live run's pairs between outcomes: `pairs_between()`, which goes with the run."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from himach.ranks.collective import on_first_rank
from himach.ranks.communicator import World
from himach.ranks.launch.memory import scratch_directory
from himach.ranks.quiet import say


@contextmanager
def pairs_between(world: World, pairs: Path | None, out: Path | None, quiet: bool) -> Iterator[Path | None]:
    """Yield a temporary directory for pairs; None if there is none or the user named one (collective)."""
    if pairs is not None:
        yield None
        return
    comm = world.comm

    def make() -> Path | None:
        parent = scratch_directory() if len(world.nodes) == 1 else out and out.expanduser().absolute().parent
        if parent is None or not os.access(parent, os.W_OK):
            return None
        return Path(tempfile.mkdtemp(prefix="himach-live-", dir=parent))

    folder = on_first_rank(comm, make, share=True)
    try:
        shared = comm.allreduce(folder is not None and folder.exists()) == comm.size
        if not shared and not quiet and comm.rank == 0:
            say(
                "himach: warning: every outcome maps all frames again, because these nodes have no directory in common "
                "for pairs: name one that all of them see (--pairs DIR, or an --out there)",
                sys.stderr,
            )
        yield folder if shared else None
    finally:
        if comm.rank == 0 and folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
