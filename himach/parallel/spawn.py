"""Starts ranks on this machine, passes on what they print, and leaves none behind.

`spawn()` has N ranks do a piece of work, `run_ranks()` run any command. A command that forks its ranks is started once,
others by mpiexec. What is handed over, and that ranks end when the process that started them does, is
`himach.parallel.handover`'s.
"""

from __future__ import annotations

import array
import codecs
import contextlib
import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn

from himach.errors import RankError
from himach.parallel import segments
from himach.parallel.environment import FOREIGN
from himach.parallel.handover import Handover
from himach.parallel.orders import LIMIT, Terminated, relayed

__all__ = [
    "FORKS",
    "died",
    "end",
    "end_orderly",
    "exec_mpiexec",
    "pass_on",
    "rank_environment",
    "relay",
    "run_ranks",
    "spawn",
    "start",
    "there",
]

#: Environment variable: how many ranks a command shall fork.
FORKS = "HIMACH_FORKS"
#: Environment variable: ``mpiexec`` to have ranks of this machine started by it in any case.
LAUNCHER = "HIMACH_LAUNCHER"

#: Runs mpiexec and outlives this process, if need be, to remove what killed ranks leave. It hears SIGTERM and waits on,
#: for mpiexec, which gets it too; SIGUSR1 it does not hear.
KEEPER = (
    "trap '' USR1; trap : TERM; python=$0 sweeper=$1 since=$2; shift 2; "
    '"$@" || exec "$python" -I -S "$sweeper" "$since" $?'
)
#: Signals that a rank dies of, as a rule: an mpiexec that ends with one of these numbers means the signal.
DEADLY = {signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM}
GRACE = 3.0  # seconds between asking mpiexec to end and killing
ENDING = LIMIT + 2.0  # seconds that ranks which keep pairs may take to end after SIGTERM


def spawn(command: Sequence[str], ranks: int, work: bytes, keeps: bool = False, forks: bool = False) -> bytes:
    """Have `ranks` ranks of this machine run ``command``, which does some `work`; return what rank 0 left.

    Parameters
    ----------
    command
        Program and arguments of each rank; it uses a `himach.parallel.handover.SpawnedRank`.
    ranks
        Number of ranks.
    work
        For the ranks to read.
    keeps
        Whether ranks may keep pairs, which takes time when they are told to end.
    forks
        Whether ``command`` is one that forks its ranks (see `start`).

    Raises
    ------
    RankError, HimachError
        As `run_ranks` does.
    """
    with Handover(work) as handover:
        run_ranks(command, ranks, handover, keeps, forks)
        result = handover.result()
    if result is None:
        raise RankError(died(0, ranks))
    return result


def run_ranks(command: Sequence[str], ranks: int, handover: Handover, keeps: bool = False, forks: bool = False) -> None:
    """Run ``command`` as `ranks` MPI ranks of this machine and wait for them.

    Parameters
    ----------
    command
        Program and arguments of each rank.
    ranks
        Number of ranks.
    handover
        Where ranks leave errors; those that are left when mpiexec has ended are killed. SIGUSR1 goes to them by it.
    keeps
        Whether ranks may keep pairs, which takes time when they are told to end.
    forks
        Whether ``command`` is one that forks its ranks (see `start`).

    Raises
    ------
    Terminated
        After SIGTERM, when all ranks have ended.
    RankError
        If there is no mpiexec, or a rank died without a word.
    HimachError
        What a rank reported, in its own class.
    """
    began = time.time()
    process = start(command, ranks, rank_environment() | handover.variable, forks)
    ended, line = os.pipe()
    relays = [relay(process.stdout, sys.stdout, ended), relay(process.stderr, sys.stderr, ended)]
    try:
        with relayed(handover.send):
            status = wait(process, handover, keeps)
    finally:
        handover.end_ranks()
        os.close(line)
        for thread, stream in zip(relays, (process.stdout, process.stderr), strict=True):
            thread.join(timeout=5)
            if stream is not None and not thread.is_alive():
                stream.close()
        os.close(ended)
        if process.returncode < 0:  # what was to remove their segments was killed
            segments.sweep(began)
    error = handover.error()
    if error is not None:
        raise error
    if status:
        raise RankError(died(status, ranks))


def start(
    command: Sequence[str], ranks: int, environ: Mapping[str, str], forks: bool = False
) -> subprocess.Popen[bytes]:
    """Start ``command`` as `ranks` MPI ranks of this machine; return the process whose end is theirs.

    What they print is to be read from its pipes. A command that forks does so where it finds their number in ``$FORKS``
    (see `himach.parallel.forking`), and calls `exec_mpiexec` where the MPI library is not made for that.
    """
    if forks and _beside().exists() and environ.get(LAUNCHER) != "mpiexec":
        environ = {**environ, FORKS: str(ranks)}
    else:
        command = _kept(command, ranks)
    # Linux only, as what is handed over is; a session of its own keeps the terminal's Ctrl-C for this process.
    return subprocess.Popen(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def exec_mpiexec(command: Sequence[str], ranks: int) -> NoReturn:
    """Become the process that `start` starts for a command that does not fork."""
    kept = _kept(command, ranks)
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(signum, signal.SIG_DFL)
    os.execv(kept[0], kept)


def _kept(command: Sequence[str], ranks: int) -> list[str]:
    mpiexec = [*_mpiexec(), "-n", str(ranks), *command]
    return ["/bin/sh", "-c", KEEPER, sys.executable, segments.__file__, str(time.time()), *mpiexec]


def _beside() -> Path:
    """Return where the mpiexec is, if there is one, of the MPI that mpi4py finds first: beside this Python."""
    return Path(sys.executable).with_name("mpiexec")


def _mpiexec() -> list[str]:
    """Return the start of an mpiexec command line that runs ranks here."""
    beside = _beside()
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise RankError(
            "several ranks need an MPI with its mpiexec, and there is none: pip install 'himach[local]', or load the "
            "cluster's MPI module"
        )
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    if "Open MPI" in version or "OpenRTE" in version or "PRRTE" in version:
        return [found, "--oversubscribe", "--bind-to", "none"]
    return [found, "-launcher", "fork"]


def rank_environment() -> dict[str, str]:
    """Return the environment that ranks of this machine have from this process."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    environ.setdefault("OMP_NUM_THREADS", "1")
    # MPICH's collectives in shared memory take turns by the kilobyte; with fewer processors than ranks, each turn waits
    # until the right one runs: 3 MB to 4 ranks on 2 took 4 s, and take 3 ms without.
    environ.setdefault("MPIR_CVAR_POSIX_NUM_COLLS_THRESHOLD", "1000000000")
    # All ranks are here: UCX below MPICH need not look for networks and their libraries.
    environ.setdefault("UCX_TLS", "self,sm")
    environ.setdefault("UCX_MODULES", "^ib,rdmacm")
    environ["PYTHONUNBUFFERED"] = "1"  # what rank 0 prints appears when it is printed, though through a pipe
    environ["PYTHONIOENCODING"] = "utf-8"  # between ranks and this process; it knows its terminal's own
    if sys.stderr.isatty() or "ipykernel" in sys.modules:
        environ.setdefault("HIMACH_PROGRESS", "tty")
        environ.setdefault("COLUMNS", str(shutil.get_terminal_size().columns))
    if os.geteuid() == 0:
        for prefix in ("OMPI", "PRTE"):
            environ[f"{prefix}_ALLOW_RUN_AS_ROOT"] = environ[f"{prefix}_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    return environ


def relay(source: IO[bytes] | None, sink: IO[str], stop: int | None = None) -> threading.Thread:
    """Pass bytes on as they come, but for the banner by which MPICH's mpiexec mourns a rank.

    To the end, or, when the descriptor `stop` is at its end, what is there by then: what a rank has left behind may
    have the pipe, too.
    """
    assert source is not None
    banner = b"=" * 83 + b"\n"
    chunks = _chunks(source.fileno(), stop)

    def run() -> None:
        held = b""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for chunk in chunks:
            held += chunk
            start = held.find(banner)
            if start >= 0:
                held = held[:start]
                break
            # Keep back what may be the beginning of a banner.
            keep = next((n for n in range(len(banner) - 1, 0, -1) if held.endswith(banner[:n])), 0)
            ready = held[: len(held) - keep]
            held = held[len(held) - keep :]
            pass_on(decoder.decode(ready), sink)
        pass_on(decoder.decode(held, final=True), sink)

    def copy() -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody listens any more; ranks would wait for a reader
            run()
        for _ in chunks:
            pass

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    return thread


def _chunks(pipe: int, stop: int | None) -> Iterator[bytes]:
    """Give what comes by a pipe, until it or `stop` is at its end."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    if stop is not None:
        poll.register(stop, select.POLLIN)
    while stop not in dict(poll.poll()):
        chunk = os.read(pipe, 65536)
        if not chunk:
            return
        yield chunk
    yield there(pipe)


def there(pipe: int) -> bytes:
    """Return what is in a pipe."""
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return os.read(pipe, count[0]) if count[0] else b""


def pass_on(text: str, sink: IO[str]) -> None:
    """Write text where this process's own goes."""
    if text:
        encoding = getattr(sink, "encoding", None) or "utf-8"
        sink.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sink.flush()


def wait(process: subprocess.Popen[bytes], handover: Handover, keeps: bool) -> int:
    """Wait for mpiexec; if that is interrupted, end it (see `end_orderly`)."""
    try:
        return process.wait()
    except BaseException as error:
        end_orderly(process, handover, error, keeps)
        raise


def end_orderly(process: subprocess.Popen[bytes], handover: Handover, error: BaseException, keeps: bool) -> None:
    """End mpiexec because of an error; where it is SIGTERM, and ranks may keep pairs, these have time to do so."""
    if keeps and isinstance(error, Terminated):
        handover.send(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=ENDING)
    end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End mpiexec and its ranks: ask, then kill the whole group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=GRACE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def died(status: int, ranks: int) -> str:
    """Say how mpiexec ended where no rank left a word, nor a result."""
    if status == 0:
        return (
            f"a rank ended by itself with exit code 0 before the work of the {ranks} ranks was done; code that it "
            "called must have ended it"
        )
    # mpiexec gives a rank's signal as 128 + number or as the number itself, which may be an exit code as well.
    number = -status if status < 0 else status - 128 if status > 128 else status if status in DEADLY else 0
    try:
        name = signal.Signals(number).name
    except ValueError:
        return (
            f"a rank ended by itself with exit code {status}, and the other ranks of {ranks} were ended; "
            "what it or its MPI library printed is above"
        )
    hint = "; the kernel does that when memory runs out: try fewer ranks" if name == "SIGKILL" else ""
    return f"a rank was killed by signal {number} ({name}), and the other ranks of {ranks} were ended{hint}"
