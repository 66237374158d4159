"""Random access to bytes of a file: `ByteFile` reads a local file by its descriptor, a remote one through a `Mirror`.

`read_status()` returns a file's state, `exists()` whether there is one, `local_path()` where other programs find it.
"""

import email.utils
import errno
import hashlib
import os
import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import NamedTuple

from himach.io.trajectories.urls.mirror import Mirror
from himach.io.trajectories.urls.transport import RemoteState, Transport, open_transport
from himach.io.trajectories.urls.url_names import absolute, is_url

PathLike = str | os.PathLike[str]

LOOK_SECONDS = 1.0  # how long a server's answer is valid; bytes are compared, too


class Status(NamedTuple):
    """Size of a file in bytes, and times of the last change of content and inode (ns) or substitutes for them."""

    size: int
    modified: int
    changed: int


class ByteFile:
    """A file read at given offsets; a context manager that closes it."""

    descriptor = -1

    def __init__(self, path: str) -> None:
        self.mirror = open_mirror(path) if is_url(path) else None
        self.descriptor = os.open(path if self.mirror is None else self.mirror.path, os.O_RDONLY | os.O_CLOEXEC)
        self.pread = partial(os.pread, self.descriptor) if self.mirror is None else self._read_mirror

    def need(self, start: int, stop: int) -> None:
        """Wait until these bytes can be read by the descriptor."""
        if self.mirror is not None:
            self.mirror.ensure(start, stop)

    @property
    def status(self) -> Status:
        """Status of the open file."""
        if self.mirror is not None:
            return _status(self.mirror.state)
        status = os.fstat(self.descriptor)
        return Status(status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def close(self) -> None:
        """Close it; may be called again."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> "ByteFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    __del__ = close

    def _read_mirror(self, n_bytes: int, place: int) -> bytes:
        self.need(place, place + n_bytes)
        return os.pread(self.descriptor, n_bytes, place)


class _RemoteFile:
    """A remote file in this process."""

    def __init__(self, name: str) -> None:
        self.name, self._lock = name, threading.RLock()
        self.mirror: Mirror | None = None
        self.ask_again()

    def ask_again(self, reads_most: bool = False) -> None:
        """Ask the server anew at the next use, by the URL as it is then: a signature may be another one."""
        self._reads_most = reads_most
        self._transport: Transport | None = None
        self._state: RemoteState | None = None
        self._until = 0.0

    def state(self) -> RemoteState:
        """Return the file's state, cached for a moment."""
        with self._lock:
            if self._state is None or time.monotonic() >= self._until:
                self._transport = self._transport or open_transport(self.name)
                self._state, self._until = self._transport.state(), time.monotonic() + LOOK_SECONDS
            return self._state

    def open(self) -> Mirror:
        """Return the mirror, a new one if the file or its copy has changed."""
        with self._lock:
            state = self.state()
            assert self._transport is not None
            if self.mirror is None or self.mirror.state != state or self.mirror.lost:
                self.mirror = Mirror(self._transport, state)
            self.mirror.reads_most, self.mirror.transport = self._reads_most, self._transport
            return self.mirror

    def close(self) -> None:
        """Close the mirror."""
        with self._lock:
            mirror, self.mirror = self.mirror, None
        if mirror is not None:
            mirror.close()


_remote_files: dict[tuple[int, str], _RemoteFile] = {}  # by process, as forks inherit the entries


def _remote_file(name: str) -> _RemoteFile:
    """Return this process's state of a remote file, made atomically so that threads share it."""
    return _remote_files.setdefault((os.getpid(), name), _RemoteFile(name))


def read_status(path: str) -> Status:
    """Return a file's state; raises OSError as `os.stat` does."""
    if is_url(path):
        return _status(_remote_file(path).state())
    status = os.stat(path)
    return Status(status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def exists(path: PathLike) -> bool:
    """Return whether a file or folder exists; a remote file that may not be read counts as existing."""
    if not is_url(path):
        return os.path.exists(os.path.expanduser(path))
    try:
        _remote_file(absolute(path)).state()
    except OSError as error:
        return error.errno == errno.EACCES
    return True


def open_mirror(name: str) -> Mirror:
    """Return the node's mirror of a remote file."""
    return _remote_file(name).open()


def local_path(path: str) -> str:
    """Return the local path of a file for programs that read it themselves; a remote file is fetched whole."""
    return fetch(path, ()) if is_url(path) else path


def label(path: str) -> str:
    """Return the name to show for a local path: that of the remote file it mirrors, else the path."""
    remotes = [remote for remote in _remote_files.values() if remote.mirror is not None and remote.mirror.path == path]
    return remotes[0].name if remotes else path


def fetch(name: str, places: Sequence[tuple[int, int]]) -> str:
    """Fetch byte ranges of a remote file, all of it if none are given; return its local path."""
    mirror = open_mirror(name)
    if not mirror.complete:
        places = places or [(0, mirror.state.size)]
        mirror.ask(places)
        for place in places:
            mirror.ensure(*place)
    return mirror.path


def ask_again(paths: Iterable[PathLike], reads_most: bool = False) -> None:
    """Note the URLs among these paths, their secrets and whether most is read; have their servers asked anew."""
    for path in filter(is_url, paths):
        _remote_file(absolute(path)).ask_again(reads_most)


def close_mirrors(paths: Iterable[str]) -> None:
    """Close the mirrors of files until the next read."""
    for path in filter(is_url, paths):
        _remote_file(path).close()


def _status(state: RemoteState) -> Status:
    try:
        modified = int(email.utils.parsedate_to_datetime(state.modified).timestamp()) * 10**9
    except ValueError:
        modified = 0
    digest = hashlib.sha256(f"{state.tag}\0{state.modified}".encode()).digest()
    return Status(state.size, modified, int.from_bytes(digest[:7], "big"))
