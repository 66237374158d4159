"""A node's copy of a remote file: `Mirror`, a sparse file and a bitmap of the blocks that are there.

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
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from himach.io.trajectories.urls import copies
from himach.io.trajectories.urls.copies import HEAD, MARKS, forget, head, make_folder
from himach.io.trajectories.urls.names import local_file_name
from himach.io.trajectories.urls.transport import PassingError, Patience, RemoteError, RemoteState, Transport

BLOCK = 64  # bytes per bit of the bitmap
UNIT = 8 * BLOCK  # bytes per byte of the bitmap, and the unit of locks
REQUEST_BYTES = 4 << 20
WORKERS = 8  # readahead requests of a process at a time
HOLE_DIVISOR = 16  # a gap is requested too if it is at least so many times smaller than the stretch before it
PROGRESS_BYTES = 1 << 16  # bytes of an answer that reset the retries
SLOW_SECONDS, SLOW_RATE = 60.0, 1024.0  # an answer that takes longer must bring so many bytes a second
_LOCK = struct.Struct("hhqqi4x")  # struct flock of Linux on 64 bits


class Mirror:
    """The copy of a remote file on this node."""

    def __init__(self, transport: Transport, state: RemoteState) -> None:
        self.transport, self.state = transport, state
        self.path, self._data, self._marks = _open_copy(transport.name, state)
        self._bits = np.frombuffer(mmap.mmap(self._marks, 0), np.uint8)[HEAD.size :]
        self._lock = threading.Lock()
        self._busy = 0
        self._jobs: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._workers: list[threading.Thread] = []
        self._waiting: set[tuple[int, int]] = set()
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
        for start, stop in _join_places(places):
            for place in self._requests(max(0, start), min(stop, self.state.size)):
                if place not in self._waiting and self._missing(*place):
                    self._waiting.add(place)
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
        for _ in self._workers:
            self._jobs.put((0, 0))
        if self._busy:  # do not wait for requests: the end of this process closes all
            return
        with contextlib.suppress(OSError):
            fcntl.flock(self._marks, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(self._marks, head(self.transport.name, os.fstat(self._data).st_mtime_ns), 0)
            if os.fstat(self._data).st_blocks * 512 > copies.SMALL_BYTES:
                forget(os.path.dirname(self.path))
        fcntl.flock(self._marks, fcntl.LOCK_UN)
        self._bits = np.empty(0, np.uint8)  # the memory map has a descriptor, too
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
        first, last = start_byte // BLOCK, -(-stop_byte // BLOCK)
        bits = np.unpackbits(self._bits[first // 8 : -(-last // 8)], bitorder="little")
        bits = bits[first % 8 : first % 8 + last - first]
        if bits.all():
            return []
        edges = np.flatnonzero(np.diff(np.concatenate([[1], bits, [1]]).astype(np.int8))) + first
        return [(int(start) * BLOCK, min(int(stop) * BLOCK, self.state.size)) for start, stop in edges.reshape(-1, 2)]

    def _bring(self, start: int, stop: int, wait: bool) -> None:
        """Fetch missing bytes; unless `wait`, skip them while another thread or process fetches there."""
        with self._lock:
            self._busy += 1
        try:
            with contextlib.suppress(BlockingIOError), _lock_range(self._data, start, stop, wait) as descriptor:
                for stretch in self._missing(start, stop):
                    self._fetch(descriptor, *stretch)
        finally:
            with self._lock:
                self._busy -= 1

    def _fetch(self, descriptor: int, start: int, stop: int) -> None:
        """Request bytes; retry passing errors, and go on where an answer ended."""
        patience, at = Patience(self.transport.name), start
        while at < stop:
            writer = _AnswerWriter(descriptor, at)
            try:
                self.transport.read(at, stop, self.state, writer)
            except PassingError as error:
                if writer.error is not None:
                    raise self._write_error(writer.error) from None
                if writer.n_bytes >= PROGRESS_BYTES and self.state.ranged:
                    patience = Patience(self.transport.name)
                if self._ended.wait(patience.pause(error)):
                    raise patience.end(error) from None
            finally:
                at = writer.stop()
                if at < stop and not self.state.ranged:
                    at = start
                self._mark(start, at)

    def _write_error(self, error: OSError) -> RemoteError:
        return RemoteError(
            self.transport.name,
            f"what comes cannot be written to {os.path.dirname(self.path)} ({error.strerror}); make room, or name "
            "folders on another disk by $HIMACH_CACHE and $TMPDIR",
            error.errno or errno.EIO,
        )

    def _mark(self, start: int, stop: int) -> None:
        """Mark the blocks that are whole."""
        first, last = -(-start // BLOCK), stop // BLOCK if stop < self.state.size else -(-stop // BLOCK)
        if first >= last:
            return
        span = slice(first // 8, -(-last // 8))
        bits = np.unpackbits(self._bits[span], bitorder="little")
        bits[first % 8 : first % 8 + last - first] = 1
        self._bits[span] = np.packbits(bits, bitorder="little")

    def _work(self) -> None:
        while not self._ended.is_set():
            place = self._jobs.get()
            with contextlib.suppress(OSError):  # the reader of these bytes raises it
                if place[0] < place[1]:
                    self._bring(*place, wait=False)
            self._waiting.discard(place)


class _AnswerWriter:
    """Sink that writes an answer's bytes to the copy; refuses an answer that is too slow."""

    def __init__(self, descriptor: int, at: int) -> None:
        self._descriptor, self._at = descriptor, at
        self.n_bytes = 0
        self.error: OSError | None = None
        self._started = time.monotonic()
        self._lock = threading.Lock()

    def __call__(self, piece: bytes) -> None:
        view = memoryview(piece)
        with self._lock:
            try:
                while view:
                    written = os.pwrite(self._descriptor, view, self._at)
                    self._at += written
                    view = view[written:]
            except OSError as error:
                self.error = error
                raise PassingError("it cannot be written") from None
        self.n_bytes += len(piece)
        elapsed = time.monotonic() - self._started
        if elapsed > SLOW_SECONDS and self.n_bytes < SLOW_RATE * elapsed:
            raise PassingError(f"only {self.n_bytes} bytes came in {elapsed:.0f} s")

    def stop(self) -> int:
        """Refuse later bytes, which may come after an interrupt; return the offset behind the last one."""
        with self._lock:
            self._descriptor = -1
            return self._at


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
        os.ftruncate(marks, HEAD.size + max(1, -(-size // UNIT)))
        os.pwrite(marks, head(name), 0)
        fcntl.flock(marks, fcntl.LOCK_SH)
    elif status.st_size != size:
        forget(os.path.dirname(os.readlink(f"/proc/self/fd/{data}")))
        return False
    return True


@contextlib.contextmanager
def _lock_range(data: int, start: int, stop: int, wait: bool) -> Iterator[int]:
    """Lock a range for this thread, on the node; without `wait`, raises BlockingIOError if it is locked."""
    descriptor = os.open(f"/proc/self/fd/{data}", os.O_RDWR | os.O_CLOEXEC)  # the lock belongs to the open file
    try:
        lock_start = start // UNIT * UNIT
        lock = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, lock_start, -(-stop // UNIT) * UNIT - lock_start, 0)
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, lock)
        yield descriptor
    finally:
        os.close(descriptor)


def _join_places(places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join stretches that touch or nearly touch."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(places):
        if joined and start - joined[-1][1] <= (joined[-1][1] - joined[-1][0]) // HOLE_DIVISOR:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


HEAD_BYTES = 1 << 16  # bound on the header of a trajectory
VECTORS = ("coordinates", "velocities", "forces")
VECTOR_BYTES = 12


class Part(NamedTuple):
    """A variable's bytes in a record: their offset, their number, and whether they are a vector per atom."""

    start: int
    n_bytes: int
    of_atoms: bool


class Records(NamedTuple):
    """Places of a file's records: of `size` bytes each, the first at byte `start`; `time` is the part with the time."""

    start: int
    size: int
    n_records: int
    parts: tuple[Part, ...]
    time: Part | None

    def places(self, index: int, needed: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield the byte ranges of a frame, with vectors of the first `needed` atoms only (None: of all)."""
        record_start = self.start + self.size * index
        for part in self.parts:
            is_partial = needed is not None and part.of_atoms
            n_bytes = min(part.n_bytes, VECTOR_BYTES * (needed or 0)) if is_partial else part.n_bytes
            yield record_start + part.start, record_start + part.start + n_bytes

    def skipped_bytes(self, needed: int | None) -> int:
        """Return the bytes of a frame that `places` leaves out."""
        if needed is None:
            return 0
        return sum(max(0, part.n_bytes - VECTOR_BYTES * needed) for part in self.parts if part.of_atoms)

    def times(self) -> Iterator[tuple[int, int]]:
        """Yield the byte ranges of all frames' times."""
        if self.time is not None:
            for index in range(self.n_records):
                record_start = self.start + self.size * index + self.time.start
                yield record_start, record_start + self.time.n_bytes


def read_records(mirror: Mirror) -> Records | None:
    """Return the places of a NetCDF file's records; None for other files and layouts."""
    from scipy.io import netcdf_file

    mirror.ensure(0, HEAD_BYTES)
    try:
        file = netcdf_file(mirror.path, mmap=True)
    except Exception:  # reading the whole file reports it
        return None
    variables = {name: var for name, var in file.variables.items() if var.isrec}
    if file._recs <= 0 or not variables:
        return None
    places = {name: var.data.__array_interface__["data"][0] for name, var in variables.items()}
    base = file._mm_buf.__array_interface__["data"][0]
    size = next(iter(variables.values())).data.strides[0]
    start = min(places.values()) - base
    if start > HEAD_BYTES or start + size * file._recs > mirror.state.size + 4:
        return None
    parts = {
        name: Part(places[name] - base - start, var.data[0].nbytes if var.data.ndim > 1 else var.itemsize(), False)
        for name, var in variables.items()
    }
    for name in parts.keys() & set(VECTORS):
        parts[name] = parts[name]._replace(of_atoms=True)
    sorted_parts = tuple(sorted(parts.values()))
    count = int(file._recs)
    del variables
    return Records(int(start), int(size), count, sorted_parts, parts.get("time"))
