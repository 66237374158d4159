"""Requests to a run from outside: SIGUSR1 (keep what is mapped), SIGTERM (end) and a deadline.

`StopRequests` handles them in a rank while it maps, `relay_signals()` in a process that started ranks. During an MPI or
other long library call, Python's handlers do not run. The interpreter still writes the signal's number to a pipe: a
thread reads it and ends the process if the main thread does not.
"""

import ctypes
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from time import monotonic
from types import FrameType
from typing import Any, NoReturn

from himach.errors import Interruption
from himach.ranks import process_exit
from himach.ranks.communicator import Communicator
from himach.ranks.process_exit import promised_ranks

LIMIT = 18.0  # most seconds from SIGTERM to the end of a rank that keeps pairs
COMES = 10.0  # seconds of these until the main thread must begin to exit: a frame may take long
OTHERS_WRITE = 0.5  # seconds that a rank without pairs waits to end: a launcher then kills the others
TERMINATED = 128 + signal.SIGTERM
DONE = 7003  # tag of a rank's message that it is done
END = b"\0"  # not the number of a signal

Handler = Callable[[int, FrameType | None], Any]

_current: "StopRequests | None" = None


class Terminated(Interruption):
    """SIGTERM arrived."""


def terminate(signum: int, frame: FrameType | None) -> NoReturn:
    """Raise `Terminated`, so that a process without other ranks cleans up on SIGTERM."""
    raise Terminated


def sigusr1_ignored() -> AbstractContextManager[object]:
    """Ignore SIGUSR1, which asks runs that map to keep pairs and would end this process, while the context lasts."""
    return closing(_Handlers({signal.SIGUSR1: signal.SIG_IGN}))


@contextmanager
def relay_signals(order: Callable[[int], object]) -> Iterator[None]:
    """Pass SIGUSR1 to `order` and raise `Terminated` on SIGTERM, which then ends this process after the context."""
    arrived = False

    def end(signum: int, frame: FrameType | None) -> None:
        nonlocal arrived
        if not arrived:  # a second one must not interrupt the end
            arrived = True
            raise Terminated

    handlers = _Handlers({signal.SIGUSR1: lambda signum, frame: order(signum), signal.SIGTERM: end})
    try:
        with closing(handlers):
            yield
    finally:
        if arrived and handlers.before[signal.SIGTERM] == signal.SIG_DFL:
            process_exit.flush()
            os.kill(os.getpid(), signal.SIGTERM)


class StopRequests:
    """Stop requests to a rank while it maps: a context manager for its main thread, for signals without handlers."""

    def __init__(self, deadline: float | None, last: Callable[[], object], *, comm: Communicator | None = None) -> None:
        self.handled = self.commit = self.ending = False
        # Monotonic: the system clock may be set meanwhile.
        self._until = math.inf if deadline is None else monotonic() + deadline - time.time()
        self._last = last
        self._comm = comm if comm is not None and comm.size > 1 else None
        self._process = os.getpid()
        self._term_time = math.inf  # when SIGTERM came
        self._exiting = threading.Event()  # set when the main thread exits
        self._noticed = threading.Event()  # set by the thread: SIGTERM or the end of the context
        self._writing = threading.Lock()  # held while `last` is called, and for good by an exiting main thread

    @property
    def time_up(self) -> bool:
        """Whether the deadline has passed."""
        return monotonic() > self._until

    def exit_process(self) -> NoReturn:
        """End this process with exit code 143 when all ranks are here, or 18 seconds after SIGTERM."""
        self._exiting.set()
        self._writing.acquire()
        process_exit.flush()
        if self._comm is not None:
            if self._meet(self._comm):
                process_exit.pmi_finalize()
            process_exit.exit_process(TERMINATED)  # launchers report a rank's exit code, not its signal
        self._own_handlers.close()
        if self._own_handlers.before[signal.SIGTERM] is terminate:
            raise Terminated
        _die()

    def _meet(self, comm: Communicator) -> bool:
        """Tell all ranks that this one is done, wait until `LIMIT`, and return whether all are."""
        deadline = min(self._term_time, monotonic()) + LIMIT
        other_ranks = [rank for rank in range(comm.size) if rank != comm.rank]
        requests = [comm.isend(None, dest=rank, tag=DONE) for rank in other_ranks]
        missing = len(other_ranks)
        while (missing or not all(request.Test() for request in requests)) and monotonic() < deadline:
            if comm.iprobe(tag=DONE):
                comm.recv(tag=DONE)
                missing -= 1
            else:
                time.sleep(0.005)
        return not missing

    def __enter__(self) -> "StopRequests":
        global _current
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._own_handlers = _Handlers({signal.SIGUSR1: self._on_commit, signal.SIGTERM: self._on_end}, self._writer)
        _current = self
        self._thread = threading.Thread(target=self._watch, name="himach-stop-requests", daemon=True)
        if signal.SIGTERM in self._own_handlers.before:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        global _current
        if os.getpid() != self._process:  # a child that map() forked and that returned from it
            return
        _current = None
        self._own_handlers.close()
        if self._exiting.is_set():  # by an exception; the thread ends the process in time
            return
        if self._thread.ident is not None:
            os.write(self._writer, END)  # not close(): a child forked meanwhile may hold the pipe open
            self._noticed.wait()
            if self.ending:
                self.exit_process()
            self._thread.join()
        os.close(self._writer)
        os.close(self._reader)

    def _on_commit(self, signum: int, frame: FrameType | None) -> None:
        self.commit = True

    def _on_end(self, signum: int, frame: FrameType | None) -> None:
        """Note it for the map loop, or raise `Terminated` if that was the handler before; else the thread acts."""
        if self.handled:
            self.ending = True
        elif self._own_handlers.before[signal.SIGTERM] is terminate:
            raise Terminated

    def _watch(self) -> None:
        """Wait for SIGTERM in a thread."""
        while (number := os.read(self._reader, 1)) != END:
            if number[0] != signal.SIGTERM:
                continue
            if self.handled:
                self._see_to_the_end()
            elif self._own_handlers.before[signal.SIGTERM] is not terminate:
                self._end_at_once()
        self._noticed.set()

    def _end_at_once(self) -> NoReturn:
        try:
            self._last()
            if promised_ranks() > 1:
                time.sleep(OTHERS_WRITE)
        finally:
            _die()

    def _see_to_the_end(self) -> None:
        """End this process in time if the main thread does not."""
        is_alone = promised_ranks() == 1
        self._term_time = monotonic()
        self.ending = True
        self._noticed.set()
        timer = threading.Timer(LIMIT, _die if is_alone else partial(process_exit.exit_process, TERMINATED))
        timer.daemon = True
        timer.start()
        if not self._exiting.wait(COMES):
            try:
                with self._writing:
                    self._last()
            finally:
                if is_alone:  # else leave the others their time: a launcher kills them when one ends
                    _die()
        timer.join()


class _Handlers:
    """Temporary handlers, in the main thread, of signals that no other code handles."""

    def __init__(self, handlers: Mapping[int, Handler | signal.Handlers], writer: int | None = None) -> None:
        self.before: dict[int, Any] = {}
        self._handlers, self._woken = handlers, False
        if threading.current_thread() is not threading.main_thread():
            return
        if writer is not None:
            woken = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
            self._woken = woken == -1
            if not self._woken:
                signal.set_wakeup_fd(woken)
        for signum, handler in handlers.items():
            before = signal.getsignal(signum)
            free = (signal.SIG_DFL, signal.SIG_IGN if signum == signal.SIGUSR1 else terminate)
            if before in free and (signum != signal.SIGTERM or writer is None or self._woken):
                self.before[signum] = before
                signal.signal(signum, handler)
                if signum == signal.SIGUSR1 and writer is not None:
                    signal.siginterrupt(signum, False)  # restart interrupted system calls

    def close(self) -> None:
        """Restore the previous handlers, except where another was installed meanwhile."""
        for signum, before in self.before.items():
            if signal.getsignal(signum) == self._handlers[signum]:
                signal.signal(signum, before)
        if self._woken:
            signal.set_wakeup_fd(-1)
            self._woken = False


def _hold() -> None:
    """Block SIGTERM in a child until it has dropped our handlers: else it would enter our pipe."""
    global _mask
    _mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _let_go() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask)


def _forget() -> None:
    """Restore signals in a child that user code forked: it has no watching thread, and ends in other ways."""
    if _current is not None:
        _current._own_handlers.close()
    if signal.getsignal(signal.SIGTERM) is terminate:  # a multiprocessing pool ends its workers with it
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _let_go()


_mask: set[int | signal.Signals] = set()
os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_forget)


def _die() -> NoReturn:
    """End this process by SIGTERM from any thread: signal.signal() works in the main thread only."""
    ctypes.CDLL(None).signal(signal.SIGTERM, None)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1)
    raise AssertionError("SIGTERM ends a process")
