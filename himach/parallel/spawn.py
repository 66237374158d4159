"""Starts ranks on this machine with mpiexec, passes on what they print, and leaves none behind.

`spawn()` has N ranks do a piece of work, `run_ranks()` run any command; `SpawnedRank` is the ranks' side of the
arrangement: a private folder in which the work lies, a rank leaves its error and rank 0 its result, and a lifeline, so
that ranks end when the process that started them does.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NoReturn

from himach.errors import AnalysisError, HimachError, RankError, TrajectoryError, UsageError
from himach.parallel.environment import FOREIGN

__all__ = ["SpawnedRank", "run_ranks", "spawn"]

FOLDER = "HIMACH_STARTED_IN"
PARENT = "HIMACH_STARTED_BY"
WORK, RESULT = "work", "result"  # files in the folder
KINDS = {kind.__name__: kind for kind in (AnalysisError, HimachError, RankError, TrajectoryError, UsageError)}
#: Signals that a rank dies of, as a rule: an mpiexec that ends with one of these numbers means the signal.
DEADLY = {signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM}
GRACE = 3.0  # seconds between asking mpiexec to end and killing


def spawn(command: Sequence[str], ranks: int, work: bytes) -> bytes:
    """Have `ranks` ranks of this machine run ``command``, which does some `work`; return what rank 0 left.

    Parameters
    ----------
    command
        Program and arguments of each rank; it uses a `SpawnedRank`.
    ranks
        Number of ranks.
    work
        For the ranks to read.

    Raises
    ------
    RankError, HimachError
        As `run_ranks` does.
    """
    with tempfile.TemporaryDirectory(prefix="himach-") as name:  # of mode 0700: what is unpickled from it is ours
        folder = Path(name)
        (folder / WORK).write_bytes(work)
        run_ranks(command, ranks, folder)
        return (folder / RESULT).read_bytes()


def run_ranks(command: Sequence[str], ranks: int, folder: Path) -> None:
    """Run ``command`` as `ranks` MPI ranks of this machine and wait for them.

    Parameters
    ----------
    command
        Program and arguments of each rank.
    ranks
        Number of ranks.
    folder
        An existing folder of this user alone, where ranks leave errors.

    Raises
    ------
    RankError
        If there is no mpiexec, or a rank died without a word.
    HimachError
        What a rank reported, in its own class.
    """
    # Unix only, as MPICH's wheel is; a session of its own keeps the terminal's Ctrl-C for this process.
    process = subprocess.Popen(
        [*_mpiexec(), "-n", str(ranks), *command],
        env=_environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    relays = [
        _relay(process.stdout, sys.stdout),
        _relay(process.stderr, sys.stderr),
    ]
    try:
        status = process.wait()
    except BaseException:
        _end(process)
        raise
    finally:
        for relay in relays:
            relay.join(timeout=5)
    error = _reported(folder)
    if error is not None:
        raise error
    if status:
        raise RankError(_died(status, ranks))


class SpawnedRank:
    """The side of a rank that `run_ranks()` started.

    Attributes
    ----------
    folder
        The private folder shared with the process that started this rank.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def here(cls) -> SpawnedRank | None:
        """Return the arrangement if this process is a rank that `run_ranks()` started."""
        folder = os.environ.get(FOLDER)
        return cls(Path(folder)) if folder else None

    def hold_lifeline(self) -> None:
        """End this process as soon as the one that started the ranks is gone."""
        try:
            parent = os.pidfd_open(int(os.environ[PARENT]))
        except ProcessLookupError:
            os._exit(1)

        def watch() -> None:
            select.select([parent], [], [])
            os._exit(1)

        threading.Thread(target=watch, name="himach-lifeline", daemon=True).start()

    def work(self) -> bytes:
        """Return the work that this rank has a part in."""
        return (self.folder / WORK).read_bytes()

    def leave_result(self, result: bytes) -> None:
        """Leave the result for the starting process; on rank 0."""
        (self.folder / RESULT).write_bytes(result)

    def fail(self, error: HimachError, rank: int) -> NoReturn:
        """Leave the error for the starting process and end this rank; the launcher then ends the others."""
        kind = next(base.__name__ for base in type(error).__mro__ if base.__name__ in KINDS)
        report = {"kind": kind, "text": str(error), "time": time.time()}
        temporary = self.folder / f".error-{rank}"
        temporary.write_text(json.dumps(report))
        temporary.rename(self.folder / f"error-{rank}.json")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(error.exit_code)


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


def _environment(folder: Path) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    environ.setdefault("OMP_NUM_THREADS", "1")
    environ[FOLDER] = str(folder)
    environ[PARENT] = str(os.getpid())
    environ["PYTHONUNBUFFERED"] = "1"  # what rank 0 prints appears when it is printed, though through a pipe
    environ["PYTHONIOENCODING"] = "utf-8"  # between ranks and this process; it knows its terminal's own
    if sys.stderr.isatty() or "ipykernel" in sys.modules:
        environ.setdefault("HIMACH_PROGRESS", "tty")
        environ.setdefault("COLUMNS", str(shutil.get_terminal_size().columns))
    if os.geteuid() == 0:
        for prefix in ("OMPI", "PRTE"):
            environ[f"{prefix}_ALLOW_RUN_AS_ROOT"] = environ[f"{prefix}_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    return environ


def _relay(source: IO[bytes] | None, sink: IO[str]) -> threading.Thread:
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
            _pass_on(decoder.decode(ready), sink)
        _pass_on(decoder.decode(held, final=True), sink)

    def relay() -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody listens any more; ranks would wait for a reader
            run()
        while os.read(source.fileno(), 65536):
            pass

    thread = threading.Thread(target=relay, daemon=True)
    thread.start()
    return thread


def _pass_on(text: str, sink: IO[str]) -> None:
    if text:
        encoding = getattr(sink, "encoding", None) or "utf-8"
        sink.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sink.flush()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End mpiexec and its ranks: ask, then kill the whole group."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=GRACE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _reported(folder: Path) -> HimachError | None:
    """Return the first error that a rank left."""
    reports = [json.loads(path.read_text()) for path in folder.glob("error-*.json")]
    if not reports:
        return None
    first = min(reports, key=lambda report: report["time"])
    return KINDS[first["kind"]](first["text"])


def _died(status: int, ranks: int) -> str:
    """Say how mpiexec ended where no rank left a word."""
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
