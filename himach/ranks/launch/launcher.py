"""A launcher that forks itself into ranks: `fork_ranks()`, called after all imports and before any thread starts.

It answers MPI's requests to a launcher (PMI-1). When all ranks have done their part it forks others or exits with 0.
When one fails, or the process at the other end of its standard input ends, it kills the others and exits with the
status of the first that failed. It is the parent of its ranks, so that the kernel ends them with it.
"""

import contextlib
import gc
import os
import secrets
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from himach.errors import RankError
from himach.ranks import process_exit, segments

#: Start of MPICH's version text, and words of its configuration that mean another launcher than its own.
MPICH = "MPICH Version"
ELSEWHERE = ("--with-pmi", "--with-slurm", "--with-pals", "--with-pm=")
HYDRA = "--with-pm=hydra"
#: Most bytes of names, keys and values, as in MPICH's own launcher.
NAME, KEY, VALUE = 256, 64, 1024
#: Signals to the launcher that are meant for its ranks.
FORWARDED = (signal.SIGUSR1, signal.SIGTERM)


def speaks_pmi(library: str) -> bool:
    """Tell whether `fork_ranks` can start ranks of the MPI library with this version text."""
    name = library.replace(HYDRA, "")
    return library.startswith(MPICH) and not any(word in name for word in ELSEWHERE)


def fork_ranks(
    size: int, again: Callable[[], bool] = lambda: False, died: Callable[[int], object] = lambda rank: None
) -> int:
    """Fork `size` ranks: return in each of them, never in this process.

    Each has an end of a pipe: the others may read from it until the first rank, which can write, closes its end.
    """
    while True:
        start_time = time.time()
        gc.freeze()  # ranks' collectors skip what exists now, so that its memory stays shared
        ranks = _fork_each(size)
        if isinstance(ranks, int):
            return ranks
        status = _Launcher(ranks, died).serve()
        if status:
            segments.sweep(start_time)
        if status is not None or not again():
            sys.stdout.flush()
            os._exit(status or 0)


def _fork_each(size: int) -> "list[_Rank] | int":
    """Fork ranks; return them here, and in each of them its end of the gate."""
    parent = os.getpid()
    reader, writer = os.pipe()
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
            _become(number, size, rank_end.detach())
            own, other = (writer, reader) if number == 0 else (reader, writer)
            os.close(other)
            return own
        rank_end.close()
        ranks.append(_Rank(process, own_end))
    os.close(reader)
    os.close(writer)
    return ranks


def _become(number: int, size: int, line: int) -> None:
    """Set up this rank: its variables for MPI, random numbers, and its end."""
    import numpy as np

    np.random.seed()  # noqa: NPY002 - all ranks would draw the same; Python's own is seeded anew by fork()
    os.environ.update(PMI_FD=str(line), PMI_RANK=str(number), PMI_SIZE=str(size))
    os.environ.update(MPI_LOCALRANKID=str(number), MPI_LOCALNRANKS=str(size))  # as MPICH's own launcher has it
    process_exit.skip_teardown()


@dataclass
class _Rank:
    """A rank as its launcher sees it."""

    process: int
    line: socket.socket
    buffer: bytes = b""
    ended: bool = False


class _Launcher:
    """Answers ranks and waits for their end."""

    def __init__(self, ranks: Sequence[_Rank], died: Callable[[int], object]) -> None:
        self._ranks = ranks
        self._died = died
        self._values = KeyValues(len(ranks))
        self._status: int | None = None  # of the first rank that failed

    def serve(self) -> int | None:
        """Serve until all ranks have ended; return the status of the first that failed, None if none did."""
        woken, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        handlers = {signal.SIGCHLD: lambda signum, frame: None, **dict.fromkeys(FORWARDED, self._forward)}
        before = {signum: signal.signal(signum, handler) for signum, handler in handlers.items()}
        try:
            self._serve(woken)
        finally:  # ranks forked later must not inherit this
            for signum, handler in before.items():
                signal.signal(signum, handler)
            signal.set_wakeup_fd(-1)
            for descriptor in (woken, waker):
                os.close(descriptor)
            for rank in self._ranks:
                rank.line.close()
        return self._status

    def _serve(self, woken: int) -> None:
        poll = select.poll()
        poll.register(woken, select.POLLIN)
        poll.register(0, 0)  # its other end is closed
        by_line = {rank.line.fileno(): rank for rank in self._ranks}
        for line in by_line:
            poll.register(line, select.POLLIN)
        running = self._reap()
        while running:
            for descriptor, _ in poll.poll():
                if descriptor == woken:
                    os.read(descriptor, 4096)
                    running = self._reap()
                elif descriptor == 0:
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

    def _forward(self, signum: int, frame: object) -> None:
        for rank in self._ranks:
            with contextlib.suppress(ProcessLookupError):  # it has just been waited for
                if not rank.ended:
                    os.kill(rank.process, signum)

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
        return bool(received)

    def _answer(self, number: int, line: str) -> None:
        for to, words in self._values.answer(number, line):
            with contextlib.suppress(OSError):  # the rank has ended, which _reap() handles
                self._ranks[to].line.sendall(words)


class KeyValues:
    """PMI-1, the line protocol by which MPICH's ranks find each other: values that they exchange, without I/O.

    A rank finds a socket in ``$PMI_FD``, its number in ``$PMI_RANK`` and how many there are in ``$PMI_SIZE``. Each line
    is a command with words ``key=value`` and gets one line as its answer (a barrier's when all ranks have come).
    """

    def __init__(self, size: int) -> None:
        self.finalized: set[int] = set()
        self.aborted: int | None = None
        self._size = size
        # MPICH names its shared memory by a digest of this name, so that each world needs its own.
        self._name = f"kvs_{os.getpid()}_{secrets.token_hex(8)}_{socket.gethostname()}"[: NAME - 1]
        self._values = {"PMI_process_mapping": f"(vector,(0,1,{size}))"}
        self._waiting: set[int] = set()

    def answer(self, rank: int, line: str) -> list[tuple[int, bytes]]:
        """Return the answers to a line of this rank: lines, each with the rank that gets it."""
        if line == "endcmd":  # of MPI_Comm_spawn, the only command of several lines
            return [(rank, b"cmd=spawn_result rc=-1 errcodes=1 msg=ranks_start_no_ranks\n")]
        if not line.startswith("cmd="):
            return []
        words = dict(word.split("=", 1) for word in line.split(" ") if "=" in word)
        command = words.get("cmd", "")
        if command == "barrier_in":
            return self._barrier(rank)
        if command == "abort":
            self.aborted = int(words.get("exitcode", 1))
            return []
        if command == "finalize":
            self.finalized.add(rank)
        return [(rank, f"{self._answer(command, words, line)}\n".encode())]

    def _answer(self, command: str, words: dict[str, str], line: str) -> str:
        if command == "put":
            self._values[words["key"]] = line.partition("value=")[2]
            return "cmd=put_result rc=0 msg=success"
        if command == "get":
            value = self._values.get(words["key"])
            if value is None:
                return f"cmd=get_result rc=-1 msg=key_{words['key']}_not_found value=unknown"
            return f"cmd=get_result rc=0 msg=success value={value}"
        return {
            "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "get_maxes": f"cmd=maxes kvsname_max={NAME} keylen_max={KEY} vallen_max={VALUE} rc=0",
            "get_appnum": "cmd=appnum appnum=0 rc=0",
            "get_my_kvsname": f"cmd=my_kvsname kvsname={self._name} rc=0",
            "get_universe_size": f"cmd=universe_size size={self._size} rc=0",
            "finalize": "cmd=finalize_ack rc=0",
        }.get(command, f"cmd={command}_result rc=-1 msg=unknown_command")

    def _barrier(self, rank: int) -> list[tuple[int, bytes]]:
        self._waiting.add(rank)
        if len(self._waiting) < self._size:
            return []
        self._waiting.clear()
        return [(member, b"cmd=barrier_out rc=0\n") for member in range(self._size)]


def _kill(ranks: Sequence[_Rank]) -> None:
    for rank in ranks:
        if not rank.ended:  # its pid is not another's: it was not waited for
            os.kill(rank.process, signal.SIGKILL)
