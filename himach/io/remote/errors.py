"""What can be wrong with a file elsewhere: `RemoteError` and its kinds, each an OSError that names the file."""

from __future__ import annotations

import errno
from typing import Any


class RemoteError(OSError):
    """A file elsewhere cannot be read; it was tried again where that could help."""

    _himach_tried = True  # see himach.io.trajectory.retry

    def __init__(self, name: str, why: str, number: int = errno.EREMOTEIO) -> None:
        super().__init__(number, why, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.filename, self.strerror, self.errno)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class RemoteChangedError(RemoteError):
    """A file elsewhere is not any more what it was when it was opened."""


class PassingError(Exception):
    """One request failed, and another one may not. `after` is how long the server asks to wait, in seconds."""

    def __init__(self, why: str, after: float = 0.0) -> None:
        super().__init__(why)
        self.after = after
