"""Files that are written atomically, `whole_file()`, and their digests."""

import contextlib
import hashlib
import os
import secrets
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from himach.errors import HimachError, UsageError


@contextlib.contextmanager
def whole_file(
    path: str | os.PathLike[str],
    *,
    mode: int = 0o666,
    sync: bool = False,
    replace: bool = True,
    prefix: str = ".himach-",
) -> Iterator[BinaryIO]:
    """Open a file that gets its name once it is complete; on failure, nothing remains."""
    path = Path(path)
    temporary = path.with_name(f"{prefix}{os.getpid():x}-{secrets.token_hex(4)}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with open(descriptor, "wb") as file:
            yield file
            if sync:
                file.flush()
                os.fsync(descriptor)
        (os.replace if replace else os.link)(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_bytes(path: str | os.PathLike[str], content: bytes | Iterable[bytes]) -> None:
    """Write a file atomically; raise HimachError if that fails. The content may come in pieces."""
    try:
        with whole_file(path) as file:
            file.writelines([content] if isinstance(content, bytes) else content)
    except OSError as error:
        raise HimachError(f"{path} cannot be written ({error.strerror})") from None


def write_through(several_nodes: bool) -> int:
    """Return open() flags for a file that ranks write together: O_DSYNC if they are on several nodes.

    Otherwise a client of a network file system writes back whole pages and overwrites concurrent changes of others.
    """
    return os.O_DSYNC if several_nodes else 0


def config_directory() -> Path:
    """Return the directory of a user's key and defaults: ``$XDG_CONFIG_HOME/himach`` or ``~/.config/himach``."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "himach"


def read_toml(path: str | os.PathLike[str], label: str) -> dict[str, Any]:
    """Return the content of a TOML file; raise UsageError, with its label, if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise UsageError(f"{label}: the file cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{label}: the file is not TOML: {error}") from None


def content_digest(file: str) -> str:
    """Return the SHA-256 (hex) of a file, or the type of the error if it cannot be read."""
    try:
        with open(file, "rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        return type(error).__name__
