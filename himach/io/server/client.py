"""Reading through the server of a node's frame store: `find` returns a `Client` of it if there is one."""

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

from himach.io.store import bodhi
from himach.io.store.bodhi import ServerRefusedError, ServerUnreachableError
from himach.io.store.cached_frames import LibraryFrames
from himach.io.store.place import store_place
from himach.io.store.store import StoreError

__all__ = ["DIRECTORY", "WHOLE_FILE", "Client", "find", "is_locked", "set_modes", "socket_path"]

DIRECTORY = "server"
WHOLE_FILE = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
LONGEST_ATTACHMENT = 4 << 30  # bytes: the times of 500 million frames


def socket_path(store: str | os.PathLike[str] | None = None) -> Path:
    """Return where the server of a store listens for clients of this machine."""
    return store_place(store) / DIRECTORY / "socket"


class Client(bodhi.LinkHandle, LibraryFrames):
    """A connection to the server of a store; made by `find` and `himach.io.server.address`. One thread at a time.

    Frames are read as those of a `Dataset`. On this machine bytes do not pass through the server, which says where
    frames lie and keeps their segments from eviction while they are read. From another one (with its `key`) they come
    over the connection, as they lie there, and are checked here.
    """

    def __init__(
        self, address: Path | str, owner: int, timeout: float, *, key: bytes = b"", connected: int = -1
    ) -> None:
        super().__init__(os.fsencode(address), owner, int(timeout * 1000), key, connected)
        self._opened = "", b""

    @property
    def name(self) -> str:
        """Name of the dataset that is open."""
        return self._opened[0]

    @property
    def generation(self) -> bytes:
        """Fingerprint of its content."""
        return self._opened[1]

    def open(self, name: str, generation: bytes = b"") -> Client:
        """Open a dataset, once, before anything is asked of it; returns this client.

        Raises
        ------
        StoreNotFoundError
            It is not in the store.
        """
        self.open_dataset(name, generation)
        self._opened = name, generation
        return self

    def attachment(self, name: str) -> bytes | None:
        """Return what is attached to the dataset under this name, or None (see `Dataset.attach`)."""
        content = b""
        while (part := self.attachment_part(name, len(content))) is not None:
            if part[0] > LONGEST_ATTACHMENT:  # a server of another user's may say anything
                raise StoreError(f"the server's attachment {name} has {part[0]} bytes, more than himach attaches")
            content += part[1]
            if len(content) >= part[0]:
                return content
            if not part[1]:  # it has become shorter meanwhile
                break
        return None

    def holds(self, numbers: npt.NDArray[np.int64], native: bool = False) -> npt.NDArray[np.bool_]:
        """Return which of the frames the store holds, or holds natively, bool (n,)."""
        some = [numbers[at : at + bodhi.NUMBERS_AT_ONCE] for at in range(0, len(numbers), bodhi.NUMBERS_AT_ONCE)]
        kinds = np.concatenate([np.zeros(0, dtype=np.uint8), *map(self.have, some)])
        return np.asarray(kinds == 1 if native else kinds > 0)


def is_locked(fd: int) -> bool:
    """Tell whether another process has locked an open file; asking takes nothing."""
    return bool(struct.unpack_from("h", fcntl.fcntl(fd, fcntl.F_OFD_GETLK, WHOLE_FILE))[0] != fcntl.F_UNLCK)


def set_modes(directory: Path, shared: bool) -> None:
    """Let other users pass through to the socket, and see nothing else, only if some of them are served."""
    for path in (directory, directory.parent):
        mode = stat.S_IMODE(path.stat().st_mode)
        wanted = mode | 0o011 if shared else mode & 0o700
        if mode != wanted:
            path.chmod(wanted)


def _close_behind(directory: Path) -> None:
    """Close to other users what a server that was killed has left open."""
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
    """Connect to the server of a store, if it has one.

    Parameters
    ----------
    store
        The store's directory; None for that of `store_place`.
    owner
        The user whose server it must be; None for this one. A server run by anybody else is refused.
    timeout
        Seconds for every wait.

    Returns
    -------
    Client or None
        None if no server listens there.

    Raises
    ------
    ServerRefusedError
        The store's directory or what listens there belongs to another user, or the server refuses this one.
    """
    place = store_place(store)
    wanted = os.geteuid() if owner is None else owner
    try:
        found = place.stat()
        inside = (place / DIRECTORY).lstat()
        (place / DIRECTORY / "socket").lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EACCES:
            raise ServerRefusedError(f"{place}: this user may not enter it") from None
        raise StoreError(f"{place}: {error.strerror}") from None
    if found.st_uid != wanted or inside.st_uid != wanted or found.st_mode & stat.S_IWOTH:
        raise ServerRefusedError(f"{place} is not user {wanted}'s alone to write; its server is not asked")
    try:
        return Client(socket_path(place), wanted, timeout)
    except ServerUnreachableError:
        if found.st_uid == os.geteuid() and (found.st_mode | inside.st_mode) & 0o077:
            _close_behind(place / DIRECTORY)
        return None
