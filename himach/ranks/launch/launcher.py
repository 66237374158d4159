"""A launcher that forks itself into ranks: `fork_ranks()`, called after all imports and before any thread starts.

It answers MPI's requests to a launcher (PMI-1). When all ranks have done their part it forks others or exits with 0.
When one fails it kills the others and exits with the status of the first that failed. It is the parent of its ranks,
so that the kernel ends them with it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from himach.errors import RankError
from himach.ranks import process_exit, segments
from himach.ranks.launch.pmi import FINALIZE, KeyValues

#: Start of MPICH's version text, and words of its configuration that mean another launcher than its own.
MPICH = "MPICH Version"
ELSEWHERE = ("--with-pmi", "--with-slurm", "--with-pals", "--with-pm=")
HYDRA = "--with-pm=hydra"
LONGEST = 1 << 20  # most bytes of a rank's line; MPICH's are shorter than 2,000


def has_threads() -> bool:
    """Tell whether this process has other threads, which a forked process would lack."""
    return len(os.listdir("/proc/self/task")) > 1


def speaks_pmi(library: str) -> bool:
    """Tell whether `fork_ranks` can start ranks of the MPI library with this version text."""
    name = library.replace(HYDRA, "")
    return library.startswith(MPICH) and not any(word in name for word in ELSEWHERE)


def fork_ranks(
    size: int,
    starter: int,
    again: Callable[[], bool] = lambda: False,
    died: Callable[[int], object] = lambda rank: None,
) -> None:
    """Fork `size` ranks: return in each of them, never in this process."""
    while True:
        start_time = time.time()
        gc.freeze()  # ranks' collectors skip what exists now, so that its memory stays shared
        ranks = _fork_each(size, starter)
        if ranks is None:
            return
        status = _Launcher(ranks, starter, died).serve()
        if status:
            segments.sweep(start_time)
        if status is not None or not again():
            sys.stdout.flush()
            os._exit(status or 0)


def _fork_each(size: int, starter: int) -> list[_Rank] | None:
    """Fork ranks; return them here, and None in each of them."""
    parent = os.getpid()
    ranks: list[_Rank] = []
    for number in range(size):
        own_end, rank_end = socket.socketpair()
        try:
            process = os.fork()
        except OSError as error:
            _kill(ranks)
            raise RankError(f"only {number} of {size} ranks could be started: {error.strerror}") from None
        if process == 0:
            process_exit.set_parent_death_signal(parent)
            for line in (own_end, *(rank.line for rank in ranks)):
                line.close()
            os.close(starter)
            _become(number, size, rank_end.detach())
            return None
        rank_end.close()
        ranks.append(_Rank(process, own_end))
    return ranks


def _become(number: int, size: int, line: int) -> None:
    """Set up this rank: its variables for MPI, random numbers, and the message at its end."""
    import numpy as np

    np.random.seed()  # noqa: NPY002 - all ranks would draw the same; Python's own is seeded anew by fork()
    os.environ.update(PMI_FD=str(line), PMI_RANK=str(number), PMI_SIZE=str(size))
    os.environ.update(MPI_LOCALRANKID=str(number), MPI_LOCALNRANKS=str(size))  # as MPICH's own launcher has it

    def finalize() -> None:
        # Replaces MPI_Finalize(), in which all ranks wait for each other again, in turn on few processors. By now
        # shared memory has no name, and all ranks have come.
        with contextlib.suppress(OSError):
            os.write(line, FINALIZE)

    process_exit.register_last(finalize)


@dataclass
class _Rank:
    """A rank as its launcher sees it."""

    process: int
    line: socket.socket
    buffer: bytes = b""
    ended: bool = False


class _Launcher:
    """Answers ranks and waits for their end."""

    def __init__(self, ranks: Sequence[_Rank], starter: int, died: Callable[[int], object]) -> None:
        self._ranks = ranks
        self._starter = starter
        self._died = died
        self._values = KeyValues(len(ranks))
        self._status: int | None = None  # of the first rank that failed

    def serve(self) -> int | None:
        """Serve until all ranks have ended; return the status of the first that failed, None if none did."""
        woken, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda signum, frame: None)
        signal.signal(signal.SIGTERM, lambda signum, frame: self._fail(128 + signum))
        try:
            self._serve(woken)
        finally:  # ranks forked later must not inherit this
            for signum in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(signum, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            for descriptor in (woken, waker):
                os.close(descriptor)
            for rank in self._ranks:
                rank.line.close()
        return self._status

    def _serve(self, woken: int) -> None:
        poll = select.poll()
        for descriptor in (woken, self._starter):
            poll.register(descriptor, select.POLLIN)
        by_line = {rank.line.fileno(): rank for rank in self._ranks}
        for line in by_line:
            poll.register(line, select.POLLIN)
        running = self._reap()
        while running:
            for descriptor, _ in poll.poll():
                if descriptor == woken:
                    os.read(descriptor, 4096)
                    running = self._reap()
                elif descriptor == self._starter:
                    poll.unregister(descriptor)
                    self._fail(1)
                elif not self._hear(by_line[descriptor]):
                    poll.unregister(descriptor)

    def _reap(self) -> bool:
        """Note which ranks have ended and how; return whether any is left."""
        for number, rank in enumerate(self._ranks):
            if rank.ended:
                continue
            process, status = os.waitpid(rank.process, os.WNOHANG)
            if process:
                rank.ended = True
                while self._hear(rank):  # what it sent before its end
                    pass
                code = os.waitstatus_to_exitcode(status)
                if code or number not in self._values.finalized:
                    if self._status is None:
                        self._died(number)
                    self._fail(128 - code if code < 0 else code)
        return not all(rank.ended for rank in self._ranks)

    def _fail(self, status: int) -> None:
        """Kill all ranks; the first status counts."""
        if self._status is None:
            self._status = status
            _kill(self._ranks)

    def _hear(self, rank: _Rank) -> bool:
        """Answer a rank's requests; return False when no more will come."""
        try:
            received = rank.line.recv(65536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return not rank.ended
        except OSError:
            return False
        *lines, rank.buffer = (rank.buffer + received).split(b"\n")
        for line in lines:
            self._answer(self._ranks.index(rank), line.decode(errors="replace"))
        if self._values.aborted is not None:
            self._fail(self._values.aborted)
        if len(rank.buffer) > LONGEST:
            self._fail(1)
        return bool(received)

    def _answer(self, number: int, line: str) -> None:
        for to, words in self._values.answer(number, line):
            with contextlib.suppress(OSError):  # the rank has ended, which _reap() handles
                self._ranks[to].line.sendall(words)


def _kill(ranks: Sequence[_Rank]) -> None:
    for rank in ranks:
        if not rank.ended:  # its pid is not another's: it was not waited for
            os.kill(rank.process, signal.SIGKILL)
