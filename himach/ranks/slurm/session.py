"""Messages between a job and the process that submitted it: `Session`, and `join()`, by which the job opens one.

Each side proves that it has the key (`himach.io.server.admission`). Head (kind u8, bytes u64) and body of a message are
each followed by the HMAC-SHA256, under the session's key, of the sender, their running number and themselves. A length
is trusted, and a body read, only if the other side has sent it.
"""

from __future__ import annotations

import contextlib
import enum
import hmac
import secrets
import socket
import struct
import threading

from himach.errors import RankError
from himach.io.server.admission import ADMITTED, GREETING, NONCE_BYTES, PROOF_BYTES, proof

HEAD = struct.Struct("<BQ")
AT_ONCE = 1 << 20  # most bytes of one recv()
#: Seconds of silence before a keep-alive probe, seconds between probes, number of probes that may fail, milliseconds
#: that sent data may stay unacknowledged.
KEEP_ALIVE = {socket.TCP_KEEPIDLE: 20, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 4, socket.TCP_USER_TIMEOUT: 60_000}


class MessageKind(enum.IntEnum):
    """Kind of a message."""

    #: To the job: work; keep pairs (SIGUSR1); stop the current work; end the job.
    WORK, COMMIT, STOP, END = range(1, 5)
    #: From the job: output on stdout and stderr; the work's result, its error, or that it was stopped.
    OUT, ERR, RESULT, ERROR, STOPPED = range(5, 10)


class Session:
    """An authenticated connection. Any thread may send; one receives."""

    def __init__(self, connection: socket.socket, key: bytes, joined: bool) -> None:
        self._connection, self._key = connection, key
        self._own, self._other = (b"job", b"submitter") if joined else (b"submitter", b"job")
        self._sent = self._received = 0
        self._sending = threading.Lock()
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEP_ALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def send(self, kind: MessageKind, body: bytes = b"") -> None:
        """Send a message."""
        head = HEAD.pack(kind, len(body))
        with self._sending:
            self._connection.sendall(head + self._tag(self._own, self._sent, head))
            self._connection.sendall(body)
            self._connection.sendall(self._tag(self._own, self._sent + 1, body))
            self._sent += 2

    def receive(self) -> tuple[MessageKind, bytes] | None:
        """Return the next message; None if the other side has gone or a message was altered."""
        head = self._part(HEAD.size)
        if head is None:
            return None
        kind, size = HEAD.unpack(head)
        body = self._part(size)
        return None if body is None or kind not in set(MessageKind) else (MessageKind(kind), body)

    def close(self) -> None:
        """Close the connection, so that the other side notices."""
        with contextlib.suppress(OSError):  # the other side may have gone before
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def detach(self) -> None:
        """Close this process's end, in a child forked from the process that uses it."""
        self._connection.close()

    def _part(self, size: int) -> bytes | None:
        data, tag = exactly(self._connection, size), exactly(self._connection, PROOF_BYTES)
        if data is None or tag is None:
            return None
        if not hmac.compare_digest(tag, self._tag(self._other, self._received, data)):
            self.close()
            return None
        self._received += 1
        return data

    def _tag(self, side: bytes, number: int, data: bytes) -> bytes:
        mac = hmac.new(self._key, side + number.to_bytes(8, "little"), "sha256")
        mac.update(data)
        return mac.digest()


def join(host: str, port: int, key: bytes, seconds: float) -> Session:
    """Connect to the process that submitted this job."""
    connection = socket.create_connection((host, port), timeout=seconds)
    greeting = exactly(connection, len(GREETING) + NONCE_BYTES) or b""
    if greeting[: len(GREETING)] == GREETING:
        challenge, counter = greeting[len(GREETING) :], secrets.token_bytes(NONCE_BYTES)
        connection.sendall(counter + proof(key, b"client", challenge, counter))
        reply = exactly(connection, len(ADMITTED) + PROOF_BYTES) or b""
        if hmac.compare_digest(reply, ADMITTED + proof(key, b"server", challenge, counter)):
            return Session(connection, proof(key, b"session", challenge, counter), joined=True)
    connection.close()
    raise RankError(f"what listens at {host}:{port} is not the process that submitted this job")


def exactly(connection: socket.socket, size: int) -> bytes | None:
    """Return `size` bytes; None if fewer come."""
    data = bytearray()
    while len(data) < size:
        try:
            more = connection.recv(min(AT_ONCE, size - len(data)))
        except OSError:
            return None
        if not more:
            return None
        data += more
    return bytes(data)
