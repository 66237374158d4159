"""Work pickled for the ranks that a process starts; it travels through a place private to the user."""

from __future__ import annotations

import linecache
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from himach.errors import cell_name

if TYPE_CHECKING:
    from himach.ranks.communicator import World


def pack_work(work: Callable[[World], Any]) -> bytes:
    """Return pickled work for every rank, with what Python needs to find its code."""
    return pickle.dumps({"path": list(sys.path), "sources": _cell_sources(), "work": pickle.dumps(work)})


def unpack_work(data: bytes) -> Callable[[World], Any]:
    """Return the work; set the import path of the process that packed it."""
    packed = pickle.loads(data)
    sys.path[:] = packed["path"]
    linecache.cache.update(packed["sources"])
    work: Callable[[World], Any] = pickle.loads(packed["work"])
    return work


def _cell_sources() -> dict[str, Any]:
    """Return the source lines that exist only in this process (cells, the REPL), for error messages on the ranks."""
    # Without a modification time, ranks do not check the file system for changes. They show the full name: of a cell,
    # its number in the notebook.
    return {
        name: (entry[0], None, entry[2], cell_name(name) or entry[3])
        for name, entry in linecache.cache.items()
        if len(entry) == 4 and not Path(name).exists()
    }
