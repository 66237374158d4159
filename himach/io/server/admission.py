"""Who may push from another machine: challenge and response over a key that both sides have.

`read_key` and `make_key` handle the key file, `AdmissionListener` accepts TCP connections in a thread, lets each prove
that it has the key, proves the same to it, and hands its descriptor on. The bytes are told of in docs/server.md; the
client's side is native/net/link.c.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

from himach.errors import UsageError
from himach.io.store.bodhi import ServerRefusedError

GREETING = b"BdhAuth1"
NONCE_BYTES = 32
PROOF_BYTES = 32
ADMITTED, REFUSED = (0).to_bytes(4, "little"), (1).to_bytes(4, "little")
SECONDS_TO_PROVE = 5.0
MOST_AT_THE_DOOR = 32
KEY_BYTES = range(16, 1024)


def default_key_file() -> Path:
    """Return where the key lies unless the caller says otherwise: ``$XDG_CONFIG_HOME/himach/key``."""
    config = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "himach" / "key"


def make_key(path: Path) -> bool:
    """Make a key file of mode 0600 with a random key; False if there is a file already."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(fd, "w") as file:
        file.write(secrets.token_hex(32) + "\n")
    return True


def read_key(path: Path) -> bytes:
    """Return the key of a key file.

    Raises
    ------
    UsageError
        It cannot be read, or holds too few or too many bytes.
    ServerRefusedError
        It is not this user's, or others may read or write it.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"key file {path}: {error.strerror}") from None
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


class AdmissionListener:
    """Accepts connections at a TCP address and hands on those that prove to have the key.

    Parameters
    ----------
    listener
        A listening socket; it is closed by `close`.
    key
        The key.
    admit
        Called with the descriptor of each admitted connection, which is then the callee's.
    """

    def __init__(self, listener: socket.socket, key: bytes, admit: Callable[[int], None]) -> None:
        self._listener = listener
        self._key = key
        self._admit = admit
        self._room = threading.Semaphore(MOST_AT_THE_DOOR)
        self._closing = False
        self._thread = threading.Thread(target=self._accept, name="himach-admission", daemon=True)

    def start(self) -> None:
        """Begin to accept."""
        self._thread.start()

    def close(self) -> None:
        """Accept no more."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closing:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if not self._closing:
                    time.sleep(0.1)  # out of descriptors, maybe
                continue
            if not self._room.acquire(blocking=False):
                connection.close()
                continue
            try:
                threading.Thread(target=self._meet, args=(connection,), daemon=True).start()
            except RuntimeError:
                connection.close()
                self._room.release()

    def _meet(self, connection: socket.socket) -> None:
        try:
            with connection:
                if prove(connection, self._key):
                    self._admit(connection.detach())
        except (OSError, ServerRefusedError):
            pass  # it went away, was too slow, or came while the server ended
        finally:
            self._room.release()


def prove(connection: socket.socket, key: bytes) -> bool:
    """Let the other side prove that it has the key, and prove the same; False if it could not."""
    deadline = time.monotonic() + SECONDS_TO_PROVE
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(SECONDS_TO_PROVE)
    challenge = secrets.token_bytes(NONCE_BYTES)
    connection.sendall(GREETING + challenge)
    answer = receive(connection, NONCE_BYTES + PROOF_BYTES, deadline)
    counter, said = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    if not hmac.compare_digest(said, proof(key, b"client", challenge, counter)):
        connection.sendall(REFUSED + bytes(PROOF_BYTES))
        return False
    connection.sendall(ADMITTED + proof(key, b"server", challenge, counter))
    return True


def receive(connection: socket.socket, size: int, deadline: float) -> bytes:
    """Receive exactly `size` bytes before the deadline, however slowly they come; TimeoutError if not."""
    data = b""
    while len(data) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionResetError
        data += more
    return data
