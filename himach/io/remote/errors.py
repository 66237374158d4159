"""Errors of remote files: `RemoteError` and its subclass, OSErrors that name the file, and `PassingError`."""

from __future__ import annotations

import errno
from typing import Any


class RemoteError(OSError):
    """A remote file cannot be read, after retries where they could help."""

    _himach_tried = True  # see himach.io.trajectory.retry

    def __init__(self, name: str, why: str, number: int = errno.EREMOTEIO) -> None:
        super().__init__(number, why, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.filename, self.strerror, self.errno)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class RemoteChangedError(RemoteError):
    """A remote file has changed since it was opened."""


class PassingError(Exception):
    """A request failed, and a retry may succeed. `after` is the wait that the server asks for, in seconds."""

    def __init__(self, why: str, after: float = 0.0) -> None:
        super().__init__(why)
        self.after = after
