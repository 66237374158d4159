"""What FUSE asks of a mount, answered from a `Tree`: `Operations`."""

from __future__ import annotations

import ctypes
import errno
import itertools
import logging
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from himach.formats.layout import Bytes
from himach.mount.block_cache import BlockCache
from himach.mount.datasets import Datasets, Facts
from himach.mount.tree import FAILURES, File, Folder, Path, Tree, layout_of

__all__ = ["Operations"]

log = logging.getLogger("himach.mount")

BLOCK_SIZE = 1 << 16  # what programs are told to read at once
MAX_BACKGROUND_READS = (
    8  # reads ahead that the kernel sends at once: fewer than libfuse has threads, so that others get through
)
MAX_ERRORS = 1000  # errors that were told


class _Fixed:
    """A file in memory."""

    awaited = False

    def __init__(self, content: Callable[[], bytes]) -> None:
        self._content = content
        self._found: Bytes | None = None
        self._lock = threading.Lock()

    def read(self, offset: int, size: int) -> list[Bytes]:
        with self._lock:
            if self._found is None:
                self._found = np.frombuffer(bytearray(self._content()), np.uint8)
        return [self._found[offset : offset + size]]

    def close(self) -> None:
        """Nothing is open."""


class _Trajectory:
    """An open trajectory file, which grows as long as its dataset does.

    Parameters
    ----------
    name
        Of the file.
    facts
        Of the dataset, when it was opened.
    now
        Returns what they are now; None if that is not known.
    datasets
        Opens it.
    """

    def __init__(self, name: str, facts: Facts, now: Callable[[], Facts | None], datasets: Datasets) -> None:
        self._name = name
        self._facts = facts
        self._now = now
        self._datasets = datasets
        self._window = BlockCache(layout_of(name, facts), lambda: datasets.open(self._facts))
        self._lock = threading.Lock()

    @property
    def awaited(self) -> bool:
        return self._window.awaited

    def read(self, offset: int, size: int) -> list[Bytes]:
        facts = self._now()
        if facts is not None and facts is not self._facts:
            self._renew(facts)
        return self._window.read(offset, size)

    def _renew(self, facts: Facts) -> None:
        with self._lock:
            if facts.version != self._facts.version:  # the kernel must not mix its bytes with those of the other one
                raise OSError(f"{facts.name} has been made anew since the file was opened")
            if facts.n_frames > self._facts.n_frames:
                self._window.grow(layout_of(self._name, facts))
                self._facts = facts

    def close(self) -> None:
        self._window.close()


class Operations:
    """Callbacks of mfusepy, by several threads at once.

    Parameters
    ----------
    datasets
        What is shown.
    ready
        Called when the file system is mounted.
    """

    use_ns = True

    def __init__(self, datasets: Datasets, ready: Callable[[], None]) -> None:
        self._datasets = datasets
        self._tree = Tree(datasets)
        self._ready = ready
        self._handles: dict[int, _Fixed | _Trajectory] = {}
        self._numbers = itertools.count(1)
        self._told: OrderedDict[str, None] = OrderedDict()

    def init_with_config(self, connection: Any, config: Any) -> None:
        """Say how the kernel is to treat files."""
        if connection is not None:
            connection.max_background = MAX_BACKGROUND_READS
            connection.congestion_threshold = MAX_BACKGROUND_READS
        if config is not None:
            config.auto_cache = 1  # pages stay in memory until a file has another size or time
            config.entry_timeout = config.attr_timeout = 1.0
        self._ready()

    def getattr(self, path: str, handle: int | None = None) -> dict[str, int]:
        """Return the attributes of a file or folder."""
        found = self._find(path)
        changed = dict.fromkeys(("st_atime", "st_mtime", "st_ctime"), found.changed)
        owner = {"st_uid": os.geteuid(), "st_gid": os.getegid()}
        if isinstance(found, Folder):
            return {"st_mode": stat.S_IFDIR | 0o555, "st_nlink": 2, **changed, **owner}
        sizes = {"st_size": found.size, "st_blocks": -(-found.size // 512), "st_blksize": BLOCK_SIZE}
        return {"st_mode": stat.S_IFREG | 0o444, "st_nlink": 1, **sizes, **changed, **owner}

    def readdir(self, path: str, handle: int) -> list[str]:
        """Return what lies in a folder."""
        found = self._find(path)
        if not isinstance(found, Folder):
            raise OSError(errno.ENOTDIR, path)
        return [".", "..", *found.names]

    def opendir(self, path: str) -> int:
        """Open a folder."""
        return 0

    def releasedir(self, path: str, handle: int) -> int:
        """Close a folder."""
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        """Return that there is no room."""
        return {"f_bsize": BLOCK_SIZE, "f_frsize": 4096, "f_namemax": 255}

    def open(self, path: str, flags: int) -> int:
        """Open a file; nothing is read before somebody reads."""
        found = self._find(path)
        if not isinstance(found, File):
            raise OSError(errno.EISDIR, path)
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise OSError(errno.EROFS, path)
        number = next(self._numbers)
        self._handles[number] = self._opened(found.name, found.facts)
        return number

    def _opened(self, name: str, facts: Facts) -> _Fixed | _Trajectory:
        if name.startswith("topology"):
            return _Fixed(lambda: self._datasets.topology(facts, name.removeprefix("topology")))
        return _Trajectory(name, facts, partial(self._tree.look, facts.name), self._datasets)

    def read(self, path: str, size: int, offset: int, handle: int) -> Any:
        """Return bytes of a file, as one piece of memory."""
        try:
            pieces = self._handles[handle].read(offset, size)
        except FAILURES as error:
            self._tell(f"{path} cannot be read at {offset}: {error}", f"{path}: {error}")
            raise OSError(errno.EIO, path) from None
        if not any(map(len, pieces)):
            return b""
        found = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return (ctypes.c_char * len(found)).from_buffer(found)

    def release(self, path: str, handle: int) -> int:
        """Close a file."""
        self._handles.pop(handle).close()
        return 0

    @property
    def awaited(self) -> bool:
        """Whether somebody waits for frames."""
        return any(file.awaited for file in list(self._handles.values()))

    def close(self) -> None:
        """Close all files, when nobody can ask any more."""
        while self._handles:
            self._handles.popitem()[1].close()

    def _find(self, path: str) -> Folder | File:
        parts: Path = tuple(part for part in path.split("/") if part)
        found = self._tree.find(parts)
        if found is None:
            raise OSError(errno.ENOENT, path)
        return found

    def _tell(self, text: str, what: str) -> None:
        """Log what cannot be read, once."""
        if what not in self._told:
            self._told[what] = None
            log.warning(text)
            if len(self._told) > MAX_ERRORS:
                self._told.popitem(last=False)
