"""A node's copy of a remote file: `Mirror`, a sparse file and a byte for each of its blocks that is there.

All processes of a node share it. To get bytes, a process locks their range, requests those still missing, writes them
and marks their blocks. So each byte is requested once per node, and a killed process leaves its bytes to the next one.
A block is marked after it was written whole, and never from an answer whose headers show other content.
`himach.io.trajectories.urls.copies` places and removes copies.

`Records` locates frames in a NetCDF file, so that only needed bytes of a remote one are read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import queue
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from himach.io.trajectories.urls import copies
from himach.io.trajectories.urls.copies import HEAD, MARKS, forget, head, make_folder
from himach.io.trajectories.urls.names import local_file_name
from himach.io.trajectories.urls.transport import PassingError, Patience, RemoteError, RemoteState, Transport

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
            if os.fstat(self._data).st_blocks * 512 > copies.SMALL_BYTES:
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
        with contextlib.suppress(BlockingIOError), _lock_range(self._data, start, stop, wait):
            for stretch in self._missing(start, stop):
                self._fetch(*stretch)

    def _fetch(self, start: int, stop: int) -> None:
        """Request bytes; retry passing errors, and go on where an answer ended."""
        name, at = self.transport.name, start
        patience = Patience(name)
        while at < stop:
            writer = _AnswerWriter(name, self._data, at, self._ended)
            try:
                self.transport.read(at, stop, self.state, writer)
            except PassingError as error:
                if writer.at - at >= PROGRESS_BYTES and self.state.ranged:
                    patience = Patience(name)
                if self._ended.wait(patience.pause(error)):
                    raise patience.end(error) from None
            finally:
                at = writer.at if writer.at >= stop or self.state.ranged else start
                self._mark(start, at)

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


class _AnswerWriter:
    """Sink that writes an answer's bytes to the copy; refuses an answer that is too slow, and all when it has ended."""

    def __init__(self, name: str, copy: int, start: int, ended: threading.Event) -> None:
        self._name, self._ended = name, ended
        self._descriptor = os.dup(copy)  # of its own: after an interrupt, bytes may still come
        self._started = time.monotonic()
        self.start = self.at = start

    def __call__(self, piece: bytes) -> None:
        view = memoryview(piece)
        while view:
            try:
                written = os.pwrite(self._descriptor, view, self.at)
            except OSError as error:
                folder = os.path.dirname(os.readlink(f"/proc/self/fd/{self._descriptor}"))
                raise RemoteError(
                    self._name,
                    f"what comes cannot be written to {folder} ({error.strerror}); make room, or name folders on "
                    "another disk by $HIMACH_CACHE and $TMPDIR",
                    error.errno or errno.EIO,
                ) from None
            self.at += written
            view = view[written:]
        n_bytes, elapsed = self.at - self.start, time.monotonic() - self._started
        if elapsed > SLOW_SECONDS and n_bytes < SLOW_RATE * elapsed:
            raise PassingError(f"only {n_bytes} bytes came in {elapsed:.0f} s")
        if self._ended.is_set():
            raise PassingError("nobody waits for it any more")

    def __del__(self) -> None:
        os.close(self._descriptor)


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
def _lock_range(data: int, start: int, stop: int, wait: bool) -> Iterator[None]:
    """Lock a range for this thread, on the node; without `wait`, raises BlockingIOError if it is locked."""
    descriptor = os.open(f"/proc/self/fd/{data}", os.O_RDWR | os.O_CLOEXEC)  # the lock belongs to the open file
    try:
        lock_start = start // BLOCK * BLOCK
        lock = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, lock_start, -(-stop // BLOCK) * BLOCK - lock_start, 0)
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, lock)
        yield
    finally:
        os.close(descriptor)


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
