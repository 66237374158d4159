"""What travels between a process and the ranks that it starts, in a private place of the user's: pickled work."""

from __future__ import annotations

import linecache
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from himach.errors import cell_name

if TYPE_CHECKING:
    from himach.parallel.communicator import World


def pack_work(work: Callable[[World], Any]) -> bytes:
    """Return work to be done with the world on every rank, and what Python needs in order to find its code."""
    return pickle.dumps({"path": list(sys.path), "sources": _cell_sources(), "work": pickle.dumps(work)})


def unpack_work(data: bytes) -> Callable[[World], Any]:
    """Return the work; the import path becomes that of the process that packed it."""
    packed = pickle.loads(data)
    sys.path[:] = packed["path"]
    linecache.cache.update(packed["sources"])
    work: Callable[[World], Any] = pickle.loads(packed["work"])
    return work


def _cell_sources() -> dict[str, Any]:
    """Return the source lines that exist only in this process (cells, the REPL), for error messages on the ranks."""
    # Without a time of change, the ranks do not ask the file system whether it still holds. The full name is what they
    # show: of a cell, its number in the notebook.
    return {
        name: (entry[0], None, entry[2], cell_name(name) or entry[3])
        for name, entry in linecache.cache.items()
        if len(entry) == 4 and not Path(name).exists()
    }
