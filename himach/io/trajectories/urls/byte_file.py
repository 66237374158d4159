"""Random access to bytes of a file: `ByteFile` reads a local file by its descriptor, a remote one through a `Mirror`.

`FileObject` serves libraries that read by seeking, such as HDF5. `read_status()` returns a file's state, `exists()`
whether there is one, `local_path()` where other programs find it.
"""

from __future__ import annotations

import email.utils
import errno
import hashlib
import io
import os
import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

from himach.errors import UsageError
from himach.io.trajectories.urls.mirror import Mirror
from himach.io.trajectories.urls.names import absolute, full_url, is_url, redact
from himach.io.trajectories.urls.transport import (
    PassingError,
    Patience,
    RemoteError,
    RemoteState,
    S3Transport,
    Transport,
)

PathLike = str | os.PathLike[str]

LOOK_SECONDS = 1.0  # how long a server's answer is valid; each answer with bytes is compared, too
FAILED_SECONDS = 10.0  # how long a server's failure is remembered
#: Smaller reads of a `FileObject` are rounded to pages of this size: libraries read their index in small pieces.
PAGE_BYTES = 1 << 15


class Status(NamedTuple):
    """Size of a file in bytes, and times of the last change of content and inode (ns) or substitutes for them."""

    size: int
    modified: int
    changed: int


class ByteFile:
    """A file read at given offsets; a context manager that closes it."""

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

    def __enter__(self) -> ByteFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _read_mirror(self, n_bytes: int, place: int) -> bytes:
        self.need(place, place + n_bytes)
        return os.pread(self.descriptor, n_bytes, place)


class FileObject(io.RawIOBase):
    """A seekable file, given by a path or a URL's name; raises OSError if it cannot be opened."""

    def __init__(self, path: str) -> None:
        self._file = ByteFile(path)
        self._size, self._at = self._file.status.size, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the offset of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to an offset from the beginning, from here or from the end, and return it from the beginning."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer up to the end of the file; return the number of bytes."""
        stop = min(self._size, self._at + len(buffer))
        page = PAGE_BYTES if len(buffer) < PAGE_BYTES else 1
        self._file.need(self._at // page * page, -(-stop // page) * page)
        start = self._at
        while self._at < stop:
            n_read = os.preadv(self._file.descriptor, [memoryview(buffer)[self._at - start : stop - start]], self._at)
            if not n_read:
                raise ValueError("the file has become shorter since it was opened")
            self._at += n_read
        return self._at - start

    def close(self) -> None:
        """Close it; may be called again."""
        super().close()
        self._file.close()


class _RemoteFile:
    """State of a remote file in this process."""

    def __init__(self) -> None:
        self.transport: Transport | None = None
        self.reads_most = False
        self.state: RemoteState | None = None
        self.error: RemoteError | None = None
        self.until = 0.0
        self.mirror: Mirror | None = None
        self.lock = threading.RLock()


_names: dict[str, str] = {}  # of remote files, by their local paths
_remote_files: dict[tuple[int, str], _RemoteFile] = {}  # by process, as forks inherit the entries


def read_status(path: str) -> Status:
    """Return a file's state; raises OSError as `os.stat` does."""
    if is_url(path):
        return _status(_state(path))
    status = os.stat(path)
    return Status(status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def exists(path: PathLike) -> bool:
    """Return whether a file or folder exists; a remote file that may not be read counts as existing."""
    if not is_url(path):
        return os.path.exists(os.path.expanduser(path))
    try:
        _state(absolute(path))
    except OSError as error:
        return error.errno == errno.EACCES
    return True


def open_mirror(name: str) -> Mirror:
    """Return the node's mirror of a remote file."""
    remote = _remote_file(name)
    with remote.lock:
        state = _state(name)
        assert remote.transport is not None
        if remote.mirror is None or remote.mirror.state != state or remote.mirror.lost:
            remote.mirror = Mirror(remote.transport, state)
        remote.mirror.reads_most, remote.mirror.transport = remote.reads_most, remote.transport
        _names[remote.mirror.path] = name
        return remote.mirror


def local_path(path: str) -> str:
    """Return the local path of a file for programs that read it themselves; a remote file is fetched whole."""
    return fetch(path, ()) if is_url(path) else path


def label(path: str) -> str:
    """Return the name to show for a local path: that of the remote file it mirrors, else the path."""
    return _names.get(path, path)


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
        remote = _remote_file(absolute(path))
        remote.until, remote.reads_most, remote.transport = 0.0, reads_most, None  # a signature may be another one


def close_mirrors(paths: Iterable[str], forget: bool = False) -> None:
    """Close the mirrors of files until the next read; `forget` also drops their state, for many files."""
    for path in filter(is_url, paths):
        remote = _remote_files.pop((os.getpid(), path), None) if forget else _remote_files.get((os.getpid(), path))
        if remote is None:
            continue
        with remote.lock:
            mirror, remote.mirror = remote.mirror, None
        if mirror is not None:
            mirror.close()
            if forget:
                _names.pop(mirror.path, None)


def open_transport(name: str) -> Transport:
    """Return the transport for a file's name."""
    if "::" in name:
        raise UsageError(f"{name}: a URL of URLs is not read; himach keeps what it reads by itself: give the last one")
    scheme = name.partition(":")[0]
    extra = "s3" if scheme in ("s3", "s3a") else "remote"
    try:
        if extra == "s3":
            return S3Transport(name)
        return _open_by_fsspec(name, scheme)
    except ImportError as error:
        raise UsageError(
            f"{name} is read by packages that are not installed ({error}): pip install 'himach[{extra}]'"
        ) from None
    except ValueError as error:
        raise UsageError(redact(f"{name} cannot be read: {error}")) from None


def _open_by_fsspec(name: str, scheme: str) -> Transport:
    from fsspec.config import conf
    from fsspec.core import url_to_fs

    from himach.io.trajectories.urls.file_system import FileSystemTransport, HttpTransport

    if scheme not in ("http", "https"):
        return FileSystemTransport(name, *url_to_fs(full_url(name)))
    import aiohttp  # noqa: F401  (else its lack is told when a file is read)

    # Take proxies and passwords from where other tools find them.
    options = {"trust_env": True, **conf.get(scheme, {}).get("client_kwargs", {})}
    return HttpTransport(name, *url_to_fs(full_url(name), client_kwargs=options))


def _remote_file(name: str) -> _RemoteFile:
    """Return this process's state of a remote file, made atomically so that threads share it."""
    return _remote_files.setdefault((os.getpid(), name), _RemoteFile())


def _state(name: str) -> RemoteState:
    """Return the state of a remote file, cached for a moment."""
    remote = _remote_file(name)
    with remote.lock:
        if time.monotonic() >= remote.until:
            remote.state = remote.error = None
            try:
                remote.state = _request_state(name, remote)
            except RemoteError as error:
                remote.error = error
            remote.until = time.monotonic() + (LOOK_SECONDS if remote.error is None else FAILED_SECONDS)
        if remote.error is not None:
            raise remote.error.with_traceback(None)
        assert remote.state is not None
        return remote.state


def _request_state(name: str, remote: _RemoteFile) -> RemoteState:
    """Ask a server for a file's state; retry passing errors."""
    remote.transport = remote.transport or open_transport(name)
    patience = Patience(name, first=remote.mirror is None)
    while True:
        try:
            state = remote.transport.state()
            break
        except PassingError as error:
            time.sleep(patience.pause(error))
    if not (state.tag or state.modified):
        raise RemoteError(
            name,
            "its server tells neither an ETag nor a date of it, so nobody could say whether it has changed; download "
            "it and name the local file",
        )
    return state


def _status(state: RemoteState) -> Status:
    try:
        modified = int(email.utils.parsedate_to_datetime(state.modified).timestamp()) * 10**9
    except ValueError:
        modified = 0
    digest = hashlib.sha256(f"{state.tag}\0{state.modified}".encode()).digest()
    return Status(state.size, modified, int.from_bytes(digest[:7], "big"))
