"""Patience with servers: `patiently()` asks again what may go well the next time, and `PAUSES` says how often."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from himach.io.remote.errors import PassingError, RemoteError

__all__ = ["PAUSES", "gave_up", "patiently"]

T = TypeVar("T")

PAUSES = (0.2, 1.0, 3.0, 8.0, 20.0)  # seconds before each further request


def patiently(call: Callable[[], T], name: str) -> T:
    """Return what a request gives, which is made again where that can help; else raise RemoteError, naming the file."""
    for pause in PAUSES:
        try:
            return call()
        except PassingError as error:
            time.sleep(max(pause, error.after))
    try:
        return call()
    except PassingError as error:
        raise gave_up(name, error) from None


def gave_up(name: str, error: PassingError) -> RemoteError:
    """Return the error of a file that was asked for in vain."""
    return RemoteError(name, f"{error}, {len(PAUSES) + 1} times in turn; try again later: what has come is kept")
