"""Authentication of clients on other machines: challenge and response with a shared key.

`read_key` and `make_key` handle the key file. `AdmissionListener` accepts TCP connections in a thread, authenticates
client and server to each other, and hands over the descriptor. Silent connections are closed to make room for others.
docs/server.md describes the protocol; the client's side is native/net/link.c.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import selectors
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from himach.errors import UsageError
from himach.files import whole_file
from himach.io.store.bodhi import ServerRefusedError, find_libcrypto

GREETING = b"BdhAuth2"
NONCE_BYTES = 32
PROOF_BYTES = 32
ADMITTED, REFUSED = (0).to_bytes(4, "little"), (1).to_bytes(4, "little")
SECONDS_TO_PROVE = 5.0
MAX_PENDING = 128
KEY_BYTES = range(16, 1024)


def default_key_file() -> Path:
    """Return the default path of the key file: ``$XDG_CONFIG_HOME/himach/key``."""
    config = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "himach" / "key"


def make_key(path: Path) -> bool:
    """Create a key file of mode 0600 with a random key, atomically; return False if the file exists."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.path.lexists(path):
        return False
    try:
        with whole_file(path, mode=0o600, sync=True, replace=False) as file:
            file.write(f"{secrets.token_hex(32)}\n".encode())
    except FileExistsError:  # of several concurrent calls one wins, and all read the same key
        return False
    return True


def read_key(path: Path) -> bytes:
    """Return the key of a key file."""
    find_libcrypto()
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        cure = "copy it from the server's machine, readable for you alone, or name another by --key (key= in Python)"
        raise UsageError(f"key file {path}: {error.strerror}; {cure}") from None
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise ServerRefusedError(
                f"the key file {path} is of user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):o}; it must "
                f"be a file of user {os.geteuid()} with mode 600"
            )
        key = file.read(KEY_BYTES.stop).rstrip(b" \t\r\n")
    if len(key) not in KEY_BYTES:
        raise UsageError(
            f"the key file {path} has {len(key)} bytes; a key has {KEY_BYTES.start} to {KEY_BYTES.stop - 1}"
        )
    return key


def proof(key: bytes, side: bytes, challenge: bytes, counter: bytes) -> bytes:
    """Return the proof that a side has the key, for these two random numbers."""
    return hmac.digest(key, side + challenge + counter, "sha256")


@dataclass(eq=False)
class _PendingClient:
    """A connection that has not yet proved that it has the key."""

    connection: socket.socket
    address: str
    deadline: float
    challenge: bytes = field(default_factory=lambda: secrets.token_bytes(NONCE_BYTES))
    answer: bytes = b""


class AdmissionListener:
    """Accepts TCP connections and hands over those that prove that they have the key.

    If too many are pending, the oldest one of the address with most of them is closed.
    """

    def __init__(self, listener: socket.socket, key: bytes, admit: Callable[[int, bytes], None]) -> None:
        self._listener = listener
        self._key = key
        self._admit = admit
        self._pending: dict[_PendingClient, None] = {}  # oldest first
        self._selector = selectors.DefaultSelector()
        self._stop_reader, self._stop_writer = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="himach-admission", daemon=True)

    def start(self) -> None:
        """Start accepting connections."""
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._stop_reader, selectors.EVENT_READ)
        self._thread.start()

    def close(self) -> None:
        """Stop accepting and close pending connections."""
        self._stop_writer.shutdown(socket.SHUT_WR)  # a child forked meanwhile may hold it open
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        while True:
            oldest = next(iter(self._pending), None)
            wait = None if oldest is None else max(0.0, oldest.deadline - time.monotonic())
            for key, _ in self._selector.select(wait):
                if key.fileobj is self._stop_reader:
                    self._close_all()
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif key.data in self._pending:  # else it was just closed to make room
                    self._receive(key.data)
            now = time.monotonic()
            for client in [pending for pending in self._pending if pending.deadline <= now]:
                self._drop(client)

    def _close_all(self) -> None:
        for client in list(self._pending):
            self._drop(client)
        self._selector.close()
        self._stop_reader.close()

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            time.sleep(0.1)  # perhaps out of descriptors
            return
        while len(self._pending) >= MAX_PENDING:
            self._drop_oldest()
        client = _PendingClient(connection, str(address[0]), time.monotonic() + SECONDS_TO_PROVE)
        self._pending[client] = None
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(connection, selectors.EVENT_READ, client)
            connection.sendall(GREETING + client.challenge)  # so few bytes do not block
        except OSError:
            self._drop(client)

    def _drop_oldest(self) -> None:
        ((address, _),) = Counter(pending.address for pending in self._pending).most_common(1)
        self._drop(next(pending for pending in self._pending if pending.address == address))

    def _drop(self, client: _PendingClient) -> None:
        self._remove(client)
        client.connection.close()

    def _remove(self, client: _PendingClient) -> None:
        del self._pending[client]
        with contextlib.suppress(KeyError):
            self._selector.unregister(client.connection)

    def _receive(self, client: _PendingClient) -> None:
        """Receive from a pending client; when its answer is complete, admit it or close its connection."""
        size = NONCE_BYTES + PROOF_BYTES
        try:
            received = client.connection.recv(size - len(client.answer))
        except BlockingIOError:
            return
        except OSError:
            received = b""
        client.answer += received
        if received and len(client.answer) < size:
            return
        with contextlib.suppress(OSError, ServerRefusedError):  # it disconnected, or the server is stopping
            if received and prove(client.connection, self._key, client.challenge, client.answer):
                self._remove(client)
                session = proof(self._key, b"session", client.challenge, client.answer[:NONCE_BYTES])
                self._admit(client.connection.detach(), session)
                return
        if client in self._pending:
            self._drop(client)


def prove(connection: socket.socket, key: bytes, challenge: bytes, answer: bytes) -> bool:
    """Check the client's proof of the key and send the server's; return False if the client's is wrong."""
    counter, client_proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    if not hmac.compare_digest(client_proof, proof(key, b"client", challenge, counter)):
        connection.sendall(REFUSED + bytes(PROOF_BYTES))
        return False
    connection.sendall(ADMITTED + proof(key, b"server", challenge, counter))
    return True
