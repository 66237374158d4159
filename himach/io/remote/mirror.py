"""What of a file elsewhere has come to this node: `Mirror`, a local file with holes, and which of its blocks are there.

All processes of a node have one. Who wants bytes that are not there locks their place, asks for those that are still
missing, writes them, and marks them. So each byte is asked for once on a node, and what came before a process was
killed is there for the next one. A block is marked after it was written whole, and never from an answer of which any
head tells that it is of something else.
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
from pathlib import Path

import numpy as np
import numpy.typing as npt

from himach.io.remote import patience
from himach.io.remote.errors import PassingError, RemoteError
from himach.io.remote.place import MARKS, folder_of
from himach.io.remote.transport import RemoteState, Transport
from himach.io.remote.url import suffixed

__all__ = ["Mirror"]

BLOCK = 64  # bytes, of which a bit tells that they are there
UNIT = 8 * BLOCK  # whose bits are a byte: places are locked by this
REQUEST_BYTES = 4 << 20
WORKERS = 8  # requests of a process that are under way ahead of what is read
HOLE_DIVISOR = 16  # what lies between two stretches is asked for with them if it is so much smaller
PROGRESS_BYTES = 1 << 16  # after which patience begins anew
SLOW_SECONDS, SLOW_RATE = 60.0, 1024.0  # an answer that goes on for so long brings so many bytes a second
KEPT_BYTES = 8 << 20  # of the beginning and of the end that are left when nobody reads any more, for the next opening
SMALL_BYTES = 64 << 20  # what is left of any file

_LOCK = struct.Struct("hhqqi4x")  # struct flock of Linux on 64 bits


class Mirror:
    """A file elsewhere, as this node has it.

    Parameters
    ----------
    transport
        Asks for its bytes.
    state
        What it was when it was opened: bytes of another content are refused.

    Attributes
    ----------
    most
        Whether most of it will be read, so that who walks over it brings all.
    complete
        Whether all of it was found to be there.
    fetched
        Bytes that this process has asked for.
    path
        Of the local file, of the size of the one elsewhere; what was not asked for reads as zeros.
    """

    def __init__(self, transport: Transport, state: RemoteState) -> None:
        self.transport, self.state = transport, state
        folder = folder_of(transport.name, state)
        os.utime(folder)
        self.path = os.fspath(folder / suffixed(transport.name))
        self._data = _opened(self.path, state.size)
        n_bits = -(-state.size // UNIT) * 8
        self._marks = _opened(os.fspath(Path(folder, MARKS)), max(1, n_bits // 8))
        fcntl.flock(self._marks, fcntl.LOCK_SH)
        self._there = np.frombuffer(mmap.mmap(self._marks, max(1, n_bits // 8)), np.uint8)
        self._lock = threading.Lock()
        self._busy = 0
        self._jobs: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._workers: list[threading.Thread] = []
        self._waiting: set[tuple[int, int]] = set()
        self._ended = threading.Event()
        self._streamed = -1
        self.most = self.complete = False
        self.fetched = 0

    def ensure(self, begin: int, end: int) -> None:
        """Return when these bytes are there.

        Raises
        ------
        RemoteError
            They cannot be had, or are not any more those of the file.
        """
        end = min(end, self.state.size)
        if self.complete or begin >= end or self._has(begin, end):
            return
        for some in self._requests(begin, end):
            self._bring(*some, wait=True)
        self.complete = self.complete or (begin <= 0 and end == self.state.size)

    def ask(self, places: Iterable[tuple[int, int]]) -> None:
        """Have bytes brought that are read soon; returns at once and never raises."""
        for begin, end in _joined(places):
            for some in self._requests(max(0, begin), min(end, self.state.size)):
                if some not in self._waiting and not self._has(*some):
                    self._waiting.add(some)
                    self._jobs.put(some)
        while len(self._workers) < min(WORKERS, self._jobs.qsize()):
            self._workers.append(threading.Thread(target=self._work, name="himach-remote", daemon=True))
            self._workers[-1].start()

    def stream(self, at: int, until: int) -> None:
        """Return when a byte is there, and have those behind it brought, as far as a byte that belongs to others."""
        first = at // REQUEST_BYTES * REQUEST_BYTES
        if first == self._streamed:
            return
        self._streamed = first
        self.ask([(first, min(until, first + WORKERS * REQUEST_BYTES))])
        self._bring(first, min(first + REQUEST_BYTES, self.state.size), wait=True)

    def close(self) -> None:
        """Close the file; the last process of the node that does so leaves little more than what opening it takes."""
        self._ended.set()
        for _ in self._workers:
            self._jobs.put((0, 0))
        if self._busy:  # requests are not waited for; the end of this process closes all
            return
        with contextlib.suppress(OSError):
            fcntl.flock(self._marks, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._shrink()
        fcntl.flock(self._marks, fcntl.LOCK_UN)
        self._there = np.empty(0, np.uint8)  # the memory of the marks has a descriptor, too
        for descriptor in (self._data, self._marks):
            os.close(descriptor)

    def _requests(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        if not self.state.ranged:
            begin, end = 0, self.state.size
        step = REQUEST_BYTES if self.state.ranged else max(1, end)
        for place in range(begin, end, step):
            yield place, min(end, place + step)

    def _has(self, begin: int, end: int) -> bool:
        return not len(self._missing(begin, end))

    def _missing(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the stretches of these bytes that are not there, as whole blocks."""
        first, last = begin // BLOCK, -(-end // BLOCK)
        bits = np.unpackbits(self._there[first // 8 : -(-last // 8)], bitorder="little")
        some = bits[first % 8 : first % 8 + last - first]
        if some.all():
            return []
        edges = np.flatnonzero(np.diff(np.concatenate([[1], some, [1]]).astype(np.int8)))
        return [
            ((first + int(one)) * BLOCK, min((first + int(other)) * BLOCK, self.state.size))
            for one, other in edges.reshape(-1, 2)
        ]

    def _bring(self, begin: int, end: int, wait: bool) -> None:
        """Ask for what is missing of these bytes; unless `wait`, not for what another one asks for just now."""
        with self._lock:
            self._busy += 1
        try:
            with contextlib.suppress(BlockingIOError), _locked(self.path, begin, end, wait) as descriptor:
                for stretch in self._missing(begin, end):
                    self._fetch(descriptor, *stretch)
        finally:
            with self._lock:
                self._busy -= 1

    def _fetch(self, descriptor: int, begin: int, end: int) -> None:
        """Ask for bytes, again where that can help, and go on where an answer ended."""
        pauses = iter(patience.PAUSES)
        at = begin
        while at < end:
            arriving = _Arriving(descriptor, at)
            try:
                self.transport.read(at, end, self.state, arriving)
            except PassingError as error:
                if arriving.error is not None:
                    raise self._unwritten(arriving.error) from None
                if arriving.n_bytes >= PROGRESS_BYTES and self.state.ranged:
                    pauses = iter(patience.PAUSES)
                pause = next(pauses, None)
                if pause is None or self._ended.wait(max(pause, error.after)):
                    raise patience.gave_up(self.transport.name, error) from None
            finally:
                self.fetched += arriving.n_bytes
                at = arriving.stop()
                if at < end and not self.state.ranged:
                    at = begin
                self._mark(begin, at)

    def _unwritten(self, error: OSError) -> RemoteError:
        return RemoteError(
            self.transport.name,
            f"what comes cannot be written to {os.path.dirname(self.path)} ({error.strerror}); make room, or name a "
            "folder on another disk by $TMPDIR",
            error.errno or errno.EIO,
        )

    def _mark(self, begin: int, end: int) -> None:
        """Note the blocks that are there whole."""
        first, last = -(-begin // BLOCK), end // BLOCK if end < self.state.size else -(-end // BLOCK)
        if first >= last:
            return
        some = slice(first // 8, -(-last // 8))
        bits = np.unpackbits(self._there[some], bitorder="little")
        bits[first % 8 : first % 8 + last - first] = 1
        self._there[some] = np.packbits(bits, bitorder="little")

    def _work(self) -> None:
        while not self._ended.is_set():
            some = self._jobs.get()
            with contextlib.suppress(OSError):  # who reads them tells
                if some[0] < some[1]:
                    self._bring(*some, wait=False)
            self._waiting.discard(some)

    def _shrink(self) -> None:
        """Leave of a large file its beginning and its end."""
        if os.fstat(self._data).st_blocks * 512 <= SMALL_BYTES:
            return
        size = self.state.size
        kept = [(0, KEPT_BYTES), (size // UNIT * UNIT - KEPT_BYTES, size)]
        contents = [(begin, os.pread(self._data, end - begin, begin), self._bits(begin, end)) for begin, end in kept]
        self._there[:] = 0
        os.ftruncate(self._data, 0)
        os.ftruncate(self._data, size)
        for begin, content, bits in contents:
            os.pwrite(self._data, content, begin)
            self._there[begin // UNIT : begin // UNIT + len(bits)] = bits

    def _bits(self, begin: int, end: int) -> npt.NDArray[np.uint8]:
        return self._there[begin // UNIT : -(-end // UNIT)].copy()


class _Arriving:
    """Writes the bytes of an answer to their place as they come; refuses an answer that goes on for ever."""

    def __init__(self, descriptor: int, at: int) -> None:
        self._descriptor, self._at = descriptor, at
        self.n_bytes = 0
        self.error: OSError | None = None
        self._began = time.monotonic()
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
        taken = time.monotonic() - self._began
        if taken > SLOW_SECONDS and self.n_bytes < SLOW_RATE * taken:
            raise PassingError(f"only {self.n_bytes} bytes came in {taken:.0f} s")

    def stop(self) -> int:
        """Take no more, and return the byte behind the last one: who was interrupted may be sent some still."""
        with self._lock:
            self._descriptor = -1
            return self._at


def _opened(path: str, size: int) -> int:
    """Return a descriptor of a file of this size; it is made if it is not there."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if os.fstat(descriptor).st_size != size:
        os.ftruncate(descriptor, size)
    return descriptor


@contextlib.contextmanager
def _locked(path: str, begin: int, end: int, wait: bool) -> Iterator[int]:
    """Have a place for this thread alone, on the node; raises BlockingIOError where it is to be had by waiting only."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        start = begin // UNIT * UNIT
        lock = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, -(-end // UNIT) * UNIT - start, 0)
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, lock)
        yield descriptor
    finally:
        os.close(descriptor)


def _joined(places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join stretches that touch, or almost."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(places):
        if joined and begin - joined[-1][1] <= (joined[-1][1] - joined[-1][0]) // HOLE_DIVISOR:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined
