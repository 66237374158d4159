"""Channel between ranks and the process that starts them: work, result or error, signals and liveness.

All data is in memory and pipes of the starting process (`RankChannel`), which ranks (`ParentChannel`) open through its
folder in /proc. Only the same user can do so, no file has to be removed, and the kernel kills the ranks when that
process ends, whatever they are doing. Ranks wait for work in a read of a pipe.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pickle
import select
import signal
import weakref
from pathlib import Path
from typing import Any, NoReturn, Self

from himach.errors import HimachError
from himach.ranks import last_words, process_exit

#: Environment variable: pid and descriptors of the process that started this rank, and the inode of a pipe of it.
STARTED_BY = "HIMACH_STARTED_BY"
#: Kinds of messages: all ranks have begun their work; rank 0 left the result; a rank's error; the first rank that died;
#: all have ended well, and more can be called.
BEGUN, RESULT, ERROR, DIED, DONE = "begun", "result", "error", "died", "done"
SIGNALS = (signal.SIGKILL, signal.SIGUSR1, signal.SIGTERM)
_open: weakref.WeakSet[Any] = weakref.WeakSet()


def detach_in_children(owner: Any) -> None:
    """Have children that this process forks `detach()` the owner of ranks, which end with this process."""
    _open.add(owner)


class RankChannel:
    """Channel end of the process that starts ranks; to be closed."""

    def __init__(self) -> None:
        self._work, self._result, self._words, self.last_words = (
            os.memfd_create(f"himach-{name}") for name in ("work", "result", "words", "last-words")
        )
        self._calls, self._caller = os.pipe()
        # Reading and writing ends; only this process has the latter. The kernel sends ranks the signal when a line is
        # written to or closed. Nothing is ever written to the first (SIGKILL), which is closed when this process ends.
        self._lines: dict[int, tuple[int, int]] = {signum: os.pipe() for signum in SIGNALS}
        self.process = os.getpid()
        detach_in_children(self)

    def call(self, work: bytes, ranks: int, last: bool = False) -> None:
        """Give this work to `ranks` ranks; after the `last`, no others are needed."""
        for descriptor, content in ((self._result, b""), (self._words, b""), (self._work, work)):
            os.ftruncate(descriptor, 0)
            with open(descriptor, "r+b", closefd=False) as file:
                file.seek(0)
                file.write(content)
        for size in (0, ranks * last_words.PLACE):
            os.ftruncate(self.last_words, size)
        os.write(self._caller, b"." * ranks)
        if last:
            self.dismiss()

    def dismiss(self) -> None:
        """Let ranks without work end by themselves."""
        if self._caller >= 0:
            os.close(self._caller)
            self._caller = -1

    @property
    def variable(self) -> dict[str, str]:
        """Environment variable by which ranks find this process."""
        lines = [read_end for read_end, _ in self._lines.values()]
        files = (self._work, self._result, self._words, self.last_words, self._calls, *lines)
        return {STARTED_BY: " ".join(map(str, (self.process, *files, os.fstat(lines[0]).st_ino)))}

    def result(self) -> bytes:
        """Return the result that rank 0 left."""
        return _content(self._result)

    def send(self, signum: int) -> None:
        """Send SIGUSR1 or SIGTERM to every rank that can `die_with_parent`; later ranks see SIGTERM then."""
        os.write(self._lines[signum][1], b"\n")

    def end_ranks(self) -> None:
        """Kill the remaining ranks."""
        for read_end, write_end in self._lines.values():
            os.close(write_end)
            os.close(read_end)
        self._lines = {}

    def messages(self) -> dict[str, Any]:
        """Return the value of the first message of each kind."""
        values: dict[str, Any] = {}
        stream = io.BytesIO(_content(self._words))
        with contextlib.suppress(EOFError, pickle.UnpicklingError):  # a rank that is killed may leave half a message
            while True:
                kind, value = pickle.load(stream)
                values.setdefault(kind, value)
        return values

    def close(self) -> None:
        """Kill the remaining ranks and close all descriptors."""
        self.detach()
        for descriptor in (self._work, self._result, self._words, self.last_words, self._calls):
            os.close(descriptor)

    def detach(self) -> None:
        """Stop keeping ranks alive; also in a child forked from the starting process."""
        self.end_ranks()
        self.dismiss()


def _detach_all() -> None:
    for channel in list(_open):
        channel.detach()


os.register_at_fork(after_in_child=_detach_all)


class ParentChannel:
    """Channel end of a rank."""

    def __init__(self, process: int, *numbers: int) -> None:
        self.process = process
        self._work, self._result, self._words, self._last_words, self._calls, *self._lines, self._inode = numbers

    @classmethod
    def from_env(cls) -> Self | None:
        """Return the channel if another himach process started this rank."""
        numbers = os.environ.get(STARTED_BY, "").split()
        return cls(*map(int, numbers)) if numbers else None

    def die_with_parent(self) -> None:
        """Have the kernel kill this process when the starting process ends, whatever processes are in between."""
        lines = [self.watch(), *map(self._open, self._lines[1:])]
        for signum, line in zip(SIGNALS, lines, strict=True):
            fcntl.fcntl(line, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(line, fcntl.F_SETSIG, signum)
            fcntl.fcntl(line, fcntl.F_SETFL, fcntl.fcntl(line, fcntl.F_GETFL) | os.O_ASYNC)
            if signum != signal.SIGUSR1 and select.select([line], [], [], 0)[0]:
                os._exit(1)  # the starting process ended, or sent SIGTERM, before F_SETSIG

    def watch(self) -> int:
        """Return a descriptor that is at its end when the starting process has ended."""
        line = self._open(self._lines[0])
        if os.fstat(line).st_ino != self._inode:
            os._exit(1)  # the starting process has ended, and its pid is another's by now
        return line

    def wait(self) -> bool:
        """Wait for work, then take the caller's directory and umask; return False if no work will come."""
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
        """Let this process, which is `rank`, leave its last words where the starting process finds them."""
        last_words.write_to(self._path(self._last_words), rank)

    def report_end(self) -> bool:
        """Report that all ranks have ended well; return whether more may be called. For the process that forks."""
        self.say(DONE)
        calls = self._open(self._calls)
        poll = select.poll()
        poll.register(calls, select.POLLIN)
        events = dict(poll.poll(0)).get(calls, 0)
        os.close(calls)
        return bool(events & select.POLLIN) or not events

    def work(self) -> bytes:
        """Return the work of which this rank does a part."""
        with open(self._path(self._work), "rb") as file:
            return file.read()

    def _open(self, number: int) -> int:
        try:
            return os.open(self._path(number), os.O_RDONLY | os.O_NONBLOCK)
        except PermissionError as error:
            raise SystemExit(
                f"himach: a rank may not look into the process that started it ({error}); start ranks by mpiexec"
            ) from None
        except OSError:
            os._exit(1)  # the starting process has ended

    def publish_result(self, result: bytes) -> None:
        """Leave the result for the starting process; on rank 0."""
        with open(self._path(self._result), "wb") as file:
            file.write(result)
        self.say(RESULT)

    def publish_error(self, error: HimachError) -> None:
        """Leave the error for the starting process."""
        self.say(ERROR, portable(error))

    def fail(self, error: HimachError) -> NoReturn:
        """Leave the error for the starting process and end this rank; the launcher then ends the others."""
        self.publish_error(error)
        process_exit.flush()
        process_exit.exit_process(error.exit_code)

    def say(self, kind: str, value: object = None) -> None:
        """Send a message to the starting process, unless it has ended."""
        with contextlib.suppress(OSError), open(self._path(self._words), "ab", buffering=0) as file:
            file.write(pickle.dumps((kind, value)))

    def _path(self, descriptor: int) -> str:
        return f"/proc/{self.process}/fd/{descriptor}"


def portable(error: HimachError) -> HimachError:
    """Return an error of a class that any process can import, without its cause."""
    kind: type[HimachError] = next(base for base in type(error).__mro__ if base.__module__ == HimachError.__module__)
    return kind(str(error))


def read_umask(process: int) -> int:
    """Return the umask of a process; unlike `os.umask`, do not change that of this process."""
    lines = Path("/proc", str(process), "status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Umask:")), 8)


def _content(descriptor: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        return file.read()
