"""Authentication of clients on other machines: challenge and response with a shared key (docs/server.md)."""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import stat
from pathlib import Path

from himach.errors import UsageError
from himach.files import config_directory, whole_file
from himach.io.store.bodhi import ServerRefusedError, find_libcrypto

GREETING = b"BdhAuth2"
NONCE_BYTES = 32
PROOF_BYTES = 32
ADMITTED, REFUSED = (0).to_bytes(4, "little"), (1).to_bytes(4, "little")
KEY_BYTES = range(16, 1024)


def default_key_file() -> Path:
    """Return the default path of the key file: ``$XDG_CONFIG_HOME/himach/key``."""
    return config_directory() / "key"


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


def prove(connection: socket.socket, key: bytes, challenge: bytes, answer: bytes) -> bool:
    """Check the client's proof of the key and send the server's; return False if the client's is wrong."""
    counter, client_proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    if not hmac.compare_digest(client_proof, proof(key, b"client", challenge, counter)):
        connection.sendall(REFUSED + bytes(PROOF_BYTES))
        return False
    connection.sendall(ADMITTED + proof(key, b"server", challenge, counter))
    return True
