"""FUSE callbacks of a mount, answered from a `Tree`: `Operations`."""

import ctypes
import errno
import functools
import itertools
import os
import stat
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from himach.io.trajectories.layouts import Bytes
from himach.mount.block_cache import BlockCache
from himach.mount.stores import Facts, StoreDatasets, warn
from himach.mount.tree import FAILURES, File, Folder, Tree, make_layout

BLOCK_SIZE = 1 << 16  # read size recommended to programs
#: Kernel readahead requests at a time: fewer than libfuse's threads, so that other requests get through.
MAX_BACKGROUND_READS = 8


class _Topology:
    """A topology file, loaded into memory at the first read."""

    def __init__(self, content: Callable[[], bytes]) -> None:
        self._content = content

    @functools.cached_property
    def _bytes(self) -> Bytes:
        return np.frombuffer(bytearray(self._content()), np.uint8)

    def read(self, offset: int, size: int) -> list[Bytes]:
        return [self._bytes[offset : offset + size]]

    def close(self) -> None:
        """Do nothing: no file is open."""


class _Trajectory:
    """An open trajectory file, which grows with its dataset; `now` returns the dataset's current facts."""

    def __init__(self, name: str, facts: Facts, now: Callable[[], Facts | None], datasets: StoreDatasets) -> None:
        self._name, self._now, self._datasets = name, now, datasets
        self._lock = threading.Lock()
        self._show(facts)

    def _show(self, facts: Facts) -> None:
        """Read bytes of a file of so many frames from now on; earlier blocks go when their last reader has them."""
        self._facts = facts
        self._blocks = BlockCache(make_layout(self._name, facts), lambda: self._datasets.open(facts))

    def close(self) -> None:
        """Close the file."""
        self._blocks.close()

    def read(self, offset: int, size: int) -> list[Bytes]:
        facts = self._now()
        with self._lock:
            if facts is not None and facts.version != self._facts.version:
                # the kernel must not mix bytes of the two versions
                raise OSError(f"{facts.name} has been made anew since the file was opened")
            if facts is not None and facts.n_frames > self._facts.n_frames:
                self._show(facts)
            blocks = self._blocks
        return blocks.read(offset, size)


class Operations:
    """Callbacks of mfusepy, called by several threads; `ready` is called when the file system is mounted."""

    use_ns = True

    def __init__(self, datasets: StoreDatasets, ready: Callable[[], None]) -> None:
        self._datasets = datasets
        self._tree = Tree(datasets)
        self._ready = ready
        self._handles: dict[int, _Topology | _Trajectory] = {}
        self._numbers = itertools.count(1)

    def init_with_config(self, connection: Any, config: Any) -> None:
        """Set the kernel's options for the mount."""
        if connection is not None:
            connection.max_background = MAX_BACKGROUND_READS
            connection.congestion_threshold = MAX_BACKGROUND_READS
        if config is not None:
            config.auto_cache = 1  # keep pages in memory until a file's size or time changes
            config.entry_timeout = config.attr_timeout = 1.0
        self._ready()

    def getattr(self, path: str, handle: int | None = None) -> dict[str, int]:
        """Return the attributes of a file or folder."""
        item = self._find(path)
        changed = dict.fromkeys(("st_atime", "st_mtime", "st_ctime"), item.changed)
        owner = {"st_uid": os.geteuid(), "st_gid": os.getegid()}
        if isinstance(item, Folder):
            return {"st_mode": stat.S_IFDIR | 0o555, "st_nlink": 2, **changed, **owner}
        sizes = {"st_size": item.size, "st_blocks": -(-item.size // 512), "st_blksize": BLOCK_SIZE}
        return {"st_mode": stat.S_IFREG | 0o444, "st_nlink": 1, **sizes, **changed, **owner}

    def readdir(self, path: str, handle: int) -> list[str]:
        """Return the entries of a folder."""
        item = self._find(path)
        if not isinstance(item, Folder):
            raise OSError(errno.ENOTDIR, path)
        return [".", "..", *item.names]

    def statfs(self, path: str) -> dict[str, int]:
        """Return the properties of a full file system."""
        return {"f_bsize": BLOCK_SIZE, "f_frsize": 4096, "f_namemax": 255}

    def open(self, path: str, flags: int) -> int:
        """Open a file; nothing is read before the first read."""
        file = self._find(path)
        if not isinstance(file, File):
            raise OSError(errno.EISDIR, path)
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise OSError(errno.EROFS, path)
        name, facts, number = file.name, file.facts, next(self._numbers)
        if name.startswith("topology"):
            suffix = name.removeprefix("topology")
            self._handles[number] = _Topology(lambda: self._datasets.topology(facts, suffix))
        else:
            now = functools.partial(self._tree.find_facts, facts.name)
            self._handles[number] = _Trajectory(name, facts, now, self._datasets)
        return number

    def read(self, path: str, size: int, offset: int, handle: int) -> Any:
        """Return bytes of a file, as one piece of memory."""
        try:
            pieces = self._handles[handle].read(offset, size)
        except FAILURES as error:
            warn(f"{path} cannot be read: {error}")
            raise OSError(errno.EIO, path) from None
        if not any(map(len, pieces)):
            return b""
        content = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return (ctypes.c_char * len(content)).from_buffer(content)

    def release(self, path: str, handle: int) -> int:
        """Close a file."""
        self._handles.pop(handle).close()
        return 0

    def close(self) -> None:
        """Close all files, after the last callback."""
        while self._handles:
            self._handles.popitem()[1].close()

    def _find(self, path: str) -> Folder | File:
        item = self._tree.find(tuple(part for part in path.split("/") if part))
        if item is None:
            raise OSError(errno.ENOENT, path)
        return item
