"""Starts ranks on this machine with mpiexec, passes on what they print, and leaves none behind.

`spawn()` has N ranks do a piece of work, `run_ranks()` run any command. What is handed over, and that ranks end when
the process that started them does, is `himach.parallel.handover`'s.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from himach.errors import RankError
from himach.parallel import segments
from himach.parallel.environment import FOREIGN
from himach.parallel.handover import Handover
from himach.parallel.orders import LIMIT, Terminated, relayed

__all__ = ["died", "end", "end_orderly", "pass_on", "rank_environment", "relay", "run_ranks", "spawn", "start"]

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


def spawn(command: Sequence[str], ranks: int, work: bytes, keeps: bool = False) -> bytes:
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

    Raises
    ------
    RankError, HimachError
        As `run_ranks` does.
    """
    with Handover(work) as handover:
        run_ranks(command, ranks, handover, keeps)
        result = handover.result()
    if result is None:
        raise RankError(died(0, ranks))
    return result


def run_ranks(command: Sequence[str], ranks: int, handover: Handover, keeps: bool = False) -> None:
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
    process = start(command, ranks, rank_environment() | handover.variable)
    relays = [relay(process.stdout, sys.stdout), relay(process.stderr, sys.stderr)]
    try:
        with relayed(handover.send):
            status = wait(process, handover, keeps)
    finally:
        handover.end_ranks()
        for thread, stream in zip(relays, (process.stdout, process.stderr), strict=True):
            thread.join(timeout=5)
            if stream is not None and not thread.is_alive():
                stream.close()
        if process.returncode < 0:  # what was to remove their segments was killed
            segments.sweep(began)
    error = handover.error()
    if error is not None:
        raise error
    if status:
        raise RankError(died(status, ranks))


def start(command: Sequence[str], ranks: int, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start ``command`` as `ranks` MPI ranks of this machine; return the process whose end is theirs.

    What they print is to be read from its pipes.
    """
    mpiexec = [*_mpiexec(), "-n", str(ranks), *command]
    # Linux only, as what is handed over is; a session of its own keeps the terminal's Ctrl-C for this process.
    return subprocess.Popen(
        ["/bin/sh", "-c", KEEPER, sys.executable, segments.__file__, str(time.time()), *mpiexec],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _mpiexec() -> list[str]:
    """Return the start of an mpiexec command line that runs ranks here."""
    # The one beside this Python belongs to the MPI that mpi4py finds first.
    beside = Path(sys.executable).with_name("mpiexec")
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
    environ["PYTHONUNBUFFERED"] = "1"  # what rank 0 prints appears when it is printed, though through a pipe
    environ["PYTHONIOENCODING"] = "utf-8"  # between ranks and this process; it knows its terminal's own
    if sys.stderr.isatty() or "ipykernel" in sys.modules:
        environ.setdefault("HIMACH_PROGRESS", "tty")
        environ.setdefault("COLUMNS", str(shutil.get_terminal_size().columns))
    if os.geteuid() == 0:
        for prefix in ("OMPI", "PRTE"):
            environ[f"{prefix}_ALLOW_RUN_AS_ROOT"] = environ[f"{prefix}_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    return environ


def relay(source: IO[bytes] | None, sink: IO[str]) -> threading.Thread:
    """Pass bytes on as they come, but for the banner by which MPICH's mpiexec mourns a rank."""
    assert source is not None
    banner = b"=" * 83 + b"\n"

    def run() -> None:
        held = b""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while chunk := os.read(source.fileno(), 65536):
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
        while os.read(source.fileno(), 65536):
            pass

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    return thread


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
