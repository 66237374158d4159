"""Bytes of a file by place: `ByteFile`, of a local one by its descriptor, of one elsewhere as its `Mirror` brings them.

`status_of()` tells a file's state, `is_there()` whether there is one, `local_path()` where others' programs find it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from himach.io.remote.url import absolute, is_url

if TYPE_CHECKING:
    from himach.io.remote.errors import RemoteError
    from himach.io.remote.mirror import Mirror
    from himach.io.remote.transport import RemoteState, Transport

__all__ = [
    "ByteFile",
    "Status",
    "ask_again",
    "brought",
    "is_there",
    "leave",
    "local_path",
    "mirror_of",
    "shown",
    "status_of",
]

PathLike = str | os.PathLike[str]

LOOK_SECONDS = 1.0  # for which a server's answer holds; each answer with bytes is compared, too
FAILED_SECONDS = 10.0  # for which it holds that a server does not answer


class Status(NamedTuple):
    """A file as it is found: bytes in it, and when content and inode changed last (ns), or what stands for that."""

    size: int
    modified: int
    changed: int


class ByteFile:
    """A file that is read by place; a context manager that closes it.

    Parameters
    ----------
    path
        Of a file, or a URL's name.

    Attributes
    ----------
    descriptor
        Of the local file; of one elsewhere, only what was asked for by `need` or `pread` is there.
    mirror
        Of one elsewhere; None of a local file.
    pread
        Returns so many bytes from a place on; fewer where there are no more.

    Raises
    ------
    OSError
        It cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.mirror = mirror_of(path) if is_url(path) else None
        self.descriptor = os.open(path if self.mirror is None else self.mirror.path, os.O_RDONLY | os.O_CLOEXEC)
        self.pread = partial(os.pread, self.descriptor) if self.mirror is None else self._brought
        self._path = path

    def need(self, begin: int, end: int) -> None:
        """Return when bytes can be read by the descriptor."""
        if self.mirror is not None:
            self.mirror.ensure(begin, end)

    @property
    def status(self) -> Status:
        """Of the open file."""
        if self.mirror is not None:
            return _status(self.mirror.state)
        status = os.fstat(self.descriptor)
        return Status(status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def close(self) -> None:
        """Close it; may be called again."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> ByteFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _brought(self, n_bytes: int, place: int) -> bytes:
        self.need(place, place + n_bytes)
        return os.pread(self.descriptor, n_bytes, place)


class _Known:
    """What this process knows of a file elsewhere."""

    def __init__(self) -> None:
        self.transport: Transport | None = None
        self.most = False
        self.state: RemoteState | None = None
        self.error: RemoteError | None = None
        self.until = 0.0
        self.mirror: Mirror | None = None
        self.lock = threading.RLock()


_names: dict[str, str] = {}  # of files elsewhere, by where they lie here
_known: dict[tuple[int, str], _Known] = {}  # by process: others are forked


def status_of(path: str) -> Status:
    """Return a file's state; raises OSError as `os.stat` does."""
    if is_url(path):
        return _status(_state(path))
    status = os.stat(path)
    return Status(status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def is_there(path: PathLike) -> bool:
    """Tell whether there is a file, or a folder; of one elsewhere, whether its server tells of it."""
    if not is_url(path):
        return os.path.exists(os.path.expanduser(path))
    try:
        _state(absolute(path))
    except OSError as error:
        return error.errno == errno.EACCES
    return True


def mirror_of(name: str) -> Mirror:
    """Return what this node has of a file elsewhere."""
    from himach.io.remote.mirror import Mirror

    known = _of(name)
    with known.lock:
        state = _state(name)
        assert known.transport is not None
        if known.mirror is None or known.mirror.state != state:
            known.mirror = Mirror(known.transport, state)
        known.mirror.most, known.mirror.transport = known.most, known.transport
        _names[known.mirror.path] = name
        return known.mirror


def local_path(path: str) -> str:
    """Return where a file lies for programs that read it by themselves; one elsewhere is brought as a whole."""
    return brought(path, ()) if is_url(path) else path


def shown(path: str) -> str:
    """Return the name of a file that lies there, for people."""
    return _names.get(path, path)


def brought(name: str, places: Sequence[tuple[int, int]]) -> str:
    """Return where a file elsewhere lies, with these bytes of it; with all, if none are given."""
    mirror = mirror_of(name)
    if not mirror.complete:
        places = places or [(0, mirror.state.size)]
        mirror.ask(places)
        for place in places:
            mirror.ensure(*place)
    return mirror.path


def ask_again(paths: Iterable[PathLike], most: bool = False) -> None:
    """Note the URLs among these paths, of which most may be read, with their secrets; have their servers asked anew."""
    for path in filter(is_url, paths):
        known = _of(absolute(path))
        known.until, known.most, known.transport = 0.0, most, None  # a signature may be another one


def leave(paths: Iterable[str], forget: bool = False) -> None:
    """Close the mirrors of files, until one is read again; and `forget` what is known of each, where there are many."""
    for path in filter(is_url, paths):
        known = _known.pop((os.getpid(), path), None) if forget else _known.get((os.getpid(), path))
        if known is None:
            continue
        with known.lock:
            mirror, known.mirror = known.mirror, None
        if mirror is not None:
            mirror.close()
            if forget:
                _names.pop(mirror.path, None)


def _of(name: str) -> _Known:
    """Return what this process knows of a file elsewhere; made at once, so that two threads have the same."""
    return _known.setdefault((os.getpid(), name), _Known())


def _state(name: str) -> RemoteState:
    """Return the state of a file elsewhere, as it was a moment ago."""
    from himach.io.remote.errors import RemoteError
    from himach.io.remote.patience import patiently
    from himach.io.remote.schemes import transport_of

    known = _of(name)
    with known.lock:
        if time.monotonic() >= known.until:
            known.state = known.error = None
            known.transport = known.transport or transport_of(name)
            try:
                known.state = patiently(known.transport.state, name)
                if not (known.state.tag or known.state.modified):
                    raise RemoteError(
                        name,
                        "its server tells neither an ETag nor a date of it, so nobody could say whether it has "
                        "changed; download it and name the local file",
                    )
            except RemoteError as error:
                known.error = error
            known.until = time.monotonic() + (LOOK_SECONDS if known.error is None else FAILED_SECONDS)
        if known.error is not None:
            raise known.error.with_traceback(None)
        assert known.state is not None
        return known.state


def _status(state: RemoteState) -> Status:
    import email.utils

    try:
        modified = int(email.utils.parsedate_to_datetime(state.modified).timestamp()) * 10**9
    except ValueError:
        modified = 0
    told = hashlib.sha256(f"{state.tag}\0{state.modified}".encode()).digest()
    return Status(state.size, modified, int.from_bytes(told[:7], "big"))
