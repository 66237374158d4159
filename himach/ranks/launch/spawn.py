"""Processes that start ranks on this machine: command, environment, output and end."""

from __future__ import annotations

import codecs
import contextlib
import linecache
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn

from himach.errors import RankError, format_place
from himach.ranks import segments
from himach.ranks.last_words import frame_at, lines_at, signal_at
from himach.ranks.launch.stop_requests import LIMIT
from himach.ranks.process_exit import FOREIGN
from himach.user_code import is_user_code

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
#: Signals that usually kill ranks: an exit code of mpiexec among these numbers means the signal.
DEADLY = {signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM}
SHOWN = 8  # most ranks that a message shows
GRACE = 3.0  # seconds between SIGTERM to mpiexec and SIGKILL
ENDING = LIMIT + 2.0  # seconds that ranks which keep pairs may take to end after SIGTERM


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
    import shutil

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
    if sys.stderr.isatty() or "ipykernel" in sys.modules:
        environ.setdefault("HIMACH_PROGRESS", "tty")
        from shutil import get_terminal_size

        environ.setdefault("COLUMNS", str(get_terminal_size().columns))
    return environ


@contextlib.contextmanager
def relay_output(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass on what ranks print while the context lasts, to the present sys.stdout and sys.stderr."""
    ended, line = os.pipe()
    failures: list[OSError] = []
    threads = [relay(process.stdout, sys.stdout, ended, failures), relay(process.stderr, sys.stderr, ended, failures)]
    try:
        yield
    finally:
        os.close(line)
        for thread in threads:
            thread.join(timeout=5)
        os.close(ended)
    if failures:
        raise failures[0]


def relay(source: IO[bytes] | None, sink: IO[str], stop: int, failures: list[OSError]) -> threading.Thread:
    """Copy `source` until it or `stop` ends, as others may hold the pipe; leave out MPICH's banner of a death."""
    assert source is not None
    banner = b"=" * 83 + b"\n"
    chunks = _chunks(source.fileno(), stop)

    def copy() -> None:
        pending = b""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        try:
            for chunk in chunks:
                pending += chunk
                start = pending.find(banner)
                if start >= 0:
                    pending = pending[:start]
                    break
                # Hold back what may be the start of a banner.
                keep = next((n for n in range(len(banner) - 1, 0, -1) if pending.endswith(banner[:n])), 0)
                ready = pending[: len(pending) - keep]
                pending = pending[len(pending) - keep :]
                pass_on(decoder.decode(ready), sink)
            pass_on(decoder.decode(pending, final=True), sink)
        except (BrokenPipeError, ValueError):  # the reader has gone
            pass
        except OSError as error:
            failures.append(error)
        # Drain the pipe: ranks would block when it is full.
        for _ in chunks:
            pass

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    return thread


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


def death_message(status: int, ranks: int, words: int, rank: int | None = None) -> str:
    """Return a message on ranks that ended without an error or a result."""
    if rank is None and (signalled := [index for index in range(ranks) if signal_at(words, index)]):
        rank = signalled[0]
        status = -signal_at(words, rank)  # mpiexec may report the signal with which it ended the others
    who = "a rank" if rank is None else f"rank {rank}"
    frames = {index: frame for index in range(ranks) if (frame := frame_at(words, index)) is not None}
    at = f" at frame {frames[rank]}" if rank in frames else ""
    rest = f", and the other ranks of {ranks} were ended" if ranks > 1 else ""
    if status == 0:
        return (
            f"{who} ended by itself{at} with exit code 0 before the work of the {ranks} ranks was done; code that it "
            "called must have ended it"
        )
    # mpiexec reports a rank's signal as 128 + number or as the number itself, which may also be an exit code.
    number = -status if status < 0 else status - 128 if status > 128 else status if status in DEADLY else 0
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"{who} ended by itself{at} with exit code {status}{rest}; what it or its MPI library printed is above"
    hint = "; the kernel does that when memory runs out: try fewer ranks" if name == "SIGKILL" else ""
    if rank is None and frames:
        places = [f"rank {index} at frame {frame}" for index, frame in frames.items()]
        hint = f"; it was {' or '.join(places[:SHOWN])}{' or ...' if len(places) > SHOWN else ''}{hint}"
    line = "" if rank is None else _last_line(words, rank)
    return f"{who} was killed by signal {number} ({name}){at}{rest}{hint}{line}"


def _last_line(words: int, rank: int) -> str:
    """Return the innermost line of user code with known text where a rank died, on a new line."""
    places = [place for place in lines_at(words, rank) if is_user_code(place[0])]
    place = next((place for place in places if linecache.getline(*place[:2])), places[0] if places else None)
    return "" if place is None else f"\n  {format_place(*place)}"
