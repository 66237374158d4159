"""Files that appear whole or not at all: `write_bytes()`."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import BinaryIO

from himach.errors import HimachError


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file whole or not at all: a temporary file beside it takes its name.

    Raises
    ------
    HimachError
        If it cannot be written.
    """
    path = Path(path)
    temporary = _temporary(path.parent)
    try:
        with _create(temporary) as file:
            file.write(content)
        temporary.replace(path)
    except OSError as error:
        raise HimachError(f"{path} cannot be written ({error.strerror})") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _temporary(directory: Path) -> Path:
    return directory / f".himach-{os.getpid()}-{secrets.token_hex(4)}.tmp"


def _create(path: Path) -> BinaryIO:
    """Open a new file with the user's usual permissions; one of the tempfile module would be the owner's only."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb")
