"""Channel between ranks and the process that starts them: work, result or error, signals and liveness.

All data is in memory and pipes of the starting process (`RankChannel`), which ranks (`ParentChannel`) open through its
folder in /proc. Only the same user can do so, no file has to be removed, and the kernel kills the ranks when that
process ends, whatever they are doing. Ranks wait for work in a read of a pipe.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import weakref
from pathlib import Path
from typing import ClassVar, NamedTuple, NoReturn, Protocol, Self

from himach.errors import AnalysisError, HimachError, RankError, TimeUpError, TrajectoryError, UsageError
from himach.ranks import last_words, process_exit

#: Environment variable: pid and descriptors of the process that started this rank, and inodes of its pipes.
STARTED_BY = "HIMACH_STARTED_BY"
KINDS = {
    kind.__name__: kind for kind in (AnalysisError, HimachError, RankError, TimeUpError, TrajectoryError, UsageError)
}
#: Other kinds of messages: all ranks have begun their work; rank 0 left the result; the first rank that died; all have
#: ended well, and more can be called.
BEGUN, RESULT, DIED, DONE = "begun", "result", "died", "done"
SIGNALS = (signal.SIGKILL, signal.SIGUSR1, signal.SIGTERM)
_open: weakref.WeakSet[_Detached] = weakref.WeakSet()


class _Detached(Protocol):
    def detach(self) -> None: ...


def detach_in_children(owner: _Detached) -> None:
    """Have children that this process forks drop what keeps ranks alive: they end with this process."""
    _open.add(owner)


class Pipe(NamedTuple):
    """Both ends of a pipe, as descriptors."""

    read: int
    write: int


class RankChannel:
    """Channel end of the process that starts ranks; to be closed."""

    def __init__(self) -> None:
        self._work, self._result, self._words, self.last_words = (
            os.memfd_create(f"himach-{name}") for name in ("work", "result", "words", "last-words")
        )
        self._calls = Pipe(*os.pipe())
        # Only this process has the writing ends. The kernel sends ranks the signal when a line is written to or closed.
        # Nothing is ever written to the first (SIGKILL), which is closed when this process ends.
        self._lines: dict[int, Pipe] = {signum: Pipe(*os.pipe()) for signum in SIGNALS}
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
        os.write(self._calls.write, b"." * ranks)
        if last:
            self.dismiss()

    def dismiss(self) -> None:
        """Let ranks without work end by themselves."""
        if self._calls.write >= 0:
            os.close(self._calls.write)
            self._calls = self._calls._replace(write=-1)

    @property
    def has_begun(self) -> bool:
        """Whether all ranks have begun this work: later failures are its own."""
        return self._first(BEGUN) is not None

    @property
    def done(self) -> bool:
        """Whether all ranks that did this work have ended well."""
        return self._first(DONE) is not None

    @property
    def variable(self) -> dict[str, str]:
        """Environment variable by which ranks find this process."""
        return {STARTED_BY: " ".join(map(str, self._numbers()))}

    def _numbers(self) -> tuple[int, ...]:
        """Return what ranks are told: pid and descriptors of this process, and inodes of its pipes."""
        lines = [number for line in self._lines.values() for number in (line.read, os.fstat(line.read).st_ino)]
        files = (self._work, self._result, self._words, self.last_words)
        return (self.process, *files, self._calls.read, *lines)

    def error(self) -> HimachError | None:
        """Return the first error that a rank left."""
        first = self._first(*KINDS)
        return None if first is None else KINDS[first["kind"]](first["text"])

    def result(self) -> bytes | None:
        """Return rank 0's result; None if it left none."""
        return None if self._first(RESULT) is None else _content(self._result)

    def first_death(self) -> int | None:
        """Return the rank that died first; None if the process that forks ranks reported none."""
        first = self._first(DIED)
        return None if first is None else int(first["text"])

    def send(self, signum: int) -> None:
        """Send SIGUSR1 or SIGTERM to every rank that can `die_with_parent`; later ranks see SIGTERM then."""
        os.write(self._lines[signum].write, b"\n")

    def end_ranks(self) -> None:
        """Kill the remaining ranks."""
        for line in self._lines.values():
            os.close(line.write)
            os.close(line.read)
        self._lines = {}

    def _first(self, *kinds: str) -> dict[str, str] | None:
        """Return the first message of these kinds."""
        lines = _content(self._words).split(b"\n")[:-1]  # a rank killed while it writes leaves an unfinished line
        return next((message for message in map(json.loads, lines) if message["kind"] in kinds), None)

    def __enter__(self) -> RankChannel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the remaining ranks and close all descriptors."""
        self.detach()
        for descriptor in (self._work, self._result, self._words, self.last_words, self._calls.read):
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

    NUMBERS: ClassVar = 6 + 2 * len(SIGNALS)

    def __init__(self, process: int, *numbers: int) -> None:
        self.process = process
        files, lines = numbers[:5], numbers[5:]
        self._work, self._result, self._words, self._last_words, self._calls = files
        self._lines = tuple(zip(SIGNALS, lines[::2], lines[1::2], strict=True))

    @classmethod
    def from_env(cls) -> Self | None:
        """Return the channel if another himach process started this rank."""
        numbers = [int(number) for number in os.environ.get(STARTED_BY, "").split()]
        return cls(*numbers) if len(numbers) == cls.NUMBERS else None

    def die_with_parent(self) -> None:
        """Have the kernel kill this process when the starting process ends, whatever processes are in between."""
        for signum, line, inode in self._lines:
            self._hold(signum, line, inode)

    def watch(self) -> int:
        """Return a descriptor that is at its end when the starting process has ended."""
        _, number, inode = self._lines[0]
        line = self._open(number)
        if os.fstat(line).st_ino != inode:
            os._exit(1)
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

    def report_begin(self) -> None:
        """Report that all ranks have begun; on rank 0."""
        self._say(BEGUN)

    def report_death(self, rank: int) -> None:
        """Report which rank died first; for the process that forks them."""
        with contextlib.suppress(OSError):  # the starting process has ended
            self._say(DIED, str(rank))

    def report_end(self) -> bool:
        """Report that all ranks have ended well; return whether more may be called. For the process that forks."""
        self._say(DONE)
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

    def _hold(self, signum: int, number: int, inode: int) -> None:
        line = self._open(number)
        fcntl.fcntl(line, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(line, fcntl.F_SETSIG, signum)
        fcntl.fcntl(line, fcntl.F_SETFL, fcntl.fcntl(line, fcntl.F_GETFL) | os.O_ASYNC)
        # The starting process may have ended before F_SETSIG, and its pid may be another's by now.
        late = signum != signal.SIGUSR1 and select.select([line], [], [], 0)[0]
        if late or os.fstat(line).st_ino != inode:
            os._exit(1)

    def publish_result(self, result: bytes) -> None:
        """Leave the result for the starting process; on rank 0."""
        with open(self._path(self._result), "wb") as file:
            file.write(result)
        self._say(RESULT)

    def publish_error(self, error: HimachError) -> None:
        """Leave the error for the starting process."""
        with contextlib.suppress(OSError):  # the starting process has ended
            self._say(next(base.__name__ for base in type(error).__mro__ if base.__name__ in KINDS), str(error))

    def fail(self, error: HimachError) -> NoReturn:
        """Leave the error for the starting process and end this rank; the launcher then ends the others."""
        self.publish_error(error)
        process_exit.flush()
        process_exit.exit_process(error.exit_code)

    def _say(self, kind: str, text: str = "") -> None:
        with open(self._path(self._words), "ab", buffering=0) as file:
            file.write(json.dumps({"kind": kind, "text": text}).encode() + b"\n")

    def _path(self, descriptor: int) -> str:
        return f"/proc/{self.process}/fd/{descriptor}"


def read_umask(process: int) -> int:
    """Return the umask of a process; unlike `os.umask`, do not change that of this process."""
    lines = Path("/proc", str(process), "status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Umask:")), 8)


def _content(descriptor: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        file.seek(0)
        return file.read()
