"""`ServedStore`: another user's store, which is reached through its server alone, and in which nothing is written."""

from __future__ import annotations

from pathlib import Path

from himach.io.server.client import Client, find
from himach.io.store.bodhi import ServerUnreachableError
from himach.io.store.cached_frames import CachedFrames

__all__ = ["ServedStore"]


class ServedStore:
    """The store of a user whose server serves this one (``--allow-user``).

    Parameters
    ----------
    path
        The store's directory.
    owner
        Whose it is.

    Raises
    ------
    ServerUnreachableError
        It has no server.
    ServerRefusedError
        The server refuses this user.
    """

    def __init__(self, path: Path, owner: int) -> None:
        self.path = path
        self._owner = owner
        with self._connect() as client:
            client.counters()

    def _connect(self) -> Client:
        client = find(self.path, owner=self._owner)
        if client is None:
            raise ServerUnreachableError(f"{self.path} belongs to user {self._owner}, and no server serves it")
        return client

    def generations(self, name: str) -> list[bytes]:
        """Return the generations of a dataset that the store holds."""
        with self._connect() as client:
            return client.generations(name)

    def dataset(
        self, name: str, generation: bytes = b"", *, create: bool = False, segment_bytes: int = 0
    ) -> CachedFrames:
        """Open one generation of a dataset, over a connection of its own; it is never created.

        Raises
        ------
        StoreNotFoundError
            It is not there.
        """
        return self._connect().open(name, generation)
