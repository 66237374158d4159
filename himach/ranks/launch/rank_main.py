"""``python -m himach.ranks.launch.rank_main [RANKS]``: a rank that another himach process started, here or by srun.

With RANKS it is the process that starts this many on this machine. The first rank reads the work from standard input;
the outcome goes to the file of last words or, from a job, to standard output, after a mark.
"""

import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import BinaryIO

from himach.errors import HimachError, RankError, UsageError, as_himach
from himach.ranks import last_words, process_exit
from himach.ranks.collective import is_everywhere, run_collectively
from himach.ranks.communicator import World, node_name
from himach.ranks.launch.launcher import fork_ranks, speaks_pmi
from himach.ranks.launch.pool import DONE, LAST_WORDS, MARK, outcome_mark, unpack_work
from himach.ranks.launch.preload import preload

Publish = Callable[[bytes | HimachError], None]


def main() -> None:
    """Wait for work, do it with the other ranks, and write the outcome."""
    if MARK not in os.environ:
        raise SystemExit("himach.ranks.launch.rank_main is how himach starts its ranks; it is not started by hand")
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a run handles it while it maps
    signal.signal(signal.SIGINT, lambda signum, frame: None)  # srun's first one of two, by which it ends the ranks
    file = os.environ.get(LAST_WORDS)  # else standard output, which user code may redirect
    output = os.fdopen(os.open(file, os.O_WRONLY | os.O_APPEND) if file else os.dup(1), "wb")
    try:
        gate = _launch(int(sys.argv[1])) if sys.argv[1:] else None
        preload()
        _work(partial(_publish, output), gate)
    except BaseException as error:
        _publish(output, portable(as_himach(error)))
        process_exit.flush()
        process_exit.exit_process(as_himach(error).exit_code, "told")


def _launch(ranks: int) -> int:
    """Import what every run needs once for all ranks, fork them, and return in each."""
    preload()
    from himach.ranks.mpi import load

    library = load()
    if not speaks_pmi(library):
        raise RankError(
            f"himach starts ranks with MPICH, and the MPI library here ({library.splitlines()[0]}) has a launcher of "
            f"its own: mpiexec -n {ranks} himach ..., or srun; or pip install 'himach[local]', which brings MPICH"
        )
    os.chdir("/")  # do not keep the user's directory mounted while there is no work
    return fork_ranks(ranks, _is_wanted, lambda rank: _tell(b"%d" % rank))


def _is_wanted() -> bool:
    """Tell the starting process that all ranks have ended well; return whether it may want others."""
    _tell(DONE)
    with socket.socket(fileno=os.dup(0)) as starter:
        try:
            return bool(starter.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True


def _tell(text: bytes) -> None:
    with suppress(OSError):  # the starting process has ended
        os.write(0, text)


def _work(publish: Publish, gate: int | None) -> None:
    """Initialise MPI, wait for work, and do this rank's part of it; the first rank publishes the outcome."""
    from himach.ranks.mpi import connect, end_together

    # Ranks that user code starts have others.
    words_file = os.environ.pop(LAST_WORDS, "")
    connect()
    request = None
    if process_exit.promised_rank() == 0:
        with suppress(EOFError), open(os.dup(0), "rb") as file:
            request = pickle.load(file)
    elif gate is not None:
        os.read(gate, 1)  # at the end when the first rank closes the gate
    if gate is not None:
        os.close(gate)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    world = connect()  # returns when all ranks have come
    request = world.comm.bcast(request)
    if request is None:
        return
    if words_file:
        last_words.write_to(words_file, world.comm.rank)
    try:
        result = _result(world, *request)
    except BaseException as error:
        if not is_everywhere(error):
            raise
        if world.comm.rank == 0:
            publish(portable(as_himach(error)))
        end_together(0)
    if world.comm.rank == 0:
        publish(result)


def _result(world: World, cwd: str, umask: int, work: bytes) -> bytes:
    """Do this rank's part of the work; return its result."""
    os.umask(umask)
    with process_exit.guard_os_exit():
        run_collectively(world.comm, lambda: _enter(cwd))
        return pickle.dumps(unpack_work(work)(world))


def _enter(cwd: str) -> None:
    try:
        os.chdir(cwd)
    except OSError as error:
        raise UsageError(
            f"the working directory {cwd} is not there on node {node_name()} ({error.strerror}): os.chdir() to one "
            "that all nodes see"
        ) from None


def _publish(output: BinaryIO, outcome: bytes | HimachError) -> None:
    """Write the outcome behind all that was printed; of several the first counts."""
    process_exit.flush()
    with suppress(OSError):  # the starting process has ended
        output.write(outcome_mark(os.environ[MARK]) + pickle.dumps(outcome))
        output.flush()


def portable(error: HimachError) -> HimachError:
    """Return an error of a class that any process can import, without its cause."""
    kind: type[HimachError] = next(base for base in type(error).__mro__ if base.__module__ == HimachError.__module__)
    return kind(str(error))


if __name__ == "__main__":
    main()
