"""Exit of a rank: the others never wait for it in vain, and an unfinished run never passes for done.

`guard_os_exit()` surrounds a run's work in this process and makes `os._exit()` an exception, as `sys.exit()` is. Ranks
of a launcher also `enter_run()`, which raises if a rank has left. An uncaught exception ends all ranks. SLURM lets
ranks wait for one that died, so that a guard ends the step. `exit_process()` ends a rank without destructors.

Also what a launcher (srun, mpiexec) told this process of its world, read from the environment without MPI.
"""

import atexit
import contextlib
import ctypes
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from himach.errors import HimachError, Interruption, RankError
from himach.ranks.collective import is_everywhere, meet
from himach.ranks.communicator import Communicator, node_name

# The first variable that is set counts. SLURM_NTASKS does not: a batch script has it before srun or mpiexec starts
# ranks.
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PALS_SIZE", "SLURM_STEP_NUM_TASKS")
NUMBERS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "PALS_RANKID", "SLURM_PROCID")
#: Prefixes of the variables by which ranks of an inner launcher would take themselves for ranks of an outer one.
FOREIGN = ("PMI_", "PMIX_", "PMI2_", "OMPI_", "PRTE_", "SLURM", "MPI_LOCAL", "HYDRA_", "HYDI_", "PALS_", "MV2_")


def promised_ranks(environ: Mapping[str, str] = os.environ) -> int:
    """Return how many ranks the launcher says it started, 1 for a plain process."""
    return next((int(environ[name]) for name in SIZES if environ.get(name, "").isdigit()), 1)


def promised_rank(environ: Mapping[str, str] = os.environ) -> int:
    """Return which rank the launcher says this process is, 0 for a plain process."""
    if not under_launcher(environ):
        return 0
    return next((int(environ[name]) for name in NUMBERS if environ.get(name, "").isdigit()), 0)


def ranks_of_node(environ: Mapping[str, str] = os.environ) -> int:
    """Return how many ranks the launcher says it started on this node, or on the node with most."""
    for name in ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_STEP_TASKS_PER_NODE"):
        if counts := re.findall(r"\d+(?![\d)]*\))", environ.get(name, "")):  # such as 4(x2),3
            return max(map(int, counts))
    return promised_ranks(environ)


def under_launcher(environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether this process is one of several ranks that a launcher started."""
    return promised_ranks(environ) > 1


def is_interruption(error: BaseException) -> bool:
    """Tell whether a signal raised `error`; in one of several ranks, KeyboardInterrupt is an ordinary exception."""
    return isinstance(error, Interruption) or (isinstance(error, KeyboardInterrupt) and not under_launcher())


FIRST_SAYS = 1.0  # seconds that other ranks leave to rank 0, which usually prints the same error
OTHERS_SAY = 10.0  # seconds that a leaving rank gives running ranks to report it and end all
LEAVING, FAILED, RUNNING = 0, 1, 2  # words of ranks at their ends and at the beginning of a run
PROXY = "hydra_pmi_proxy"
PMI_FINALIZE = b"cmd=finalize\n"  # of PMI-1, between MPICH's ranks and their launcher: it no longer needs the others
ANSWERS = 2.0  # seconds that the proxy may take to answer
SET_PARENT_DEATH_SIGNAL = 1  # of prctl()
_worker = ContextVar("worker", default=0)  # the process, in a thread that does a run's work
_exit_now = os._exit
_leave: Callable[[], object] | None = None  # tells the other ranks that this one ends
_guard: tuple[int, subprocess.Popen[bytes]] | None = None  # process and guard of a rank of a SLURM step
_forked: int | None = None  # pid of this process, if himach's launcher forked it as a rank


@contextlib.contextmanager
def guard_os_exit() -> Iterator[None]:
    """Make `os._exit()` an exception in this thread, reported like any other of user code: its status may be 0."""
    token = _worker.set(os.getpid())
    os._exit = _guarded_exit
    try:
        yield
    finally:
        _worker.reset(token)


def _guarded_exit(status: int) -> NoReturn:
    """Stand for `os._exit()`: raise where a run's work is done, else end this process as far as the others may know."""
    if os.getpid() == _worker.get():
        raise SystemExit(f"os._exit({status})")
    if _leave is not None:
        _leave()
    exit_process(status)


def set_parent_death_signal(parent: int) -> None:
    """Have the kernel kill this process when `parent`, or its thread that started this process, ends."""
    ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        _exit_now(1)


def end_with_launcher() -> None:
    """End this rank with the process of MPICH's mpiexec that started it; the threads of other launchers are unknown."""
    parent = os.getppid()
    if _is_proxy(parent):
        set_parent_death_signal(parent)


def pmi_finalize() -> None:
    """Tell the launcher, if it is MPICH's mpiexec or himach's own, that all ranks end by themselves."""
    line = os.environ.get("PMI_FD", "")
    if line.isdecimal() and (_forked == os.getpid() or _is_proxy(os.getppid())):
        with contextlib.suppress(OSError):
            os.write(int(line), PMI_FINALIZE)
            select.select([int(line)], [], [], ANSWERS)


def _is_proxy(process: int) -> bool:
    """Tell whether a process is the one of MPICH's mpiexec that starts ranks on a machine."""
    try:
        return Path("/proc", str(process), "comm").read_text().strip() == PROXY
    except OSError:
        return False


def skip_teardown() -> None:
    """Let this forked rank end at once: Python's teardown of each object takes as long as a short run."""
    global _forked
    _forked = os.getpid()


def _end() -> None:
    if _forked == os.getpid():
        flush()
        # In MPI_Finalize() all ranks would wait for each other again, in turn on few processors. By now shared memory
        # has no name, and all ranks have come.
        pmi_finalize()
        exit_process(0)


atexit.register(_end)  # registered before the functions of what ranks import, so called after them


def watch_exit(comm: Communicator, abort: Callable[[int], NoReturn]) -> None:
    """From now on let no rank wait for this one in vain, however it leaves; call once, when MPI is initialised."""
    global _leave
    process, thread, excepthook = os.getpid(), threading.get_ident(), sys.excepthook

    def uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if isinstance(error, HimachError):
            _end_with_error(comm, error)
        else:
            if comm.rank != 0:
                time.sleep(FIRST_SAYS)
            excepthook(kind, error, traceback)
        abort(getattr(error, "exit_code", 1))

    def leave() -> None:
        if os.getpid() == process and threading.get_ident() == thread and {*_tell(comm, LEAVING)} != {LEAVING}:
            time.sleep(OTHERS_SAY)
            exit_process(1, "told")

    sys.excepthook = uncaught
    _leave = leave
    os._exit = _guarded_exit
    atexit.register(leave)


def _end_with_error(comm: Communicator, error: HimachError) -> None:
    """Print an error once; end this rank if all ranks end by it, return if others must be ended."""
    everywhere = is_everywhere(error)
    if comm.rank == 0 or not everywhere:
        print(f"himach: error: {error}", file=sys.stderr, flush=True)
    if everywhere:
        with contextlib.suppress(HimachError):  # a rank may have caught the error and gone on
            if {*_tell(comm, FAILED, error)} == {FAILED}:
                pmi_finalize()
                exit_process(error.exit_code)
        if comm.rank != 0:  # the first rank may have caught it, and printed nothing
            print(f"himach: error: {error} (rank {comm.rank} ends by it, and another caught it)", file=sys.stderr)


def enter_run(comm: Communicator) -> None:
    """Begin a run together with all ranks; raise RankError if one has left."""
    words = _tell(comm, RUNNING)
    if ended := [rank for rank, word in enumerate(words) if word != RUNNING]:
        raise RankError(
            f"rank {ended[0]} of {comm.size} ended before this run began; every rank must make the same calls of "
            "himach.run(), up to the end of the script"
        )


def _tell(comm: Communicator, word: int, error: HimachError | None = None) -> list[int]:
    """Tell all ranks whether this one runs on or leaves; return the words of all. Raise an error if none come."""
    meet(comm, error, patience=FIRST_SAYS)
    words: list[int] = comm.allgather(word)
    return words


#: Guard of a rank: a shell that waits for the end of a pipe, whatever the rank is doing or dies of.
GUARD = (
    "trap '' INT TERM USR1; last=; while read -r word; do last=$word; done; "
    '[ "$last" = done ] && exit; '
    "sleep 0.3; "  # when all ranks are ended, this guard is ended too
    '[ "$last" = told ] || echo "himach: error: $1" >&2; '
    'exec scancel --quiet --signal=KILL "$2" 2>/dev/null'
)


def guard_step() -> None:
    """Start a guard, once, if this is a rank of a SLURM step: it ends the step if the rank dies without a message.

    By default SLURM leaves the other ranks of a step waiting when one has ended; other launchers end them.
    """
    global _guard
    step = (os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_STEP_ID"))
    if _guard is not None or None in step or promised_ranks() == 1:
        return
    message = (
        f"rank {promised_rank()} of {promised_ranks()} (node {node_name()}) died, by a signal or an exit of its own, "
        "before its work was done; all ranks are ended"
    )
    words = ["/bin/sh", "-c", GUARD, "sh", message, ".".join(map(str, step))]
    with contextlib.suppress(OSError):
        _guard = os.getpid(), subprocess.Popen(words, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        atexit.register(say, "done")
        os._exit = _guarded_exit


def exit_process(status: int, word: str = "done") -> NoReturn:
    """End this process at once and tell its guard, if it has one (see `say`)."""
    say(word)
    _exit_now(status)


def flush() -> None:
    """Flush standard output and error, before the process ends at once."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # user code may have closed it
            stream.flush()


def say(word: str) -> None:
    """Tell the guard, if any, how this rank ends: "done", or "told" if it printed an error and others must end."""
    if _guard is not None and _guard[0] == os.getpid():
        pipe = _guard[1].stdin
        assert pipe is not None
        with contextlib.suppress(OSError):
            pipe.write(f"{word}\n".encode())
