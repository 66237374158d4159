"""Requests for a file's state and for ranges of its bytes: `Transport`, which each kind of server has one of."""

from __future__ import annotations

import email.utils
import errno
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from himach.io.remote.errors import RemoteChangedError, RemoteError
from himach.io.remote.url import masked

__all__ = ["RemoteState", "Sink", "Transport", "changed", "checked_range", "is_passing", "refused", "seconds_after"]

Sink = Callable[[bytes], None]

CONNECT_SECONDS = 20.0  # for a server to answer at all
SILENT_SECONDS = 30.0  # between two pieces of an answer
MOST_AFTER = 60.0  # seconds that a server's wish to be left alone is followed
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)")
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})


class RemoteState(NamedTuple):
    """What tells the content of a file elsewhere from another one.

    Attributes
    ----------
    size
        Bytes in it.
    tag
        Its ETag, or another word of the server's for its content; empty where there is none.
    modified
        When it was changed last, as the server says it; empty where it does not.
    ranged
        Whether the server gives ranges of it; else all of it comes at once.
    """

    size: int
    tag: str
    modified: str
    ranged: bool = True

    def __str__(self) -> str:
        return f"{self.size} bytes, {self.tag or 'no ETag'}, {self.modified or 'no date'}"


class Transport(ABC):
    """Asks for one file elsewhere.

    Parameters
    ----------
    name
        Of the file.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def state(self) -> RemoteState:
        """Ask for the file's state.

        Raises
        ------
        PassingError
            The request failed, and another one may not.
        RemoteError
            There is no such file, or it may not be read.
        """

    @abstractmethod
    def read(self, begin: int, end: int, state: RemoteState, sink: Sink) -> None:
        """Ask for some bytes, and hand them on as they come; raises as `state` does, and if the file has changed."""


def changed(name: str, before: RemoteState | None = None, now: RemoteState | None = None) -> RemoteChangedError:
    """Return the error of a file that is another one."""
    how = "" if before is None else f" (it was: {before}; it is: {now})"
    return RemoteChangedError(
        name, f"it has changed since it was opened{how}; run again when nothing writes to it", errno.ESTALE
    )


def refused(name: str, why: str) -> RemoteError:
    """Return the error of a file that may not be read."""
    return RemoteError(
        name, f"it may not be read: {masked(why)}; give a user and password, or a key, that may read it", errno.EACCES
    )


def checked_range(name: str, said: str | None, begin: int, end: int) -> int:
    """Return the size of the file, of an answer with the range that was asked for; what of it there is, at most."""
    found = _RANGE.fullmatch(said or "")
    if found is None or found[1] is None:
        raise RemoteError(name, "the server does not tell which bytes it sends; download the file")
    first, last, size = map(int, found.groups())
    if (first, last + 1) != (begin, min(end, size)):
        raise RemoteError(name, f"bytes {begin} to {end} were asked for, and the server sends {first} to {last + 1}")
    return size


def is_passing(status: int) -> bool:
    """Tell whether a server that answers so may answer otherwise the next time."""
    return status in _PASSING


def seconds_after(text: str) -> float:
    """Return the seconds of a Retry-After."""
    if text.isdigit():
        return min(MOST_AFTER, float(text))
    try:
        then = email.utils.parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return 0.0
    import datetime

    return min(MOST_AFTER, max(0.0, (then - datetime.datetime.now(datetime.UTC)).total_seconds()))
