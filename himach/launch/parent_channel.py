"""The channel between ranks and the process that starts them: work, its result or an error, and the word that it lives.

All of it lies in memory and pipes of the starting process (`RankChannel`), which ranks (`ParentChannel`) reach through
its folder in /proc: only the same user can, no file has to be removed, and the kernel itself kills the ranks when that
process ends, whatever they are doing. Ranks may wait for work, in a read of a pipe.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, NamedTuple, NoReturn, Self

from himach.errors import AnalysisError, HimachError, RankError, TimeUpError, TrajectoryError, UsageError
from himach.parallel import last_words, process_exit

#: Environment variable: process and descriptors of the one that started this rank, and what tells its pipe.
STARTED_BY = "HIMACH_STARTED_BY"
KINDS = {
    kind.__name__: kind for kind in (AnalysisError, HimachError, RankError, TimeUpError, TrajectoryError, UsageError)
}
RESULT, DIED = "result", "died"
SIGNALS = (signal.SIGKILL, signal.SIGUSR1, signal.SIGTERM)
#: What comes by the bell: all ranks have come to their work; all of them have ended well, and others can come.
BEGUN, DONE = b"b", b"d"
_open: weakref.WeakSet[RankChannel] = weakref.WeakSet()


class Pipe(NamedTuple):
    """Both ends of a pipe, as descriptors."""

    read: int
    write: int


class RankChannel:
    """The side of the process that starts ranks; to be closed."""

    def __init__(self) -> None:
        self._work, self._result, self._words, self.last_words = (
            os.memfd_create(f"himach-{name}") for name in ("work", "result", "words", "last-words")
        )
        self._calls, self._bell = (Pipe(*os.pipe()) for _ in range(2))
        # Only this process has the writing ends. The kernel sends ranks the signal when something is written, which to
        # the first one, the word that this process lives, nothing ever is; or when the end is closed.
        self._lines: dict[int, Pipe] = {signum: Pipe(*os.pipe()) for signum in SIGNALS}
        self._received = b""
        self.process = os.getpid()
        _open.add(self)

    def call(self, work: bytes, ranks: int, last: bool = False) -> None:
        """Have `ranks` ranks do this work; if it is the `last`, no others need to come after them."""
        for descriptor, content in ((self._result, b""), (self._words, b""), (self._work, work)):
            os.ftruncate(descriptor, 0)
            with open(descriptor, "r+b", closefd=False) as file:
                file.seek(0)
                file.write(content)
        for size in (0, ranks * last_words.PLACE):
            os.ftruncate(self.last_words, size)
        self._received = b""
        os.write(self._calls.write, b"." * ranks)
        if last:
            self.dismiss()

    def dismiss(self) -> None:
        """Let ranks that have no work end by themselves."""
        if self._calls.write >= 0:
            os.close(self._calls.write)
            self._calls = self._calls._replace(write=-1)

    def listen(self, seconds: float) -> None:
        """Wait so long for a word of the ranks, and take it in."""
        if select.select([self._bell.read], [], [], seconds)[0]:
            self._received += os.read(self._bell.read, 65536)

    @property
    def has_begun(self) -> bool:
        """Whether all ranks have come to this work: from then on what happens is the work's doing."""
        return BEGUN in self._received

    @property
    def done(self) -> bool:
        """Whether all ranks that did this work have ended well."""
        return DONE in self._received

    @property
    def variable(self) -> dict[str, str]:
        """The environment variable by which ranks find this process."""
        return {STARTED_BY: " ".join(map(str, self._numbers()))}

    def _numbers(self) -> tuple[int, ...]:
        """Return what ranks are told: this process, descriptors of its, and what tells its pipes."""
        lines = [number for line in self._lines.values() for number in (line.read, os.fstat(line.read).st_ino)]
        files = (self._work, self._result, self._words, self.last_words)
        return (self.process, *files, self._calls.read, self._bell.write, *lines)

    def error(self) -> HimachError | None:
        """Return the first error that a rank left."""
        first = next((word for word in self._messages() if word["kind"] in KINDS), None)
        return None if first is None else KINDS[first["kind"]](first["text"])

    def result(self) -> bytes | None:
        """Return what rank 0 left; None if it ended before."""
        return _content(self._result) if any(word["kind"] == RESULT for word in self._messages()) else None

    def first_death(self) -> int | None:
        """Return the rank that died first; None if what forks ranks told none."""
        return next((int(word["text"]) for word in self._messages() if word["kind"] == DIED), None)

    def send(self, signum: int) -> None:
        """Send SIGUSR1 or SIGTERM to every rank that can `die_with_parent`; who comes later learns of SIGTERM then."""
        os.write(self._lines[signum].write, b"\n")

    def end_ranks(self) -> None:
        """Kill the ranks that are left."""
        for line in self._lines.values():
            os.close(line.write)
            os.close(line.read)
        self._lines = {}

    def _messages(self) -> list[dict[str, str]]:
        lines = _content(self._words).split(b"\n")[:-1]  # a line that a rank was killed in has no end
        return [json.loads(line) for line in lines]

    def __enter__(self) -> RankChannel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill the ranks that are left, and let go of all."""
        self.detach()
        for descriptor in (self._work, self._result, self._words, self.last_words, self._calls.read, *self._bell):
            os.close(descriptor)

    def detach(self) -> None:
        """Keep no rank alive, as a child that was forked from the process that started them."""
        self.end_ranks()
        self.dismiss()


def _detach_all() -> None:
    for channel in list(_open):
        channel.detach()


# Ranks end with the process that started them, though children that it forked live on.
os.register_at_fork(after_in_child=_detach_all)


class ParentChannel:
    """The side of a rank."""

    NUMBERS: ClassVar = 7 + 2 * len(SIGNALS)

    def __init__(self, process: int, *numbers: int) -> None:
        self.process = process
        files, lines = numbers[:6], numbers[6:]
        self._work, self._result, self._words, self._last_words, self._calls, self._bell = files
        self._lines = tuple(zip(SIGNALS, lines[::2], lines[1::2], strict=True))

    @classmethod
    def from_env(cls) -> Self | None:
        """Return the channel if this process is a rank that another process of himach started."""
        numbers = [int(number) for number in os.environ.get(STARTED_BY, "").split()]
        return cls(*numbers) if len(numbers) == cls.NUMBERS else None

    def die_with_parent(self) -> None:
        """Have the kernel kill this process when the one that started it has gone, whoever stands in between."""
        self.receive_signals(SIGNALS)

    def receive_signals(self, signals: Sequence[signal.Signals]) -> None:
        """Have the kernel send this process these signals when the one that started it sends them, or has gone."""
        for signum, line, inode in self._lines:
            if signum in signals:
                self._hold(signum, line, inode)

    def watch(self) -> int:
        """Return a descriptor that is at its end when the process that started this one has gone."""
        _, number, inode = self._lines[0]
        line = self._open(number)
        if os.fstat(line).st_ino != inode:
            os._exit(1)
        return line

    def wait(self) -> bool:
        """Wait to be called to work, and then be where the process that calls is; return False if there is none."""
        calls = self._open(self._calls)
        os.set_blocking(calls, True)
        called = os.read(calls, 1)
        os.close(calls)
        if not called:
            return False
        os.chdir(f"/proc/{self.process}/cwd")
        os.umask(read_umask(self.process))
        return True

    def publish_last_words(self, rank: int) -> None:
        """Have this process, which is `rank`, leave its last words where the starting process finds them."""
        last_words.write_to(self._path(self._last_words), rank)

    def report_begin(self) -> None:
        """Say that all ranks have come; on rank 0."""
        self._ring(BEGUN)

    def report_death(self, rank: int) -> None:
        """Say which rank was the first to die; for what forks them."""
        with contextlib.suppress(OSError):  # nobody is there any more to read it
            self._say(DIED, str(rank))

    def report_end(self) -> bool:
        """Say that all ranks have ended well, and return whether others may be called; for what forks them."""
        self._ring(DONE)
        calls = self._open(self._calls)
        poll = select.poll()
        poll.register(calls, select.POLLIN)
        events = dict(poll.poll(0)).get(calls, 0)
        os.close(calls)
        return bool(events & select.POLLIN) or not events

    def work(self) -> bytes:
        """Return the work that this rank has a part in."""
        descriptor = os.open(self._path(self._work), os.O_RDONLY)
        try:
            return _content(descriptor)
        finally:
            os.close(descriptor)

    def _open(self, number: int) -> int:
        try:
            return os.open(self._path(number), os.O_RDONLY | os.O_NONBLOCK)
        except PermissionError as error:
            raise SystemExit(
                f"himach: a rank may not look into the process that started it ({error}); start ranks by mpiexec"
            ) from None
        except OSError:
            self._exit_orphaned()

    def _exit_orphaned(self) -> NoReturn:
        """End this process, because the one that started it has gone."""
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

    def _ring(self, word: bytes) -> None:
        bell = os.open(self._path(self._bell), os.O_WRONLY)
        try:
            os.write(bell, word)
        finally:
            os.close(bell)

    def publish_result(self, result: bytes) -> None:
        """Leave the result for the starting process; on rank 0."""
        with open(self._path(self._result), "wb") as file:
            file.write(result)
        self._say(RESULT, "")

    def publish_error(self, error: HimachError) -> None:
        """Leave the error for the starting process."""
        with contextlib.suppress(OSError):  # nobody is there any more to read it
            self._say(next(base.__name__ for base in type(error).__mro__ if base.__name__ in KINDS), str(error))

    def fail(self, error: HimachError) -> NoReturn:
        """Leave the error for the starting process and end this rank; the launcher then ends the others."""
        self.publish_error(error)
        process_exit.flush()
        process_exit.exit_process(error.exit_code)

    def _say(self, kind: str, text: str) -> None:
        words = os.open(self._path(self._words), os.O_WRONLY | os.O_APPEND)
        try:
            os.write(words, json.dumps({"kind": kind, "text": text}).encode() + b"\n")
        finally:
            os.close(words)

    def _path(self, descriptor: int) -> str:
        return f"/proc/{self.process}/fd/{descriptor}"


def read_umask(process: int) -> int:
    """Return the umask of a process; its own without changing it, unlike `os.umask`."""
    lines = Path("/proc", str(process), "status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Umask:")), 8)


def _content(descriptor: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        return file.read()
