"""A process beside a command, which prepares while ranks read and then answers one of them, once: `helping()`.

Request and answer lie in files of memory that only the user's own processes can open, by way of the command's; so that
unpickling them is as safe as running the user's code.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from himach.parallel import process_exit
from himach.parallel.quiet import flush_all

__all__ = ["Helper", "has_threads", "helping"]

#: What a helper does: it calls what it is given to wait for the request, and returns the answer.
Work = Callable[[Callable[[], bytes]], bytes]


def has_threads() -> bool:
    """Tell whether this process has other threads, which a forked one would miss."""
    return len(os.listdir("/proc/self/task")) > 1


@dataclass(frozen=True)
class Helper:
    """A helper, as those know it that may ask; it travels to other processes of this machine.

    Attributes
    ----------
    holder
        The process that began it, and holds what follows.
    shared, ask, answered
        Descriptors of the file of memory and of two pipes: one on which a byte says that the request is there, one for
        the answer, at its end when the helper has ended.
    """

    holder: int
    shared: int
    ask: int
    answered: int

    def begin(self, request: bytes) -> Callable[[], bytes | None]:
        """Have it begin with an answer; return what waits for that, and gives None where it cannot, or did before."""
        with contextlib.suppress(OSError):
            self._write(request)
            with open(self._path(self.ask), "wb", buffering=0) as ask:
                ask.write(b"?")
            return self._answer
        return lambda: None

    def _answer(self) -> bytes | None:
        try:
            with open(self._path(self.answered), "rb", buffering=0) as answered:
                if not answered.read(1):
                    return None
            with open(self._path(self.shared), "rb") as shared:
                return shared.read()
        except OSError:
            return None

    def _write(self, data: bytes) -> None:
        with open(self._path(self.shared), "wb") as shared:
            shared.write(data)

    def _path(self, descriptor: int) -> str:
        return f"/proc/{self.holder}/fd/{descriptor}"


@contextlib.contextmanager
def helping(work: Work) -> Iterator[Helper | None]:
    """Begin a helper, which ends with the context and with this process; None where there can be none."""
    if has_threads():  # what one of them holds would be held for ever in a forked process
        yield None
        return
    holder = os.getpid()
    asked, ask = os.pipe()
    answered, answer = os.pipe()
    shared = os.memfd_create("himach-helper")
    helper = Helper(holder, shared, ask, answered)
    flush_all()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # an interrupt would make it go on as we do
    try:
        process = os.fork()
        if process == 0:
            os.close(ask)
            os.close(answered)
            _live(helper, asked, answer, work, mask)
    except OSError:
        process = -1
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.close(asked)
    os.close(answer)
    try:
        yield None if process < 0 else helper
    finally:
        with contextlib.suppress(ChildProcessError):  # the user's code has waited for it: its number may be another's
            if process > 0 and os.waitpid(process, os.WNOHANG)[0] == 0:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
        for descriptor in (shared, ask, answered):
            os.close(descriptor)


def _live(helper: Helper, asked: int, answer: int, work: Work, mask: Iterable[int]) -> NoReturn:
    """Be the helper. What fails in it is silent: who asks does it himself."""

    def wait() -> bytes:
        if not os.read(asked, 1):
            os._exit(1)
        with open(helper.shared, "rb", closefd=False) as shared:
            shared.seek(0)
            return shared.read()

    try:
        process_exit.set_parent_death_signal(helper.holder)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that began it ends it
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        sys.stdin = open(os.devnull)  # noqa: SIM115 - to the end of the process
        found = work(wait)
        with open(helper.shared, "wb", closefd=False) as shared:
            shared.truncate(0)
            shared.seek(0)
            shared.write(found)
        os.write(answer, b"!")
    finally:
        os._exit(0)
