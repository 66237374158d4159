"""Trying again what a file system failed to do: `retry()`, for failures that may pass, as those of file servers do."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PAUSES = (0.1, 0.5, 2.0)  # seconds before each further try
#: A disk that hiccups; a file server that was restarted, moved or cut off, or gave the file a new handle.
PASSING = frozenset(
    {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.ESHUTDOWN, errno.EREMOTEIO, errno.EAGAIN}
)


def is_transient(error: BaseException) -> bool:
    """Tell whether an exception, or one that led to it, is a failure of the file system that may pass.

    Decoders in C tell no error number, or take the error for the end of the file. What was tried again has not passed.
    """
    passing = False
    cause: BaseException | None = error
    while cause is not None:
        if getattr(cause, "_himach_tried", False):
            return False
        passing = passing or isinstance(cause, StopIteration)
        passing = passing or (isinstance(cause, OSError) and (cause.errno is None or cause.errno in PASSING))
        cause = cause.__cause__ or cause.__context__
    return passing


def retry(call: Callable[[], T], error: Exception, reopen: Callable[[], object] = lambda: None) -> T:
    """Try a few times more what failed with `error`, if that may pass; raise what it failed with last."""
    for pause in PAUSES:
        if not is_transient(error):
            break
        time.sleep(pause)
        try:
            reopen()
            return call()
        except Exception as caught:
            error = caught
    error.__dict__["_himach_tried"] = True
    raise error
