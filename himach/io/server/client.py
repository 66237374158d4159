"""`Client`: reads frames through the server of a node's store; `find` connects to it if there is one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from himach.errors import ServerUnreachableError
from himach.io.store import bodhi
from himach.io.store.bodhi import ServerRefusedError
from himach.io.store.cached_frames import LibraryFrames
from himach.io.store.quota import store_place
from himach.io.store.store import StoreError

DIRECTORY = "server"
WHOLE_FILE = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
MAX_ATTACHMENT_BYTES = 4 << 30  # the times of 500 million frames
MAX_CHANGES = 8  # of an attachment while it is fetched
MAX_GAP = 4096  # unneeded frames between two needed ones in one query: a kilobyte


def socket_path(store: str | os.PathLike[str] | None = None) -> Path:
    """Return the path of the socket for clients on this machine."""
    return store_place(store) / DIRECTORY / "socket"


class Client(bodhi.LinkHandle, LibraryFrames):
    """A connection to a store's server, made by `find` and `himach.io.server.survey`; for one thread at a time.

    Frames are read as from a `Dataset`. On this machine they do not pass through the server: it returns their locations
    and protects their segments from eviction while they are read. From another machine (with its `key`) the stored
    bytes come over the connection and are checked here.
    """

    def __init__(
        self, address: Path | str, owner: int, timeout: float, *, key: bytes = b"", connected: int = -1
    ) -> None:
        super().__init__(os.fsencode(address), owner, int(timeout * 1000), key, connected)
        self._opened = "", b""

    @property
    def name(self) -> str:
        """Name of the open dataset."""
        return self._opened[0]

    @property
    def generation(self) -> bytes:
        """Fingerprint of the dataset's content."""
        return self._opened[1]

    def open(self, name: str, generation: bytes = b"") -> Client:
        """Open a dataset once, before any query; return this client."""
        self.open_dataset(name, generation)
        self._opened = name, generation
        return self

    def attachment(self, name: str) -> bytes | None:
        """Return the attachment of this name, or None; see `Dataset.attach`."""
        content = bytearray()  # grows in place
        version = b""
        changes = 0
        while (part := self.attachment_part(name, len(content))) is not None:
            if part[0] > MAX_ATTACHMENT_BYTES:  # another user's server is not trusted
                raise StoreError(f"the server's attachment {name} has {part[0]} bytes, more than himach attaches")
            if content and part[1] != version:  # replaced in the meantime
                content.clear()
                changes += 1
                if changes > MAX_CHANGES:
                    raise StoreError(f"the server's attachment {name} changes again and again while it is fetched")
                continue
            version = part[1]
            content += part[2]
            if len(content) >= part[0]:
                return bytes(content)
            if not part[2]:  # became shorter in the meantime
                break
        return None

    def holds(self, numbers: npt.NDArray[np.int64], native: bool = False) -> npt.NDArray[np.bool_]:
        """Return which of the frames the store holds, or holds natively, bool (n,)."""
        is_held = np.zeros(len(numbers), dtype=bool)
        order = np.argsort(numbers, kind="stable")
        gaps = np.diff(numbers[order])
        step = int(np.gcd.reduce(gaps)) or 1
        for piece in np.split(order, np.flatnonzero(gaps // step > MAX_GAP) + 1):
            left = piece
            while len(left):
                first = int(numbers[left[0]])
                stop = min(first + step * bodhi.MARKED_AT_ONCE, bodhi.MAX_NUMBER + 1)
                block, left = np.split(left, [np.searchsorted(numbers[left], stop)])
                frames = range(first, int(numbers[block[-1]]) + 1, step)
                words = np.zeros((2, -(-len(frames) // 64)), dtype=np.uint64)
                self.mark(frames, *words)
                bits = np.unpackbits((words[0] if native else words[0] | words[1]).view(np.uint8), bitorder="little")
                is_held[block] = bits[(numbers[block] - first) // step]
        return is_held


def is_locked(fd: int) -> bool:
    """Tell whether another process has locked an open file; the query takes no lock."""
    return bool(struct.unpack_from("h", fcntl.fcntl(fd, fcntl.F_OFD_GETLK, WHOLE_FILE))[0] != fcntl.F_UNLCK)


def set_modes(directory: Path, shared: bool) -> None:
    """Let other users traverse to the socket, and see nothing else, only if some of them are served."""
    for path in (directory, directory.parent):
        mode = stat.S_IMODE(path.stat().st_mode)
        new_mode = mode | 0o011 if shared else mode & 0o700
        if mode != new_mode:
            path.chmod(new_mode)


def _close_abandoned(directory: Path) -> None:
    """Revoke the access of other users that a killed server left."""
    with contextlib.suppress(OSError):
        fd = os.open(directory / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not is_locked(fd):
                set_modes(directory, False)
        finally:
            os.close(fd)


def find(
    store: str | os.PathLike[str] | None = None, *, owner: int | None = None, timeout: float = 30.0
) -> Client | None:
    """Connect to the server of a store, if it has one."""
    place = store_place(store)
    owner_id = os.geteuid() if owner is None else owner
    try:
        store_status = place.stat()
        directory_status = (place / DIRECTORY).lstat()
        (place / DIRECTORY / "socket").lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EACCES:
            raise ServerRefusedError(f"{place}: this user may not enter it") from None
        raise StoreError(f"{place}: {error.strerror}") from None
    if store_status.st_uid != owner_id or directory_status.st_uid != owner_id or store_status.st_mode & stat.S_IWOTH:
        raise ServerRefusedError(f"{place} is not user {owner_id}'s alone to write; its server is not asked")
    try:
        return Client(socket_path(place), owner_id, timeout)
    except ServerUnreachableError:
        if store_status.st_uid == os.geteuid() and (store_status.st_mode | directory_status.st_mode) & 0o077:
            _close_abandoned(place / DIRECTORY)
        return None
