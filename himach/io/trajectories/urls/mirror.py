"""A node's copy of a remote file: `Mirror`, a sparse file and a byte for each of its blocks that is there.

All processes of a node share it. To get bytes, a process locks their range, requests those still missing, writes them
and marks their blocks. So each byte is requested once per node, and a killed process leaves its bytes to the next one.
A block is marked after it was written whole, and never from an answer whose headers show other content.
A run with a cache keeps copies in its store, where they take at most half of the quota. Copies that do not fit there,
and those of a run without a cache, go to ``himach-remote-<uid>`` in ``$SLURM_TMPDIR``, ``$TMPDIR`` or ``/var/tmp``.

`Records` locates frames in a NetCDF file, so that only needed bytes of a remote one are read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import mmap
import os
import queue
import shutil
import stat
import struct
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from himach.errors import UsageError
from himach.io.trajectories.urls.transport import PassingError, Patience, RemoteError, RemoteState, Transport
from himach.io.trajectories.urls.url_names import local_file_name

MARKS = "blocks.here"  # a byte for each block of a copy, 1 if it is there; its readers hold a shared lock on it
HEAD = struct.Struct("q4088s")  # header of MARKS: time of the copy's last change (0 while it is read), name
SMALL_BYTES = 64 << 20  # larger copies are removed after their last reader
PRUNE_SECONDS = 60.0  # between checks of all copies
UNUSED_SECONDS = 7 * 24 * 3600.0  # after which a copy is removed

_store: tuple[Path, int] | None = None  # this process's folder for copies, and the bytes they may take there
_pruned = -PRUNE_SECONDS  # time of this process's last check


class Copy(NamedTuple):
    """A copy: its folder, the file's name, its bytes on disk, and the time of its last opening (s since 1970)."""

    folder: Path
    name: str
    nbytes: int
    last_used: int


def keep_in(store: Path | None, quota: int = 0) -> None:
    """Keep this process's copies in a store of `quota` bytes; None: in a folder for temporary files."""
    global _store
    _store = None if store is None else (store, quota // 2)


def head(name: str, changed: int = 0) -> bytes:
    """Return the header of `MARKS`."""
    return HEAD.pack(changed, name.encode(errors="surrogateescape")[: HEAD.size - 8])


def copies_in(root: Path) -> list[Copy]:
    """Return the copies in a store or another folder, the least recently used first."""
    copies: list[tuple[int, Copy]] = []
    for marks in root.glob(f"*/{MARKS}"):
        with contextlib.suppress(OSError), marks.open("rb") as file:
            name = HEAD.unpack(file.read(HEAD.size).ljust(HEAD.size, b"\0"))[1].rstrip(b"\0")
            nbytes = sum(path.lstat().st_blocks * 512 for path in marks.parent.iterdir())
            used = marks.parent.stat().st_mtime_ns
            copies.append((used, Copy(marks.parent, name.decode(errors="replace"), nbytes, used // 10**9)))
    return [copy for _, copy in sorted(copies)]


def evict(folder: Path) -> bool:
    """Remove a copy unless it is open; return whether it is gone."""
    with contextlib.suppress(OSError), open(folder / MARKS, "rb") as marks:
        fcntl.flock(marks, fcntl.LOCK_EX | fcntl.LOCK_NB)
        forget(folder)
    return not (folder / MARKS).exists()


def forget(folder: str | os.PathLike[str]) -> None:
    """Remove a copy; the caller has locked it."""
    shutil.rmtree(folder, ignore_errors=True)


def make_folder(name: str, state: RemoteState) -> Path:
    """Make and return the folder for a copy of a file; each content has its own.

    Each boot of the machine has its own, too: the disk may lack writes from before a restart.
    """
    digest = hashlib.sha256("\0".join(["3", name, *map(str, state), _boot()]).encode()).hexdigest()
    room = sys.maxsize
    try:
        if _store is not None and state.size <= _store[1]:
            root, room = _store
        else:
            root = _temporary()
        folder = root / f"{digest[:16]}-{digest[16:32]}"  # the library counts files in folders of such names
        if not folder.exists():
            _make_room(root, room - state.size, state.size > SMALL_BYTES)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"files elsewhere are read by way of {error.filename}, which cannot be used: {error.strerror}; name a "
            "local folder by $TMPDIR"
        ) from None
    return folder


def _make_room(root: Path, room: int, at_once: bool) -> None:
    """Remove copies unused for long, and others while all take too much; open ones stay."""
    global _pruned
    if time.monotonic() < _pruned + PRUNE_SECONDS and not at_once:
        return
    _pruned = time.monotonic()
    copies = copies_in(root)
    used_bytes = sum(copy.nbytes for copy in copies)
    for copy in copies:
        if (used_bytes > room or time.time() - copy.last_used > UNUSED_SECONDS) and evict(copy.folder):
            used_bytes -= copy.nbytes


def _temporary() -> Path:
    base = os.environ.get("SLURM_TMPDIR") or os.environ.get("TMPDIR") or "/var/tmp"
    root = Path(base, f"himach-remote-{os.geteuid()}")
    root.mkdir(mode=0o700, exist_ok=True)
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "others may write there, or it is not yours", str(root))
    return root


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


BLOCK = 512  # bytes that have one mark, and the unit of locks
REQUEST_BYTES = 4 << 20
WORKERS = 8  # readahead requests of a process at a time
HOLE_DIVISOR = 16  # a gap is requested too if it is at least so many times smaller than the stretch before it
CLOSE_SECONDS = 1.0  # to wait for requests that nobody needs any more
PROGRESS_BYTES = 1 << 16  # bytes of an answer that reset the retries
SLOW_SECONDS, SLOW_RATE = 60.0, 1024.0  # an answer that takes longer must bring so many bytes a second
_LOCK = struct.Struct("hhqqi4x")  # struct flock of Linux on 64 bits


class Mirror:
    """The copy of a remote file on this node."""

    def __init__(self, transport: Transport, state: RemoteState) -> None:
        self.transport, self.state = transport, state
        self.path, self._data, self._marks = _open_copy(transport.name, state)
        self._present = np.frombuffer(mmap.mmap(self._marks, 0), np.uint8)[HEAD.size :]  # 1 for each block
        self._jobs: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._workers: list[threading.Thread] = []
        self._ended = threading.Event()
        self._streamed = -1
        self.reads_most = self.complete = False

    @property
    def lost(self) -> bool:
        """Whether the local file was removed or cut."""
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(self.path)
            return (status.st_ino, status.st_size) != (os.fstat(self._data).st_ino, self.state.size)
        return True

    def ensure(self, start: int, stop: int) -> None:
        """Wait until these bytes are there; raises RemoteError if they cannot be fetched or the file has changed."""
        stop = min(stop, self.state.size)
        if self.complete or start >= stop or not self._missing(start, stop):
            return
        for place in self._requests(start, stop):
            self._bring(*place, wait=True)
        self.complete = start <= 0 and stop == self.state.size

    def ask(self, places: Iterable[tuple[int, int]]) -> None:
        """Fetch bytes in the background; returns at once and never raises."""
        for start, stop in join_places(places):
            for place in self._requests(max(0, start), min(stop, self.state.size)):
                if self._missing(*place):
                    self._jobs.put(place)
        while len(self._workers) < min(WORKERS, self._jobs.qsize()):
            self._workers.append(threading.Thread(target=self._work, name="himach-remote", daemon=True))
            self._workers[-1].start()

    def stream(self, at: int, until: int) -> None:
        """Wait for the byte at `at`, and fetch those behind it in the background, up to `until`."""
        first = at // REQUEST_BYTES * REQUEST_BYTES
        if first == self._streamed:
            return
        self._streamed = first
        self.ask([(first, min(until, first + WORKERS * REQUEST_BYTES))])
        self._bring(first, min(first + REQUEST_BYTES, self.state.size), wait=True)

    def close(self) -> None:
        """Close the file; the node's last process to do so removes a large copy."""
        self._ended.set()
        until = time.monotonic() + CLOSE_SECONDS
        for _ in self._workers:
            self._jobs.put((0, 0))
        for worker in self._workers:
            worker.join(max(0.0, until - time.monotonic()))
        if any(worker.is_alive() for worker in self._workers):  # the end of this process closes all
            return
        with contextlib.suppress(OSError):
            fcntl.flock(self._marks, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(self._marks, head(self.transport.name, os.fstat(self._data).st_mtime_ns), 0)
            if os.fstat(self._data).st_blocks * 512 > SMALL_BYTES:
                forget(os.path.dirname(self.path))
        fcntl.flock(self._marks, fcntl.LOCK_UN)
        self._present = np.empty(0, np.uint8)  # the memory map has a descriptor, too
        for descriptor in (self._data, self._marks):
            os.close(descriptor)

    def _requests(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        if not self.state.ranged:
            start, stop = 0, self.state.size
        step = REQUEST_BYTES if self.state.ranged else max(1, stop)
        for place in range(start, stop, step):
            yield place, min(stop, place + step)

    def _missing(self, start_byte: int, stop_byte: int) -> list[tuple[int, int]]:
        """Return the missing stretches of these bytes, as whole blocks."""
        first = start_byte // BLOCK
        present = self._present[first : -(-stop_byte // BLOCK)]
        if present.all():
            return []
        edges = np.flatnonzero(np.diff(np.concatenate([[1], present, [1]]).astype(np.int8))) + first
        return [(int(start) * BLOCK, min(int(stop) * BLOCK, self.state.size)) for start, stop in edges.reshape(-1, 2)]

    def _bring(self, start: int, stop: int, wait: bool) -> None:
        """Fetch missing bytes; unless `wait`, skip them while another thread or process fetches there."""
        with contextlib.suppress(BlockingIOError), _open_locked(self._data, start, stop, wait) as file:
            for stretch in self._missing(start, stop):
                self._fetch(file, *stretch)

    def _fetch(self, file: io.FileIO, start: int, stop: int) -> None:
        """Request bytes; retry passing errors, and go on where an answer ended."""
        name, at = self.transport.name, start
        patience = Patience(name)
        while at < stop:
            file.seek(at)
            try:
                self.transport.read(at, stop, self.state, partial(self._write, file, at, time.monotonic()))
            except PassingError as error:
                if file.tell() - at >= PROGRESS_BYTES and self.state.ranged:
                    patience = Patience(name)
                if self._ended.wait(patience.pause(error)):
                    raise patience.end(error) from None
            finally:
                at = file.tell() if file.tell() >= stop or self.state.ranged else start
                self._mark(start, at)

    def _write(self, file: io.FileIO, start: int, started: float, piece: bytes) -> None:
        """Write a piece of an answer; refuse one that is too slow, and all when the mirror is closed."""
        view = memoryview(piece)
        try:
            while view:
                view = view[file.write(view) :]
        except OSError as error:
            raise RemoteError(
                self.transport.name,
                f"what comes cannot be written to {os.path.dirname(self.path)} ({error.strerror}); make room, or name "
                "folders on another disk by $HIMACH_CACHE and $TMPDIR",
                error.errno or errno.EIO,
            ) from None
        n_bytes, elapsed = file.tell() - start, time.monotonic() - started
        if elapsed > SLOW_SECONDS and n_bytes < SLOW_RATE * elapsed:
            raise PassingError(f"only {n_bytes} bytes came in {elapsed:.0f} s")
        if self._ended.is_set():
            raise PassingError("nobody waits for it any more")

    def _mark(self, start: int, stop: int) -> None:
        """Mark the blocks that are whole."""
        stop = stop if stop < self.state.size else stop + BLOCK - 1  # the last block may be shorter
        self._present[-(-start // BLOCK) : stop // BLOCK] = 1

    def _work(self) -> None:
        while not self._ended.is_set():
            place = self._jobs.get()
            with contextlib.suppress(OSError):  # the reader of these bytes raises it
                if place[0] < place[1]:
                    self._bring(*place, wait=False)


def _open_copy(name: str, state: RemoteState) -> tuple[str, int, int]:
    """Return the path of a copy, and descriptors of it and of its locked marks."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:  # another process may remove it meanwhile
        folder = make_folder(name, state)
        path = os.path.join(folder, f"x-{local_file_name(name)}")
        with contextlib.suppress(FileNotFoundError):
            os.utime(folder)
            data, marks = os.open(path, flags, 0o600), os.open(folder / MARKS, flags, 0o600)
            if _share(data, marks, name, state.size):
                return path, data, marks
            os.close(data)
            os.close(marks)


def _share(data: int, marks: int, name: str, size: int) -> bool:
    """Lock a copy's marks, and empty a copy changed since its last reader; return False if it was removed or cut."""
    try:
        fcntl.flock(marks, fcntl.LOCK_EX | fcntl.LOCK_NB)
        alone = True
    except OSError:  # others read it, or one removes it: wait for that
        fcntl.flock(marks, fcntl.LOCK_SH)
        alone = False
    status = os.fstat(data)
    if not (status.st_nlink and os.fstat(marks).st_nlink):
        return False
    if alone:
        changed = HEAD.unpack(os.pread(marks, HEAD.size, 0).ljust(HEAD.size, b"\0"))[0]
        if status.st_size != size or changed not in (0, status.st_mtime_ns):  # 0: its reader was killed
            os.ftruncate(marks, 0)
            os.ftruncate(data, 0)
        os.ftruncate(data, size)
        os.ftruncate(marks, HEAD.size + max(1, -(-size // BLOCK)))
        os.pwrite(marks, head(name), 0)
        fcntl.flock(marks, fcntl.LOCK_SH)
    elif status.st_size != size:
        forget(os.path.dirname(os.readlink(f"/proc/self/fd/{data}")))
        return False
    return True


@contextlib.contextmanager
def _open_locked(data: int, start: int, stop: int, wait: bool) -> Iterator[io.FileIO]:
    """Open a copy with a range locked for this thread, on the node; raises BlockingIOError if that is to `wait`."""
    # A file of its own has locks of its own, and once it is closed, an interrupted request writes no more.
    with open(f"/proc/self/fd/{data}", "r+b", buffering=0) as file:
        lock_start = start // BLOCK * BLOCK
        lock = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, lock_start, -(-stop // BLOCK) * BLOCK - lock_start, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, lock)
        yield file


def join_places(places: Iterable[tuple[int, int]], hole_bytes: int = 0) -> list[tuple[int, int]]:
    """Join stretches with small gaps: of `hole_bytes`, or small beside the stretch before."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(places):
        if joined and start - joined[-1][1] <= max(hole_bytes, (joined[-1][1] - joined[-1][0]) // HOLE_DIVISOR):
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


HEAD_BYTES = 1 << 16  # bound on the header of a trajectory
VECTORS = ("coordinates", "velocities", "forces")
VECTOR_BYTES = 12


class Records(NamedTuple):
    """Places of a file's records: of `size` bytes each, the first at byte `start`."""

    start: int
    size: int
    n_records: int
    variables: Mapping[str, tuple[int, int]]  # offset in a record and number of bytes, in the order of offsets

    def places(self, index: int, needed: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield the byte ranges of a frame, with vectors of the first `needed` atoms only (None: of all)."""
        for name, (offset, n_bytes) in self.variables.items():
            is_partial = needed is not None and name in VECTORS
            start = self.start + self.size * index + offset
            yield start, start + (min(n_bytes, VECTOR_BYTES * (needed or 0)) if is_partial else n_bytes)

    def skipped_bytes(self, needed: int | None) -> int:
        """Return the bytes of a frame that `places` leaves out."""
        n_bytes = sum(n_bytes for _, n_bytes in self.variables.values())
        return n_bytes - sum(stop - start for start, stop in self.places(0, needed))

    def times(self) -> Iterator[tuple[int, int]]:
        """Yield the byte ranges of all frames' times."""
        times = self._replace(variables={name: place for name, place in self.variables.items() if name == "time"})
        for index in range(self.n_records):
            yield from times.places(index)


def read_records(mirror: Mirror) -> Records | None:
    """Return the places of a NetCDF file's records; None for other files and layouts."""
    from scipy.io import netcdf_file

    mirror.ensure(0, HEAD_BYTES)
    try:
        file = netcdf_file(mirror.path, mmap=True)
    except Exception:  # reading the whole file reports it
        return None
    arrays = [(name, variable.data) for name, variable in file.variables.items() if variable.isrec]
    n_records = int(file._recs)
    if n_records <= 0 or not arrays:
        return None
    base, size = file._mm_buf.__array_interface__["data"][0], arrays[0][1].strides[0]
    places = sorted((int(data.__array_interface__["data"][0] - base), data[0].nbytes, name) for name, data in arrays)
    del arrays
    start = places[0][0]
    if start > HEAD_BYTES or start + size * n_records > mirror.state.size + 4:
        return None
    return Records(start, size, n_records, {name: (place - start, n_bytes) for place, n_bytes, name in places})
