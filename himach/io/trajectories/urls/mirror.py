"""A node's copy of a remote file: `Mirror`, a sparse file and a byte for each of its blocks that is there.

All processes of a node share it. To get bytes, a process locks their range, requests those still missing, writes them
and marks their blocks. So each byte is requested once per node, and a killed process leaves its bytes to the next one.
A block is marked after it was written whole, and never from an answer whose headers show other content.
A run with a cache keeps copies in its store, where they take at most half of the quota. Copies that do not fit there,
and those of a run without a cache, go to ``himach-remote-<uid>`` in ``$SLURM_TMPDIR``, ``$TMPDIR`` or ``/var/tmp``.

`Records` locates frames in a NetCDF file, so that only needed bytes of a remote one are read.
"""

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
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from himach.errors import UsageError
from himach.io.trajectories.urls.transport import RemoteError, RemoteState, Transport
from himach.io.trajectories.urls.url_names import local_file_name

MARKS = "blocks.here"  # a byte for each block of a copy, 1 if it is there; its readers hold a shared lock on it
NAME_BYTES = 4096  # at the start of MARKS, for the file's name
SMALL_BYTES = 64 << 20  # larger copies are removed after their last reader
UNUSED_SECONDS = 7 * 24 * 3600.0  # after which a copy is removed

_store: tuple[Path, int] | None = None  # this process's folder for copies, and the bytes they may take there


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


def copies_in(root: Path) -> list[Copy]:
    """Return the copies in a store or another folder, the least recently used first."""
    copies: list[tuple[int, Copy]] = []
    for marks in root.glob(f"*/{MARKS}"):
        with contextlib.suppress(OSError), marks.open("rb") as file:
            name = file.read(NAME_BYTES).rstrip(b"\0")
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
    digest = hashlib.sha256("\0".join(["4", name, *map(str, state), _boot()]).encode()).hexdigest()
    room = sys.maxsize
    try:
        if _store is not None and state.size <= _store[1]:
            root, room = _store
        else:
            root = _temporary()
        folder = root / f"{digest[:16]}-{digest[16:32]}"  # the library counts files in folders of such names
        if not folder.exists():
            _make_room(root, room - state.size)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"files elsewhere are read by way of {error.filename}, which cannot be used: {error.strerror}; name a "
            "local folder by $TMPDIR"
        ) from None
    return folder


def _make_room(root: Path, room: int) -> None:
    """Remove copies unused for long, and others while all take too much; open ones stay."""
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
_LOCK = struct.Struct("hhqqi4x")  # struct flock of Linux on 64 bits


class Mirror:
    """The copy of a remote file on this node."""

    def __init__(self, transport: Transport, state: RemoteState) -> None:
        self.transport, self.state = transport, state
        self.path, self._data, self._marks = _open_copy(transport.name, state)
        self._present = np.frombuffer(mmap.mmap(self._marks, 0), np.uint8)[NAME_BYTES:]  # 1 for each block
        self._jobs: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._workers: list[threading.Thread] = []
        self._ended = threading.Event()
        self._streamed = -1
        self.reads_most = self.complete = False

    @property
    def lost(self) -> bool:
        """Whether the local file was removed."""
        return not os.fstat(self._data).st_nlink

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
            if os.fstat(self._data).st_blocks * 512 > SMALL_BYTES:
                forget(os.path.dirname(self.path))
        fcntl.flock(self._marks, fcntl.LOCK_UN)
        self._present = np.empty(0, np.uint8)  # the memory map has a descriptor, too
        for descriptor in (self._data, self._marks):
            os.close(descriptor)

    def _requests(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        for place in range(start, stop, REQUEST_BYTES):
            yield place, min(stop, place + REQUEST_BYTES)

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

    def _fetch(self, file: io.BufferedRandom, start: int, stop: int) -> None:
        """Request bytes, write them, and mark the blocks that are whole."""
        content = self.transport.read(start, stop, self.state)
        try:
            file.seek(start)
            file.write(content)
            file.flush()
        except OSError as error:
            raise RemoteError(
                self.transport.name,
                f"what comes cannot be written to {os.path.dirname(self.path)} ({error.strerror}); make room, or name "
                "folders on another disk by $HIMACH_CACHE and $TMPDIR",
                error.errno or errno.EIO,
            ) from None
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
            if _share(data, marks, folder, name, state.size):
                return path, data, marks
            os.close(data)
            os.close(marks)


def _share(data: int, marks: int, folder: Path, name: str, size: int) -> bool:
    """Lock a copy's marks, and empty a copy that was cut; return False if it was removed."""
    try:
        fcntl.flock(marks, fcntl.LOCK_EX | fcntl.LOCK_NB)
        alone = True
    except OSError:  # others read it, or one removes it: wait for that
        fcntl.flock(marks, fcntl.LOCK_SH)
        alone = False
    status = os.fstat(data)
    if not (status.st_nlink and os.fstat(marks).st_nlink):
        return False
    if status.st_size != size and not alone:
        forget(folder)
        return False
    if alone:
        if status.st_size != size:
            os.ftruncate(marks, 0)
            os.ftruncate(data, 0)
        os.ftruncate(data, size)
        os.ftruncate(marks, NAME_BYTES + max(1, -(-size // BLOCK)))
        os.pwrite(marks, name.encode(errors="surrogateescape")[:NAME_BYTES].ljust(NAME_BYTES, b"\0"), 0)
        fcntl.flock(marks, fcntl.LOCK_SH)
    return True


@contextlib.contextmanager
def _open_locked(data: int, start: int, stop: int, wait: bool) -> Iterator[io.BufferedRandom]:
    """Open a copy with a range locked for this thread, on the node; raises BlockingIOError if that is to `wait`."""
    # A file of its own has locks of its own, and once it is closed, an interrupted request writes no more.
    with open(f"/proc/self/fd/{data}", "r+b") as file:
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


class Records(NamedTuple):
    """Places of a file's records: of `size` bytes each, the first at byte `start`."""

    start: int
    size: int
    n_records: int
    times: tuple[int, int]  # of the time in the first record

    def place(self, index: int) -> tuple[int, int]:
        """Return the byte range of a frame."""
        return self.start + self.size * index, self.start + self.size * (index + 1)

    def opening(self) -> list[tuple[int, int]]:
        """Return what opening the file reads: its header, all times, the first frame and the last."""
        start, stop = self.times
        times = [(start + self.size * index, stop + self.size * index) for index in range(self.n_records)]
        return [(0, HEAD_BYTES), *times, self.place(0), self.place(self.n_records - 1)]


def read_records(mirror: Mirror) -> Records | None:
    """Return the places of a NetCDF file's records; None for other files and layouts."""
    from scipy.io import netcdf_file

    mirror.ensure(0, HEAD_BYTES)
    try:
        file = netcdf_file(mirror.path, mmap=True)
        base, n_records = file._mm_buf.__array_interface__["data"][0], int(file._recs)
        arrays = {name: variable.data for name, variable in file.variables.items() if variable.isrec}
        places = {name: int(array.__array_interface__["data"][0] - base) for name, array in arrays.items()}
        size, time_bytes = int(arrays["time"].strides[0]), arrays["time"].itemsize
        del arrays  # else closing the file warns of them
    except Exception:  # reading the whole file reports it
        return None
    start, times = min(places.values()), (places["time"], places["time"] + time_bytes)
    if not n_records or start > HEAD_BYTES or start + size * n_records > mirror.state.size + 4:
        return None
    return Records(start, size, n_records, times)
