"""The key that a server shares with its clients on other machines (docs/server.md)."""

import errno
import os
import secrets
from pathlib import Path

from himach.errors import UsageError
from himach.files import config_directory, whole_file
from himach.io.store import bodhi


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
    if not os.path.lexists(path):
        cure = "copy it from the server's machine, readable for you alone, or name another by --key (key= in Python)"
        raise UsageError(f"key file {path}: {os.strerror(errno.ENOENT)}; {cure}")
    try:
        return bodhi.read_key(os.fsencode(path))
    except ValueError as error:  # it is too short or too long
        raise UsageError(str(error)) from None
