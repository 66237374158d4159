"""What a process and the ranks that it starts hand over: work, the result or an error, and the word that it lives.

All of it lies in memory and pipes of the starting process (`Handover`), which ranks (`SpawnedRank`) reach through its
folder in /proc. That only the same user can, so that unpickling what lies there is as safe as running the user's code;
there is no file that somebody would have to remove; and the kernel itself kills the ranks when that process ends, by
SIGKILL too, whatever they are doing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import weakref
from types import TracebackType
from typing import ClassVar, NoReturn, Self

from himach.errors import AnalysisError, HimachError, RankError, TimeUpError, TrajectoryError, UsageError
from himach.parallel import leaving

__all__ = ["Handover", "SpawnedRank"]

#: Environment variable: process and descriptors of the one that started this rank, and what tells its pipe.
STARTED_BY = "HIMACH_STARTED_BY"
KINDS = {
    kind.__name__: kind for kind in (AnalysisError, HimachError, RankError, TimeUpError, TrajectoryError, UsageError)
}
DONE = "done"
SIGNALS = (signal.SIGKILL, signal.SIGUSR1, signal.SIGTERM)
_open: weakref.WeakSet[Handover] = weakref.WeakSet()


class Handover:
    """The side of the process that starts ranks; to be closed.

    Parameters
    ----------
    work
        For the ranks to read.

    Attributes
    ----------
    process
        This process.
    """

    def __init__(self, work: bytes = b"") -> None:
        self._work, self._result, self._words = (
            os.memfd_create(f"himach-{name}") for name in ("work", "result", "words")
        )
        # Only this process has the writing ends. The kernel sends ranks the signal when something is written, which to
        # the first one, the word that this process lives, nothing ever is; or when the end is closed.
        self._lines: dict[int, tuple[int, int]] = {signum: os.pipe() for signum in SIGNALS}
        self.process = os.getpid()
        self.put(work)
        _open.add(self)

    def put(self, work: bytes) -> None:
        """Let the ranks find this work, and nothing that others left."""
        for descriptor, content in ((self._result, b""), (self._words, b""), (self._work, work)):
            os.ftruncate(descriptor, 0)
            with open(descriptor, "r+b", closefd=False) as file:
                file.seek(0)
                file.write(content)

    @property
    def variable(self) -> dict[str, str]:
        """The environment variable by which ranks find this process."""
        return {STARTED_BY: " ".join(map(str, self._numbers()))}

    def _numbers(self) -> tuple[int, ...]:
        """Return what ranks are told: this process, descriptors of its, and what tells its pipes."""
        lines = [number for reader, _ in self._lines.values() for number in (reader, os.fstat(reader).st_ino)]
        return (self.process, self._work, self._result, self._words, *lines)

    def error(self) -> HimachError | None:
        """Return the first error that a rank left."""
        first = next((word for word in self._said() if word["kind"] != DONE), None)
        return None if first is None else KINDS[first["kind"]](first["text"])

    def result(self) -> bytes | None:
        """Return what rank 0 left; None if it ended before."""
        return _content(self._result) if any(word["kind"] == DONE for word in self._said()) else None

    def send(self, signum: int) -> None:
        """Send SIGUSR1 or SIGTERM to every rank that `hold_lifeline`; who comes later learns of SIGTERM then."""
        os.write(self._lines[signum][1], b"\n")

    def end_ranks(self) -> None:
        """Kill the ranks that are left."""
        for reader, writer in self._lines.values():
            os.close(writer)
            os.close(reader)
        self._lines = {}

    def _said(self) -> list[dict[str, str]]:
        lines = _content(self._words).split(b"\n")[:-1]  # a line that a rank was killed in has no end
        return [json.loads(line) for line in lines]

    def __enter__(self) -> Handover:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill the ranks that are left, and let go of all."""
        self.end_ranks()
        for descriptor in (self._work, self._result, self._words):
            os.close(descriptor)

    def let_go(self) -> None:
        """Keep no rank alive; in a child that was forked from the process that started them."""
        self.end_ranks()


def _let_go() -> None:
    for handover in list(_open):
        handover.let_go()


# Ranks end with the process that started them, though children that it forked live on.
os.register_at_fork(after_in_child=_let_go)


class SpawnedRank:
    """The side of a rank.

    Attributes
    ----------
    process
        The process that started this rank.
    """

    NUMBERS: ClassVar = 4 + 2 * len(SIGNALS)

    def __init__(self, process: int, work: int, result: int, words: int, *lines: int) -> None:
        self.process = process
        self._work, self._result, self._words = work, result, words
        self._lines = tuple(zip(SIGNALS, lines[::2], lines[1::2], strict=True))

    @classmethod
    def here(cls) -> Self | None:
        """Return the arrangement if this process is a rank that another process of himach started in this way."""
        numbers = [int(number) for number in os.environ.get(STARTED_BY, "").split()]
        return cls(*numbers) if len(numbers) == cls.NUMBERS else None

    def hold_lifeline(self) -> None:
        """Have the kernel kill this process as soon as the one that started it has gone, and send what that sends.

        That needs no thread, which would wait for Python's lock while MPI initialises, and does not ask who the parent
        is: mpiexec and its helpers stand in between.
        """
        for signum, line, inode in self._lines:
            self._hold(signum, line, inode)

    def watch(self) -> int:
        """Return a descriptor that is at its end when the process that started this one has gone."""
        _, number, inode = self._lines[0]
        line = self._open(number)
        if os.fstat(line).st_ino != inode:
            os._exit(1)
        return line

    def _open(self, number: int) -> int:
        try:
            return os.open(self._path(number), os.O_RDONLY | os.O_NONBLOCK)
        except PermissionError as error:
            raise SystemExit(
                f"himach: a rank may not look into the process that started it ({error}); start ranks by mpiexec"
            ) from None
        except OSError:
            os._exit(1)

    def _hold(self, signum: int, number: int, inode: int) -> None:
        line = self._open(number)
        fcntl.fcntl(line, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(line, fcntl.F_SETSIG, signum)
        fcntl.fcntl(line, fcntl.F_SETFL, fcntl.fcntl(line, fcntl.F_GETFL) | os.O_ASYNC)
        # It may have gone before the signal was ordered, and its number may be another's by now.
        late = signum != signal.SIGUSR1 and select.select([line], [], [], 0)[0]
        if late or os.fstat(line).st_ino != inode:
            os._exit(1)

    def work(self) -> bytes:
        """Return the work that this rank has a part in."""
        descriptor = os.open(self._path(self._work), os.O_RDONLY)
        try:
            return _content(descriptor)
        finally:
            os.close(descriptor)

    def leave_result(self, result: bytes) -> None:
        """Leave the result for the starting process; on rank 0."""
        with open(self._path(self._result), "wb") as file:
            file.write(result)
        self._say(DONE, "")

    def leave_error(self, error: HimachError) -> None:
        """Leave the error for the starting process."""
        with contextlib.suppress(OSError):  # nobody is there any more to read it
            self._say(next(base.__name__ for base in type(error).__mro__ if base.__name__ in KINDS), str(error))

    def fail(self, error: HimachError) -> NoReturn:
        """Leave the error for the starting process and end this rank; the launcher then ends the others."""
        self.leave_error(error)
        leaving.flush()
        leaving.leave(error.exit_code)

    def _say(self, kind: str, text: str) -> None:
        words = os.open(self._path(self._words), os.O_WRONLY | os.O_APPEND)
        try:
            os.write(words, json.dumps({"kind": kind, "text": text}).encode() + b"\n")
        finally:
            os.close(words)

    def _path(self, descriptor: int) -> str:
        return f"/proc/{self.process}/fd/{descriptor}"


def _content(descriptor: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        return file.read()
