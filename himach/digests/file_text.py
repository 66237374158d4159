"""What is in a file, as text: `file_text()`."""

from __future__ import annotations

import functools
import os

from himach.files import content_digest

__all__ = ["file_text"]

#: Bytes of a file of which more than its time is read.
LARGE = 1 << 30


def file_text(file: str) -> str:
    """Return the content of a file, of a large one when it was written last."""
    try:
        found = os.stat(file)
    except OSError as error:
        return type(error).__name__
    return _content(file, found.st_size, found.st_mtime_ns)


@functools.lru_cache(64)
def _content(file: str, size: int, written: int) -> str:
    return content_digest(file) if size <= LARGE else f"{size} {written}"
