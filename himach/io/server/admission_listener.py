"""`AdmissionListener`: accepts TCP connections, authenticates client and server to each other, and hands over."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Callable

from himach.errors import StoreError
from himach.io.server.admission import GREETING, NONCE_BYTES, PROOF_BYTES, proof, prove

SECONDS_TO_PROVE = 5.0
MAX_PENDING = 128


class AdmissionListener:
    """Accepts TCP connections and hands over the descriptors of those that prove that they have the key.

    If too many are pending, the oldest one of the address with most of them is closed.
    """

    def __init__(self, listener: socket.socket, key: bytes, admit: Callable[[int, bytes], None]) -> None:
        self._listener = listener
        self._key = key
        self._admit = admit
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(self._accept())
        self._thread = threading.Thread(target=self._run, name="himach-admission", daemon=True)

    def start(self) -> None:
        """Start accepting connections."""
        self._listener.setblocking(False)
        self._thread.start()

    def close(self) -> None:
        """Stop accepting and close pending connections."""
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()
        self._loop.close()
        self._listener.close()

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)

    async def _accept(self) -> None:
        pending: dict[asyncio.Task[None], str] = {}  # addresses of clients, oldest first
        async with asyncio.TaskGroup() as group:
            while True:
                try:
                    connection, address = await self._loop.sock_accept(self._listener)
                except OSError:
                    await asyncio.sleep(0.1)  # perhaps out of descriptors
                    continue
                if len(pending) >= MAX_PENDING:
                    ((busiest, _),) = Counter(pending.values()).most_common(1)
                    oldest = next(task for task, host in pending.items() if host == busiest)
                    del pending[oldest]
                    oldest.cancel()
                client = group.create_task(self._authenticate(connection))
                pending[client] = str(address[0])
                client.add_done_callback(lambda task: pending.pop(task, None))
                await asyncio.sleep(0)  # so that many who come at once are answered, too

    async def _authenticate(self, connection: socket.socket) -> None:
        """Exchange proofs with a client and admit it; close the connection if it has no key or takes too long."""
        challenge = secrets.token_bytes(NONCE_BYTES)
        answer = b""
        with connection, contextlib.suppress(OSError, StoreError):  # it disconnected, or is not taken
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(SECONDS_TO_PROVE):
                await self._loop.sock_sendall(connection, GREETING + challenge)
                while len(answer) < NONCE_BYTES + PROOF_BYTES:
                    received = await self._loop.sock_recv(connection, NONCE_BYTES + PROOF_BYTES - len(answer))
                    if not received:
                        return
                    answer += received
            if prove(connection, self._key, challenge, answer):
                session = proof(self._key, b"session", challenge, answer[:NONCE_BYTES])
                self._admit(connection.detach(), session)
