"""Children of this process that do a piece of work each: `in_children()`, without MPI; `cannot_fork()`.

A child has all that this process has, nothing to import and nothing to be sent; what it found comes back by a pipe. No
child outlives the process that forked it, nor the generator that gives what they found.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import select
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from himach.errors import RankError
from himach.launch.spawn import LAUNCHER, died
from himach.parallel import last_words, process_exit
from himach.parallel.quiet import flush_all

__all__ = ["cannot_fork", "in_children"]

LOOK_EVERY = 0.1  # seconds between looks at how far they are
ROOM = 1 << 20  # bytes that are read at once
LENGTH = 8  # bytes that say how many follow
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt()
PAUSE_SOFTLY = 1  # of omp_pause_resource_all()
KEPT_MEMORY, LARGE_ARRAY = 128 << 20, 32 << 20  # bytes; the second is the most that glibc takes

#: What a child does, given its number and what takes its count of what is done; and returns what it found.
Work = Callable[[int, Callable[[int], None]], bytes]


def cannot_fork() -> str:
    """Return why this process shall not go on as several; "" if it may.

    A thread of Python's may hold a lock that nobody would release in a child. The library of MPI does not allow it.
    OpenBLAS sees to its threads itself, and GNU's OpenMP is told to (`_rest_openmp`).
    """
    if os.environ.get(LAUNCHER) == "mpiexec":
        return f"${LAUNCHER} is mpiexec"
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized():
        return "it has initialised MPI"
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not _is_monitor(thread):
            return f"it has a thread {thread.name}"
    return ""


def _is_monitor(thread: threading.Thread) -> bool:
    """Tell whether this is the thread that redraws the bars of tqdm, whose one lock a child gets anew."""
    tqdm = sys.modules.get("tqdm")
    return tqdm is not None and isinstance(thread, tqdm.TMonitor)


def in_children(
    size: int, work: Work, watch: Callable[[int], object] = lambda done: None
) -> Generator[tuple[int, bytes], None, None]:
    """Have `size` children work, and give the number of each with what it found, as they come.

    To be closed (`contextlib.closing`): that ends those that are left.

    Parameters
    ----------
    size
        Number of children.
    work
        What each does; an exception that passes ends the child, with its traceback on standard error.
    watch
        Called now and then with the sum of their counts.

    Raises
    ------
    RankError
        If they cannot all be started, or one died.
    """
    counts = np.frombuffer(mmap.mmap(-1, 8 * size), dtype=np.int64)
    children: list[_Child] = []
    words = os.memfd_create("himach-last-words")
    os.ftruncate(words, size * last_words.PLACE)

    def speaking(number: int, count: Callable[[int], None]) -> bytes:
        last_words.write_to(f"/proc/self/fd/{words}", number)
        return work(number, count)

    _rest_openmp()
    try:
        for number in range(size):
            with _signals_later() as restore:  # what they raise must find the child known
                children.append(_fork(number, size, speaking, counts, restore))
        yield from _gather(children, words, lambda: watch(int(counts.sum())))
    finally:
        for child in children:  # all of them before one is waited for
            child.kill()
        for child in children:
            child.end()
        os.close(words)


def _rest_openmp() -> None:
    """Let GNU's OpenMP end its threads, which it begins anew: a child would wait for them for ever."""
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        for library in {line.split(None, 5)[5].strip() for line in maps if "libgomp" in line}:
            with contextlib.suppress(OSError, AttributeError):  # of GCC 9 and later
                ctypes.CDLL(library).omp_pause_resource_all(PAUSE_SOFTLY)


@contextlib.contextmanager
def _signals_later() -> Iterator[Callable[[], None]]:
    """Let Python's handlers of signals run when the context is over; a child calls what this gives.

    To block signals is not enough: the kernel may give them to a thread of a numerical library.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None  # they do not run here
        return
    came: list[int] = []
    before = {number: handler for number in signal.valid_signals() if callable(handler := signal.getsignal(number))}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    try:
        for number in before:
            signal.signal(number, lambda number, frame: came.append(number))
        yield restore
    finally:
        restore()
        for one in sorted(came, reverse=True):  # SIGINT, which raises, among the last
            signal.raise_signal(one)


@dataclass
class _Child:
    """A child, as this process knows it."""

    process: int
    pipe: int
    heard: bytearray = field(default_factory=bytearray)
    ended: bool = False

    def hear(self) -> bool:
        """Take in what it writes; return False when its end is closed."""
        chunk = os.read(self.pipe, ROOM)
        self.heard += chunk
        return bool(chunk)

    @property
    def found(self) -> bytes | None:
        """What it found; None unless it has said all of it."""
        length = int.from_bytes(self.heard[:LENGTH], "little")
        return bytes(self.heard[LENGTH:]) if len(self.heard) == LENGTH + length else None

    def wait(self) -> int:
        """Wait for its end, and return its status, as that of a launcher that started it."""
        self.ended = True
        try:
            _, status = os.waitpid(self.process, 0)
        except ChildProcessError:  # this process has said that it does not want to know
            return 0
        code = os.waitstatus_to_exitcode(status)
        return 128 - code if code < 0 else code

    def kill(self) -> None:
        """Have it end, unless it has."""
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process, signal.SIGKILL)

    def end(self) -> None:
        """Leave nothing of it, once it was killed."""
        os.close(self.pipe)
        if not self.ended:
            self.wait()


def _fork(number: int, size: int, work: Work, counts: npt.NDArray[np.int64], restore: Callable[[], object]) -> _Child:
    """Fork a child, which never returns from here, and calls `restore` to have its signals handled again."""
    reading, writing = os.pipe()
    flush_all()  # else what waits to be printed would be printed twice
    parent, collects = os.getpid(), gc.isenabled()
    gc.disable()  # until the child has put aside what it must not finalize
    mask = signal.pthread_sigmask(
        signal.SIG_BLOCK, signal.valid_signals()
    )  # an exception would make it a second parent
    try:
        with warnings.catch_warnings(), _bars_at_rest():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12 on: that there are threads
            process = os.fork()
            if process == 0:
                restore()
                _live(parent, number, writing, partial(signal.pthread_sigmask, signal.SIG_SETMASK, mask), work, counts)
    except OSError as error:
        os.close(reading)
        raise RankError(f"only {number} of {size} ranks could be started: {error.strerror}") from None
    finally:
        os.close(writing)
        if collects:
            gc.enable()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return _Child(process, reading)


@contextlib.contextmanager
def _bars_at_rest() -> Iterator[None]:
    """Have no thread draw bars while the context lasts."""
    tqdm = sys.modules.get("tqdm")
    with contextlib.nullcontext() if tqdm is None or tqdm.tqdm.monitor is None else tqdm.tqdm.get_lock():
        yield


def _live(
    parent: int, number: int, pipe: int, unblock: Callable[[], object], work: Work, counts: npt.NDArray[np.int64]
) -> NoReturn:
    """Be a child; of signals there are none before `unblock`."""
    status = 1
    try:
        _settle(parent)
        unblock()

        def count(done: int) -> None:
            counts[number] = done

        with process_exit.working():
            found = work(number, count)
        with open(pipe, "wb") as file:
            file.write(len(found).to_bytes(LENGTH, "little"))
            file.write(found)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        flush_all()
        os._exit(status)


def _settle(parent: int) -> None:
    """Be a process of its own: to the kernel, to the garbage collector, to tqdm, and to who asks for random numbers."""
    process_exit.set_parent_death_signal(parent)
    kernel = ctypes.CDLL(None)
    # What one frame needs the next one needs too: glibc gives it back to the kernel in between, which clears it.
    with contextlib.suppress(AttributeError):  # of glibc's
        kernel.mallopt(TRIM_THRESHOLD, KEPT_MEMORY)
        kernel.mallopt(MMAP_THRESHOLD, LARGE_ARRAY)
    gc.freeze()  # what the parent has is its own to finalize: a reader may wait for threads that are not here
    gc.enable()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its children
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    tqdm = sys.modules.get("tqdm")
    if tqdm is not None:
        tqdm.tqdm.set_lock(threading.RLock())  # the one before is shared with processes, which may be killed with it
        if tqdm.tqdm.monitor is not None:
            tqdm.tqdm.monitor_interval, tqdm.tqdm.monitor = 0, None
    np.random.seed()  # noqa: NPY002 - all would draw the same; Python's own is seeded anew by fork()


def _gather(children: list[_Child], words: int, watch: Callable[[], object]) -> Iterator[tuple[int, bytes]]:
    """Give what the children found, as they end."""
    poll = select.poll()
    by_pipe = {child.pipe: number for number, child in enumerate(children)}
    for pipe in by_pipe:
        poll.register(pipe, select.POLLIN)
    while by_pipe:
        for pipe, _ in poll.poll(1000 * LOOK_EVERY):
            number = by_pipe[pipe]
            child = children[number]
            if child.hear():
                continue
            poll.unregister(pipe)
            del by_pipe[pipe]
            status, found = child.wait(), child.found
            if status or found is None:
                raise RankError(died(status, len(children), words, number))
            yield number, found
        watch()
