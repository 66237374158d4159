"""Bytes of a file by place: `ByteFile`, of a local one by its descriptor, of one elsewhere as its `Mirror` brings them.

`FileObject` is the same for libraries that read by seeking, such as HDF5's. `status_of()` tells a file's state,
`is_there()` whether there is one, `local_path()` where others' programs find it.
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
from himach.io.remote.errors import PassingError, RemoteError
from himach.io.remote.mirror import Mirror
from himach.io.remote.transport import Patience, RemoteState, S3Transport, Transport
from himach.io.remote.url import absolute, address_of, is_url, masked

PathLike = str | os.PathLike[str]

LOOK_SECONDS = 1.0  # for which a server's answer holds; each answer with bytes is compared, too
FAILED_SECONDS = 10.0  # for which it holds that a server does not answer
#: Of these, what is smaller is read with what lies around it: libraries look at one piece of their index after another.
PAGE_BYTES = 1 << 15


class Status(NamedTuple):
    """A file as it is found: bytes in it, and when content and inode changed last (ns), or what stands for that."""

    size: int
    modified: int
    changed: int


class ByteFile:
    """A file that is read by place; a context manager that closes it."""

    def __init__(self, path: str) -> None:
        self.mirror = mirror_of(path) if is_url(path) else None
        self.descriptor = os.open(path if self.mirror is None else self.mirror.path, os.O_RDONLY | os.O_CLOEXEC)
        self.pread = partial(os.pread, self.descriptor) if self.mirror is None else self._brought

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


class FileObject(io.RawIOBase):
    """A file, or a URL's name, that is read by seeking in it; raises OSError where it cannot be opened."""

    def __init__(self, path: str) -> None:
        self._file = ByteFile(path)
        self._size, self._at = self._file.status.size, 0

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def seekable(self) -> bool:
        """Tell that any byte can be read."""
        return True

    def tell(self) -> int:
        """Return the byte that is read next."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a byte, counted from the beginning, from here or from the end, and return its number."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read bytes, as many as the buffer has or there are; return how many."""
        end = min(self._size, self._at + len(buffer))
        page = PAGE_BYTES if len(buffer) < PAGE_BYTES else 1
        self._file.need(self._at // page * page, -(-end // page) * page)
        begin = self._at
        while self._at < end:
            taken = os.preadv(self._file.descriptor, [memoryview(buffer)[self._at - begin : end - begin]], self._at)
            if not taken:
                raise ValueError("the file has become shorter since it was opened")
            self._at += taken
        return self._at - begin

    def close(self) -> None:
        """Close it; may be called again."""
        super().close()
        self._file.close()


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
    known = _of(name)
    with known.lock:
        state = _state(name)
        assert known.transport is not None
        if known.mirror is None or known.mirror.state != state or known.mirror.lost:
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


def transport_of(name: str) -> Transport:
    """Return what asks for the file of a name."""
    if "::" in name:
        raise UsageError(f"{name}: a URL of URLs is not read; himach keeps what it reads by itself: give the last one")
    scheme = name.partition(":")[0]
    extra = "s3" if scheme in ("s3", "s3a") else "remote"
    try:
        if extra == "s3":
            return S3Transport(name)
        return _of_file_system(name, scheme)
    except ImportError as error:
        raise UsageError(
            f"{name} is read by packages that are not installed ({error}): pip install 'himach[{extra}]'"
        ) from None
    except ValueError as error:
        raise UsageError(masked(f"{name} cannot be read: {error}")) from None


def _of_file_system(name: str, scheme: str) -> Transport:
    from fsspec.config import conf
    from fsspec.core import url_to_fs

    from himach.io.remote.file_system import FileSystemTransport, HttpTransport

    if scheme not in ("http", "https"):
        return FileSystemTransport(name, *url_to_fs(address_of(name)))
    import aiohttp  # noqa: F401  (else its lack is told when a file is read)

    # Proxies and passwords are found where other tools find them.
    options = {"trust_env": True, **conf.get(scheme, {}).get("client_kwargs", {})}
    return HttpTransport(name, *url_to_fs(address_of(name), client_kwargs=options))


def _of(name: str) -> _Known:
    """Return what this process knows of a file elsewhere; made at once, so that two threads have the same."""
    return _known.setdefault((os.getpid(), name), _Known())


def _state(name: str) -> RemoteState:
    """Return the state of a file elsewhere, as it was a moment ago."""
    known = _of(name)
    with known.lock:
        if time.monotonic() >= known.until:
            known.state = known.error = None
            try:
                known.state = _asked(name, known)
            except RemoteError as error:
                known.error = error
            known.until = time.monotonic() + (LOOK_SECONDS if known.error is None else FAILED_SECONDS)
        if known.error is not None:
            raise known.error.with_traceback(None)
        assert known.state is not None
        return known.state


def _asked(name: str, known: _Known) -> RemoteState:
    """Ask a server for a file's state, again where that can help."""
    known.transport = known.transport or transport_of(name)
    patience = Patience(name, first=known.mirror is None)
    while True:
        try:
            state = known.transport.state()
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
    told = hashlib.sha256(f"{state.tag}\0{state.modified}".encode()).digest()
    return Status(state.size, modified, int.from_bytes(told[:7], "big"))
