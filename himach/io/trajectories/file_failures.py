"""Failures of files: `retry()` after transient ones, such as those of file servers; messages about the others.

`reason()` is the text of a foreign exception, `warn_cut()` warns of a file cut off, `quietly()` calls MDAnalysis.
"""

import errno
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar


def reason(error: BaseException) -> str:
    """Return an exception's text on one line, or its class's name without any."""
    text = " ".join(str(error).split())
    return text or type(error).__name__


def warn_cut(path: str, n_frames: int) -> None:
    """Warn that a file ends within a frame and is used up to its last whole frame."""
    warnings.warn(
        f"{path} is cut off within frame {n_frames}; it is used up to its last whole frame, {n_frames - 1}",
        stacklevel=2,
    )


def quietly(call: Any, *args: Any, **keywords: Any) -> Any:
    """Call MDAnalysis without its DeprecationWarnings, which address developers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return call(*args, **keywords)


T = TypeVar("T")

PAUSES = (0.1, 0.5, 2.0)  # seconds before each further try
#: Errors of a disk that hiccups, and of a file server that was restarted, moved or cut off, or renewed a handle.
PASSING = frozenset(
    {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.ESHUTDOWN, errno.EREMOTEIO, errno.EAGAIN}
)


def is_transient(error: BaseException) -> bool:
    """Return whether an exception, or a cause of it, is a transient failure of the file system.

    Decoders in C give no error number, or report the end of the file. A failure that was retried is not transient.
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


def retry(
    call: Callable[[], T], reopen: Callable[[], object] = lambda: None, pauses: Sequence[float] | None = None
) -> T:
    """Return the result of a call; repeat the call, after `reopen`, while it fails for transient reasons."""
    pending = iter(PAUSES if pauses is None else pauses)
    prepare: Callable[[], object] = lambda: None  # noqa: E731 - reopening may fail, too
    while True:
        try:
            prepare()
            return call()
        except Exception as error:
            pause = next(pending, None)
            if pause is None or not is_transient(error):
                error.__dict__["_himach_tried"] = True
                raise
        time.sleep(pause)
        prepare = reopen
