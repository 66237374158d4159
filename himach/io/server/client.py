"""Reading through the server of a node's frame store: `find` returns a `Client` of it if there is one."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from himach.io.store import bodhi
from himach.io.store.bodhi import ServerRefusedError, ServerUnreachableError
from himach.io.store.cached_frames import CachedFrames
from himach.io.store.place import store_place
from himach.io.store.store import StoreError

__all__ = ["DIRECTORY", "Client", "find", "socket_path"]

DIRECTORY = "server"
LONGEST_ATTACHMENT = 4 << 30  # bytes: the times of 500 million frames


def socket_path(store: str | os.PathLike[str] | None = None) -> Path:
    """Return where the server of a store listens for clients of this machine."""
    return store_place(store) / DIRECTORY / "socket"


class Client(CachedFrames):
    """A connection to the server of a store; made by `find` and `himach.io.server.address`. One thread at a time.

    Frames are read as those of a `Dataset`. On this machine bytes do not pass through the server, which says where
    frames lie and keeps their segments from eviction while they are read. From another one (with its `key`) they come
    over the connection, as they lie there, and are checked here.
    """

    def __init__(
        self, address: Path | str, owner: int, timeout: float, *, key: bytes = b"", connected: int = -1
    ) -> None:
        self._link = bodhi.LinkHandle(os.fsencode(address), owner, int(timeout * 1000), key, connected)
        super().__init__(self._link)
        self.name, self.generation = "", b""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def open(self, name: str, generation: bytes = b"") -> Client:
        """Open a dataset, once, before anything is asked of it; returns this client.

        Raises
        ------
        StoreNotFoundError
            It is not in the store.
        """
        self._link.open(name, generation)
        self.name, self.generation = name, generation
        return self

    @property
    def identity(self) -> str:
        """Identity of the store (32 hex digits)."""
        return self._link.identity.hex()

    def have(self, numbers: npt.ArrayLike) -> npt.NDArray[np.uint8]:
        """Return per frame 0 (not there), 1 (native) or 2 (alien)."""
        return self._link.have(numbers)

    def generations(self, name: str) -> list[bytes]:
        """Return the generations of a dataset that the store holds; none needs to be open."""
        return self._link.generations(name)

    def facts(self) -> dict[str, int]:
        """Return how many frames there were, native and alien, when the dataset was opened."""
        return self._link.facts()

    def attachment(self, name: str) -> bytes | None:
        """Return what is attached to the dataset under this name, or None (see `Dataset.attach`)."""
        content = b""
        while (part := self._link.attachment(name, len(content))) is not None:
            if part[0] > LONGEST_ATTACHMENT:  # a server of another user's may say anything
                raise StoreError(f"the server's attachment {name} has {part[0]} bytes, more than himach attaches")
            content += part[1]
            if len(content) >= part[0]:
                return content
            if not part[1]:  # it has become shorter meanwhile
                break
        return None

    def holds(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which of the frames the store holds, bool (n,)."""
        some = [numbers[at : at + bodhi.NUMBERS_AT_ONCE] for at in range(0, len(numbers), bodhi.NUMBERS_AT_ONCE)]
        return np.concatenate([np.zeros(0, dtype=bool), *(self.have(part) > 0 for part in some)])

    def counters(self) -> dict[str, int]:
        """Return what the server has counted."""
        return self._link.counters()

    def survey(self, after: bytes = b"") -> bytes:
        """Return what the server says of its datasets behind that directory; see `himach.io.server.survey`."""
        return self._link.survey(after)

    def peers(self) -> tuple[bytes, bytes]:
        """Return the identity of the server's store, and what it says of its node and its peers."""
        return self._link.peers()

    def stop(self) -> None:
        """Tell the server to end."""
        self._link.stop()


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
        return None
