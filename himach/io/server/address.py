"""Where servers of other machines listen: `Server`, by an address as people write it, and the key for it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qsl, quote

from himach.errors import UsageError
from himach.io.server.admission import default_key_file, read_key
from himach.io.server.client import Client, socket_path

__all__ = ["DEFAULT_PORT", "SCHEME", "Server", "choice_of", "read_peers", "server_of_choice"]

DEFAULT_PORT = 7411
SCHEME = "tcp://"  # of a server that is given in place of a store's directory


@dataclass(frozen=True)
class Server:
    """A server: HOST:PORT, or the path of its socket on this machine; and the key for it and its peers, if any."""

    text: str
    key: bytes = field(default=b"", repr=False)

    @classmethod
    def of(cls, address: str, key_file: str | os.PathLike[str] | None = None) -> Server:
        """Return the server at HOST[:PORT], with the key of a file; None: the default one.

        Raises
        ------
        UsageError
            The address is none, or the key cannot be read.
        ServerRefusedError
            Others may read the key file.
        """
        return cls(with_port(address), read_key(Path(key_file) if key_file is not None else default_key_file()))

    @classmethod
    def here(cls, store: str | os.PathLike[str] | None = None) -> Server:
        """Return the server of a store of this machine."""
        return cls(os.fspath(socket_path(store).absolute()))

    @property
    def is_here(self) -> bool:
        """Whether it is reached by a socket of this machine."""
        return "/" in self.text

    def at(self, address: str) -> Server:
        """Return a peer of it, for which there is the same key; without one, that of the default file."""
        key = self.key or read_key(default_key_file())
        return replace(self, text=with_port(address), key=key)

    def dial(self, timeout: float) -> Client:
        """Connect to it.

        Raises
        ------
        ServerUnreachableError
            Nobody answers there within `timeout` seconds.
        ServerRefusedError
            The server refuses the key or this user, or does not have the key itself.
        """
        return Client(self.text, os.geteuid(), timeout, key=b"" if self.is_here else self.key)


def with_port(address: str) -> str:
    """Return HOST:PORT, with the default port where none is given.

    Raises
    ------
    UsageError
        It is no address.
    """
    host, colon, port = address.rpartition(":")
    if not colon or (port.endswith("]") and address.startswith("[")):
        host, port = address, str(DEFAULT_PORT)
    if not host.strip("[]") or not port.isdecimal() or int(port) > 65535 or "/" in host or "\n" in address:
        raise UsageError(f"{address!r} is no address; it should be HOST or HOST:PORT, such as node1:{DEFAULT_PORT}")
    return f"{host}:{port}"


def choice_of(server: str, key_file: str | os.PathLike[str] | None = None) -> str:
    """Return what stands for a server where a store is chosen: ``tcp://HOST:PORT``, with its key's file."""
    key = "" if key_file is None else f"?key={quote(os.fspath(Path(key_file).absolute()))}"
    return f"{SCHEME}{with_port(server)}{key}"


def server_of_choice(choice: str) -> Server | None:
    """Return the server that was chosen in place of a store; None: it is a directory.

    Raises
    ------
    UsageError
        As `Server.of`.
    """
    if not choice.startswith(SCHEME):
        return None
    address, _, query = choice.removeprefix(SCHEME).partition("?")
    return Server.of(address, dict(parse_qsl(query)).get("key"))


def read_peers(path: Path) -> list[str]:
    """Return the addresses of a file of peers: HOST or HOST:PORT, one a line; what follows a # is left out.

    Raises
    ------
    UsageError
        It cannot be read, or a line is no address.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"peers file {path}: {getattr(error, 'strerror', None) or error}") from None
    named: Sequence[str] = [line.partition("#")[0].strip() for line in lines]
    return [with_port(name) for name in named if name]
