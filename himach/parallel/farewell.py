"""What a process still does when SIGTERM comes: `before_termination()`.

Within an MPI call, or a long one of any library, Python's handlers wait for its end. The byte that the interpreter
writes into a pipe does not: a thread reads it, does what is left to do, and ends the process by that signal after all.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from himach.parallel.environment import promised_ranks

__all__ = ["before_termination"]

END = b"\0"  # is the number of no signal
OTHERS_WRITE = 0.5  # seconds left to other ranks that are told to end, too: a launcher kills them when one has ended


@contextmanager
def before_termination(last: Callable[[], object]) -> Iterator[None]:
    """Call `last`, in another thread, before SIGTERM ends this process; for as long as this context lasts.

    Where SIGTERM is not left to the system, or somebody else waits for signals in this way, nothing is done: then the
    process ends by itself, or goes on.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    taken = _take(writer)
    if not taken:
        os.close(reader)
        os.close(writer)
        yield
        return
    thread = threading.Thread(target=_watch, args=(reader, last), name="himach-farewell", daemon=True)
    thread.start()
    try:
        yield
    finally:
        _give_back()
        os.write(writer, END)  # closing it would not do where a child that was forked meanwhile has it too
        thread.join()
        os.close(writer)
        os.close(reader)


def _take(writer: int) -> bool:
    """Have SIGTERM write to a pipe instead of ending this process; False if that is not ours to do."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return False
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before)
        return False
    signal.signal(signal.SIGTERM, _nothing)
    return True


def _give_back() -> None:
    """Leave SIGTERM to the system if it is ours."""
    if signal.getsignal(signal.SIGTERM) is _nothing:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


# A child that user's code forks has no thread that waits; its SIGTERM would be taken for this process's.
os.register_at_fork(after_in_child=_give_back)


def _nothing(signum: int, frame: FrameType | None) -> None:
    """Wait for the thread."""


def _watch(reader: int, last: Callable[[], object]) -> None:
    while (number := os.read(reader, 1)) != END:
        if number[0] == signal.SIGTERM:
            try:
                last()
                if promised_ranks() > 1:
                    time.sleep(OTHERS_WRITE)
            finally:
                ctypes.CDLL(None).signal(signal.SIGTERM, None)  # Python's own may be called by the main thread alone
                os.kill(os.getpid(), signal.SIGTERM)
