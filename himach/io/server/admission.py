"""Who may push and read from another machine: challenge and response over a key that both sides have.

`read_key` and `make_key` handle the key file, `AdmissionListener` accepts TCP connections in a thread, lets each prove
that it has the key, proves the same to it, and hands its descriptor on. Those who say nothing have to make way for
others. The bytes are told of in docs/server.md; the client's side is native/net/link.c.
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
MOST_AT_THE_DOOR = 128
KEY_BYTES = range(16, 1024)


def default_key_file() -> Path:
    """Return where the key lies unless the caller says otherwise: ``$XDG_CONFIG_HOME/himach/key``."""
    config = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "himach" / "key"


def make_key(path: Path) -> bool:
    """Make a key file of mode 0600 with a random key, which appears whole; False if there is a file already."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.path.lexists(path):
        return False
    try:
        with whole_file(path, mode=0o600, sync=True, replace=False) as file:
            file.write(f"{secrets.token_hex(32)}\n".encode())
    except FileExistsError:  # of several that begin at once, one wins, and all read the same key
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
    """Return what only a side with the key can say to these two random numbers."""
    return hmac.digest(key, side + challenge + counter, "sha256")


@dataclass(eq=False)
class _Visitor:
    """A connection at the door, which has not proved yet that it has the key."""

    connection: socket.socket
    address: str
    deadline: float
    challenge: bytes = field(default_factory=lambda: secrets.token_bytes(NONCE_BYTES))
    answer: bytes = b""


class AdmissionListener:
    """Accepts connections at a TCP address and hands on those that prove to have the key.

    Where many are at the door at once, the oldest of the address that has most there goes.
    """

    def __init__(self, listener: socket.socket, key: bytes, admit: Callable[[int, bytes], None]) -> None:
        self._listener = listener
        self._key = key
        self._admit = admit
        self._visitors: dict[_Visitor, None] = {}  # the oldest first
        self._selector = selectors.DefaultSelector()
        self._ending, self._end = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="himach-admission", daemon=True)

    def start(self) -> None:
        """Begin to accept."""
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._ending, selectors.EVENT_READ)
        self._thread.start()

    def close(self) -> None:
        """Accept no more; who is at the door is sent away."""
        self._end.close()
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        while True:
            oldest = next(iter(self._visitors), None)
            wait = None if oldest is None else max(0.0, oldest.deadline - time.monotonic())
            for key, _ in self._selector.select(wait):
                if key.fileobj is self._ending:
                    self._leave()
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif key.data in self._visitors:  # else it had to make way just now
                    self._hear(key.data)
            now = time.monotonic()
            for visitor in [one for one in self._visitors if one.deadline <= now]:
                self._dismiss(visitor)

    def _leave(self) -> None:
        for visitor in list(self._visitors):
            self._dismiss(visitor)
        self._selector.close()
        self._ending.close()

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            time.sleep(0.1)  # out of descriptors, maybe
            return
        while len(self._visitors) >= MOST_AT_THE_DOOR:
            self._make_way()
        visitor = _Visitor(connection, str(address[0]), time.monotonic() + SECONDS_TO_PROVE)
        self._visitors[visitor] = None
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(connection, selectors.EVENT_READ, visitor)
            connection.sendall(GREETING + visitor.challenge)  # so few bytes go at once
        except OSError:
            self._dismiss(visitor)

    def _make_way(self) -> None:
        ((address, _),) = Counter(one.address for one in self._visitors).most_common(1)
        self._dismiss(next(one for one in self._visitors if one.address == address))

    def _dismiss(self, visitor: _Visitor) -> None:
        self._forget(visitor)
        visitor.connection.close()

    def _forget(self, visitor: _Visitor) -> None:
        del self._visitors[visitor]
        with contextlib.suppress(KeyError):
            self._selector.unregister(visitor.connection)

    def _hear(self, visitor: _Visitor) -> None:
        """Take what a visitor says; when that is all, let it in or send it away."""
        size = NONCE_BYTES + PROOF_BYTES
        try:
            more = visitor.connection.recv(size - len(visitor.answer))
        except BlockingIOError:
            return
        except OSError:
            more = b""
        visitor.answer += more
        if more and len(visitor.answer) < size:
            return
        with contextlib.suppress(OSError, ServerRefusedError):  # it has gone, or came while the server ends
            if more and prove(visitor.connection, self._key, visitor.challenge, visitor.answer):
                self._forget(visitor)
                session = proof(self._key, b"session", visitor.challenge, visitor.answer[:NONCE_BYTES])
                self._admit(visitor.connection.detach(), session)
                return
        if visitor in self._visitors:
            self._dismiss(visitor)


def prove(connection: socket.socket, key: bytes, challenge: bytes, answer: bytes) -> bool:
    """Check the other side's proof that it has the key, and prove the same to it; False if it could not."""
    counter, said = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    if not hmac.compare_digest(said, proof(key, b"client", challenge, counter)):
        connection.sendall(REFUSED + bytes(PROOF_BYTES))
        return False
    connection.sendall(ADMITTED + proof(key, b"server", challenge, counter))
    return True
