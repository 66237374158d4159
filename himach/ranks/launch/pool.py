"""`RankPool`, ranks of this machine: each piece of work has new ones; `spawn()` is for one piece.

`pack_work()` pickles a piece for all ranks; it travels through a place private to the user. Below: the command,
environment, output and end of the process that starts ranks.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import linecache
import os
import pickle
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

from himach.errors import RankError, cell_name
from himach.ranks import segments
from himach.ranks.communicator import World
from himach.ranks.last_words import death_message
from himach.ranks.launch.parent_channel import BEGUN, DIED, DONE, ERROR, RESULT, RankChannel
from himach.ranks.launch.stop_requests import LIMIT, Terminated, relay_signals
from himach.ranks.process_exit import FOREIGN
from himach.ranks.progress import is_watched

LOOK_EVERY = 0.02  # seconds between looks at what ranks report
#: Command line of every rank that himach starts.
RANK = (sys.executable, "-P", "-m", "himach.ranks.launch.rank_main")
#: Environment variable: number of ranks that a command forks.
FORKS = "HIMACH_FORKS"
#: Environment variable: ``mpiexec`` forces ranks of this machine to be started by it.
LAUNCHER = "HIMACH_LAUNCHER"

#: Variables that locate SLURM, in or out of a job.
SLURM = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS")

#: Script that runs mpiexec and removes what killed ranks leave; it may outlive this process. On SIGTERM it waits on for
#: mpiexec, which gets the signal too; it ignores SIGUSR1.
KEEPER = (
    "trap '' USR1; trap : TERM; python=$0 sweeper=$1 since=$2; shift 2; "
    '"$@" || exec "$python" -I -S "$sweeper" "$since" $?'
)
BANNER = b"=" * 83 + b"\n"  # of MPICH's message about a death
GRACE = 3.0  # seconds between SIGTERM to mpiexec and SIGKILL
ENDING = LIMIT + 2.0  # seconds that ranks which keep pairs may take to end after SIGTERM


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


class NotBegunError(RankError):
    """Ranks died before all of them had begun their work; nothing was done."""


class RankPool:
    """Ranks that wait for work until `end()`, which garbage collection calls as well."""

    def __init__(self, command: Sequence[str], size: int, forks: bool = False) -> None:
        self._size, self._environ = size, rank_environment()
        self._channel = RankChannel()
        start_time = time.time()
        try:
            self._process = start(command, size, self._environ | self._channel.variable, forks)
        except BaseException:
            self._channel.close()
            raise
        self._end = weakref.finalize(self, _end, self._process, self._channel, start_time)

    @property
    def alive(self) -> bool:
        """Whether the ranks take work, and have the present environment."""
        return self._end.alive and self._process.poll() is None and self._environ == rank_environment()

    def do(self, work: bytes, keeps: bool = False, last: bool = False) -> bytes:
        """Have all ranks do this work; return rank 0's result."""
        channel, process = self._channel, self._process
        try:
            with relay_output(process), relay_signals(self._pass_on):
                try:
                    channel.call(work, self._size, last)
                    while DONE not in channel.messages() and process.poll() is None:
                        time.sleep(LOOK_EVERY)
                except BaseException as stopped:
                    self._stop(stopped, keeps)
                    raise
        except BaseException:
            if DONE not in channel.messages():
                self.end()
            raise
        messages, status = channel.messages(), process.returncode or 0
        death = self._death(status, messages.get(DIED)) if status or RESULT not in messages else ""
        result = channel.result()
        if last or DONE not in messages:
            self.end()
        if ERROR in messages:
            raise messages[ERROR]
        if death:
            raise (RankError if BEGUN in messages else NotBegunError)(death)
        return result

    def end(self) -> None:
        """End the ranks, if they have not ended; those with work do not finish it."""
        self._end()

    def _death(self, status: int, first: int | None) -> str:
        """Return a message on how ranks ended, of which this rank was the first, if that is known."""
        return death_message(status, self._size, self._channel.last_words, first)

    def _pass_on(self, signum: int) -> None:
        self._channel.send(signum)

    def _stop(self, stopped: BaseException, keeps: bool) -> None:
        """End the ranks' work because of an error; on SIGTERM first give ranks that keep pairs time to do so."""
        if keeps and isinstance(stopped, Terminated):
            self._pass_on(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDING)
        self._kill()

    def _kill(self) -> None:
        """End the ranks at once."""
        end(self._process)


def _end(process: subprocess.Popen[bytes], channel: RankChannel, start_time: float) -> None:
    """End ranks that wait for work; kill those that do not end in time."""
    if os.getpid() != channel.process:
        return
    channel.dismiss()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        end(process)
    channel.close()
    for stream in (process.stdout, process.stderr):
        assert stream is not None
        stream.close()
    if process.returncode != 0:  # killed ranks may have left names of segments
        segments.sweep(start_time)


def spawn(command: Sequence[str], ranks: int, work: bytes, keeps: bool = False, forks: bool = False) -> bytes:
    """Have new ranks do one piece of work; return rank 0's result. For parameters and errors see `RankPool`."""
    return RankPool(command, ranks, forks).do(work, keeps, last=True)


def start(
    command: Sequence[str], ranks: int, environ: Mapping[str, str], forks: bool = False
) -> subprocess.Popen[bytes]:
    """Start ``command`` as `ranks` MPI ranks of this machine; return the process that ends with them."""
    if ranks and forks and _beside().exists() and environ.get(LAUNCHER) != "mpiexec":
        environ = {**environ, FORKS: str(ranks)}
    elif ranks:
        command = _mpiexec(command, ranks)
    # A session of its own (Linux only, as the channel is) keeps the terminal's Ctrl-C for this process.
    return subprocess.Popen(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def exec_mpiexec(command: Sequence[str], ranks: int) -> NoReturn:
    """Replace this process by an mpiexec that starts ranks."""
    mpiexec = _mpiexec(command, ranks)
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(signum, signal.SIG_DFL)
    os.execv(mpiexec[0], mpiexec)


def _beside() -> Path:
    """Return the path beside this Python, where the mpiexec of the MPI is that mpi4py finds first, if there is one."""
    return Path(sys.executable).with_name("mpiexec")


def _mpiexec(command: Sequence[str], ranks: int) -> list[str]:
    """Return the command line of a keeper whose mpiexec runs ranks here."""
    beside = _beside()
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        raise RankError(
            "several ranks need an MPI with its mpiexec, and there is none: pip install 'himach[local]', or load the "
            "cluster's MPI module"
        )
    version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False).stdout
    is_openmpi = "Open MPI" in version or "OpenRTE" in version or "PRRTE" in version
    options = ["--oversubscribe", "--bind-to", "none"] if is_openmpi else ["-launcher", "fork"]
    keeper = ["/bin/sh", "-c", KEEPER, sys.executable, segments.__file__, str(time.time())]
    return [*keeper, mpiexec, *options, "-n", str(ranks), *command]


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
    if os.geteuid() == 0:
        for prefix in ("OMPI", "PRTE"):
            environ[f"{prefix}_ALLOW_RUN_AS_ROOT"] = environ[f"{prefix}_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
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
def relay_output(
    process: subprocess.Popen[bytes], mark: bytes = BANNER, errors: io.TextIOBase | None = None
) -> Iterator[bytearray]:
    """Pass on what ranks print while the context lasts, to the present sys.stdout and to `errors` or sys.stderr.

    Yield what gets the bytes that follow `mark` on standard output.
    """
    ended, line = os.pipe()
    failures: list[OSError] = []
    rest = bytearray()
    threads = [
        relay(process.stdout, sys.stdout, ended, failures, mark, rest),
        relay(process.stderr, errors or sys.stderr, ended, failures),
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


def relay(
    source: IO[bytes] | None,
    sink: IO[str] | io.TextIOBase,
    stop: int,
    failures: list[OSError],
    mark: bytes = BANNER,
    rest: bytearray | None = None,
) -> threading.Thread:
    """Copy `source` until it or `stop` ends, as others may hold the pipe; what follows `mark` goes to `rest`."""
    assert source is not None
    parts = _before(mark, _chunks(source.fileno(), stop), bytearray() if rest is None else rest)

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
        # Drain the pipe: ranks would block when it is full.
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


def pass_on(text: str, sink: IO[str] | io.TextIOBase) -> None:
    """Write text; escape what the stream cannot encode."""
    if text:
        encoding = getattr(sink, "encoding", None) or "utf-8"
        sink.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sink.flush()


def end(process: subprocess.Popen[bytes]) -> None:
    """End mpiexec and its ranks: send SIGTERM, then kill the whole group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=GRACE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.returncode is None:  # not wait(): Ctrl-C within poll() may have left its lock locked
        with contextlib.suppress(ChildProcessError):
            process.returncode = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
