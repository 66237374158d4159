"""`RankPool`, ranks of this machine: each piece of work has new ones.

`Pool` is what it shares with ranks in a job of SLURM's. `pack_work()` pickles a piece for all ranks. Below: the
command, environment, output and end of the process that starts ranks.
"""

import codecs
import contextlib
import io
import linecache
import os
import pickle
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from himach.errors import HimachError, RankError, cell_name
from himach.ranks import segments
from himach.ranks.communicator import World
from himach.ranks.last_words import PLACE, death_message
from himach.ranks.launch.stop_requests import LIMIT, Terminated, relay_signals
from himach.ranks.process_exit import FOREIGN
from himach.ranks.progress import is_watched

LOOK_EVERY = 0.02  # seconds between looks at what ranks report
#: Command line of every rank that himach starts; with a number that of the process that starts so many.
RANK = (sys.executable, "-P", "-m", "himach.ranks.launch.rank_main")
#: Environment variables of ranks: random text of the mark before an outcome; the file of their last words and of it.
MARK, LAST_WORDS = "HIMACH_OUTCOME_MARK", "HIMACH_LAST_WORDS"
#: What the process that forks ranks reports when all have ended well; else the number of the first that died.
DONE = b"done"

#: Variables that locate SLURM, in or out of a job.
SLURM = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS")

GRACE = 3.0  # seconds between SIGTERM to ranks and SIGKILL
ENDING = LIMIT + 2.0  # seconds that ranks which keep pairs may take to end after SIGTERM
_pools: "weakref.WeakSet[Pool]" = weakref.WeakSet()


def pack_work(work: Callable[[World], Any]) -> bytes:
    """Return pickled work for every rank, after what Python needs to find its code."""
    return pickle.dumps((sys.path, _cell_sources())) + pickle.dumps(work)


def unpack_work(data: bytes) -> Callable[[World], Any]:
    """Return the work; set the import path of the process that packed it."""
    stream = io.BytesIO(data)
    sys.path[:], sources = pickle.load(stream)
    linecache.cache.update(sources)
    work: Callable[[World], Any] = pickle.load(stream)
    return work


def _cell_sources() -> dict[str, Any]:
    """Return the source lines that exist only in this process (cells, the REPL), for error messages on the ranks."""
    # Without a modification time, ranks do not check the file system for changes. They show the full name: of a cell,
    # its number in the notebook.
    return {
        name: (entry[0], None, entry[2], cell_name(name) or entry[3])
        for name, entry in linecache.cache.items()
        if len(entry) == 4 and not Path(name).exists()
    }


class Pool(ABC):
    """Ranks that wait for work. A step, one process with pipes, has those of one piece of work, or of several in turn.

    The first rank reads the work from the step's input, and writes the outcome to its output after a mark.
    """

    def __init__(self) -> None:
        self._mark, self._owner = secrets.token_hex(16), os.getpid()
        self._step: subprocess.Popen[bytes] | None = None
        self._file: IO[bytes] | None = None  # of last words, and of the outcome, so that no print gets into that
        _pools.add(self)

    def do(self, work: bytes, keeps: bool = False, last: bool = False) -> bytes:
        """Have all ranks do this work; return rank 0's result. After the `last` no others are needed."""
        with relay_signals(self._pass_on), contextlib.ExitStack() as stack:
            try:
                step = self._start_step()
                output = stack.enter_context(relay_output(step, outcome_mark(self._mark)))
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the ranks may have died
                    self._send(work, last)
                status = self._wait(step)
            except BaseException as stopped:
                terminated = isinstance(stopped, Terminated)
                if keeps and terminated and self._step is not None:  # give ranks that keep pairs time to do so
                    self._pass_on(signal.SIGTERM)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._step.wait(ENDING)
                self._break_off(terminated)
                raise
        outcome: bytes | HimachError = b""
        with contextlib.suppress(EOFError, pickle.UnpicklingError):  # a rank that is killed may leave half an outcome
            outcome = pickle.loads(output if self._file is None else self._file.read())
        if isinstance(outcome, bytes) and (status or not outcome):
            outcome = RankError(self._death(status))
        self._after(outcome, last)
        if isinstance(outcome, HimachError):
            raise outcome
        return outcome

    def _pass_on(self, signum: int) -> None:
        if self._step is not None:
            self._step.send_signal(signum)  # which srun or our launcher forwards to all ranks

    @abstractmethod
    def detach(self) -> None:
        """Stop keeping ranks alive, in a child forked from this process."""

    @abstractmethod
    def _start_step(self) -> subprocess.Popen[bytes]:
        """Return a step that waits for work."""

    @abstractmethod
    def _send(self, work: bytes, last: bool) -> None:
        """Send the work, with the directory and the umask of this process."""

    @abstractmethod
    def _wait(self, step: subprocess.Popen[bytes]) -> int:
        """Wait until all ranks have ended; return the status of the first that failed, or 0."""

    @abstractmethod
    def _break_off(self, terminated: bool) -> None:
        """End the ranks at once, because of an error or SIGTERM."""

    @abstractmethod
    def _death(self, status: int) -> str:
        """Return a message on ranks that ended without an outcome."""

    @abstractmethod
    def _after(self, outcome: bytes | HimachError, last: bool) -> None:
        """Prepare for the next work."""


class RankPool(Pool):
    """Ranks of this machine that wait for work until `end()`, which garbage collection calls as well."""

    def __init__(self, command: Sequence[str], size: int) -> None:
        super().__init__()
        self._size, self._environ, self._report = size, rank_environment(), b""
        self._socket, other_end = socket.socketpair()
        self._last_words = self._file = os.fdopen(os.memfd_create("himach-last-words"), "r+b", buffering=0)
        place = f"/proc/{os.getpid()}/fd/{self._last_words.fileno()}"
        start_time = time.time()
        with other_end:
            # A session of its own (Linux only) keeps the terminal's Ctrl-C for this process.
            self._step = subprocess.Popen(
                [*command, str(size)],
                env={**self._environ, MARK: self._mark, LAST_WORDS: place},
                stdin=other_end.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        streams = (self._socket, self._last_words)
        self._end = weakref.finalize(self, _end, self._step, streams, start_time, self._owner)

    @property
    def alive(self) -> bool:
        """Whether the ranks take work, and have the present environment."""
        step = self._step
        return self._end.alive and step is not None and step.poll() is None and self._environ == rank_environment()

    def end(self) -> None:
        """End the ranks, if they have not ended; those with work do not finish it."""
        self._end()

    def detach(self) -> None:
        """Close this process's end of the socket, in a child forked from it."""
        self._socket.close()

    def _start_step(self) -> subprocess.Popen[bytes]:
        assert self._step is not None
        for size in (0, self._size * PLACE):
            self._last_words.truncate(size)
        self._last_words.seek(self._size * PLACE + len(outcome_mark(self._mark)))
        return self._step

    def _send(self, work: bytes, last: bool) -> None:
        self._socket.sendall(pickle.dumps((f"/proc/{os.getpid()}/cwd", read_umask(), work)))
        if last:
            self._socket.shutdown(socket.SHUT_WR)

    def _wait(self, step: subprocess.Popen[bytes]) -> int:
        self._report, running = b"", True
        while running and self._report != DONE:
            running = step.poll() is None
            if select.select([self._socket], [], [], LOOK_EVERY if running else 0)[0]:
                with contextlib.suppress(ConnectionResetError):  # the launcher died before it took the work
                    self._report = self._socket.recv(64) or self._report
        return step.returncode or 0

    def _death(self, status: int) -> str:
        first = int(self._report) if self._report.isdigit() else None
        return death_message(status, self._size, self._last_words.fileno(), first)

    def _after(self, outcome: bytes | HimachError, last: bool) -> None:
        if last or self._report != DONE:
            self.end()

    def _break_off(self, terminated: bool) -> None:
        assert self._step is not None
        end(self._step)
        self.end()


def _end(
    process: subprocess.Popen[bytes], streams: tuple[socket.socket, IO[bytes]], start_time: float, owner: int
) -> None:
    """End ranks that wait for work; kill those that do not end in time."""
    if os.getpid() != owner:
        return
    with contextlib.suppress(OSError):
        streams[0].shutdown(socket.SHUT_WR)
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        end(process)
    for stream in (*streams, process.stdout, process.stderr):
        assert stream is not None
        stream.close()
    if process.returncode != 0:  # killed ranks may have left names of segments
        segments.sweep(start_time)


def _detach_all() -> None:
    for pool in list(_pools):
        pool.detach()


os.register_at_fork(after_in_child=_detach_all)


def outcome_mark(text: str) -> bytes:
    """Return what precedes an outcome on standard output: no text that is printed has it."""
    return b"\0%s\0" % text.encode()


def read_umask() -> int:
    """Return the umask of this process; unlike `os.umask`, do not change it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Umask:")), 8)


def rank_environment() -> dict[str, str]:
    """Return the environment for ranks of this machine."""
    environ = common_environment()
    # MPICH's shared-memory collectives move a kilobyte a turn; with fewer processors than ranks, each turn waits until
    # the right rank runs: 3 MB to 4 ranks on 2 processors took 4 s with them and 3 ms without.
    environ.setdefault("MPIR_CVAR_POSIX_NUM_COLLS_THRESHOLD", "1000000000")
    # All ranks are here: UCX below MPICH need not look for networks and their libraries.
    environ.setdefault("UCX_TLS", "self,sm")
    environ.setdefault("UCX_MODULES", "^ib,rdmacm")
    # UCX need not watch mmap() either: only memory registered with a network needs it, and it takes 0.04 s.
    environ.setdefault("UCX_MEM_EVENTS", "no")
    return environ


def common_environment() -> dict[str, str]:
    """Return the environment for ranks on any machine."""
    environ = {name: value for name, value in os.environ.items() if name in SLURM or not name.startswith(FOREIGN)}
    environ.setdefault("OMP_NUM_THREADS", "1")
    environ["PYTHONUNBUFFERED"] = "1"  # show what rank 0 prints at once, though through a pipe
    environ["PYTHONIOENCODING"] = "utf-8"  # between ranks and this process, which knows its terminal's
    if is_watched():
        environ.setdefault("HIMACH_PROGRESS", "tty")
        environ.setdefault("COLUMNS", str(shutil.get_terminal_size().columns))
    return environ


@contextlib.contextmanager
def relay_output(process: subprocess.Popen[bytes], mark: bytes) -> Iterator[bytearray]:
    """Pass on what ranks print while the context lasts, to the present sys.stdout and sys.stderr.

    Yield what gets the bytes that follow `mark` on standard output.
    """
    ended, line = os.pipe()
    failures: list[OSError] = []
    rest = bytearray()
    assert process.stdout is not None and process.stderr is not None
    output = _before(mark, _chunks(process.stdout.fileno(), ended), rest)
    threads = [
        relay(output, sys.stdout, failures),
        relay(_chunks(process.stderr.fileno(), ended), sys.stderr, failures),
    ]
    try:
        yield rest
    finally:
        os.close(line)
        for thread in threads:
            thread.join(timeout=5)
        os.close(ended)
    if failures:
        raise failures[0]


def relay(parts: Iterator[bytes], sink: IO[str], failures: list[OSError]) -> threading.Thread:
    """Write parts of text to `sink`, in a thread that takes them all: ranks would block when a pipe is full."""

    def copy() -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        try:
            for part in parts:
                pass_on(decoder.decode(part), sink)
            pass_on(decoder.decode(b"", final=True), sink)
        except (BrokenPipeError, ValueError):  # the reader has gone
            pass
        except OSError as error:
            failures.append(error)
        for _ in parts:
            pass

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    return thread


def _before(mark: bytes, chunks: Iterator[bytes], rest: bytearray) -> Iterator[bytes]:
    """Yield what precedes the mark; put what follows it into `rest`."""
    pending = b""
    for chunk in chunks:
        pending, marked, after = (pending + chunk).partition(mark)
        if marked:
            rest.extend(after)
            break
        n_kept = next(n for n in range(len(mark), -1, -1) if pending.endswith(mark[:n]))  # may begin the mark
        yield pending[: len(pending) - n_kept]
        pending = pending[len(pending) - n_kept :]
    yield pending
    for chunk in chunks:
        rest.extend(chunk)


def _chunks(pipe: int, stop: int) -> Iterator[bytes]:
    """Yield what arrives in a pipe until it or `stop` is at its end."""
    poll = select.poll()
    for descriptor in (pipe, stop):
        poll.register(descriptor, select.POLLIN)
    while stop not in dict(poll.poll()):
        chunk = os.read(pipe, 65536)
        if not chunk:
            return
        yield chunk
    os.set_blocking(pipe, False)
    with contextlib.suppress(BlockingIOError):
        yield os.read(pipe, 1 << 20)  # the most that a pipe holds


def pass_on(text: str, sink: IO[str]) -> None:
    """Write text; escape what the stream cannot encode."""
    if text:
        encoding = getattr(sink, "encoding", None) or "utf-8"
        sink.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sink.flush()


def end(process: subprocess.Popen[bytes]) -> None:
    """End the process that starts ranks, and them: send SIGTERM, then kill the whole group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=GRACE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.returncode is None:  # not wait(): Ctrl-C within poll() may have left its lock locked
        with contextlib.suppress(ChildProcessError):
            process.returncode = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
