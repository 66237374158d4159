"""``python -m himach.ranks.slurm.step_main``: a rank in a job; the first reads the work and writes the outcome."""

from __future__ import annotations

import os
import pickle
import signal
import sys

from himach.errors import HimachError, UsageError, as_himach
from himach.ranks import process_exit
from himach.ranks.collective import is_everywhere, run_collectively
from himach.ranks.communicator import World, node_name
from himach.ranks.launch.parent_channel import portable
from himach.ranks.launch.pool import unpack_work
from himach.ranks.launch.preload import preload


def main() -> None:
    """Wait for work, do it with the other ranks, and write the outcome."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a run handles it while it maps
    signal.signal(signal.SIGINT, lambda signum, frame: None)  # srun's first one of two, by which it ends the ranks
    try:
        _work()
    except BaseException as error:
        print(f"himach: error: {as_himach(error)}", file=sys.stderr, flush=True)
        process_exit.exit_process(as_himach(error).exit_code, "told")


def _work() -> None:
    preload()
    from himach.ranks.mpi import connect, end_together

    connect()
    request = sys.stdin.buffer.read() if process_exit.promised_rank() == 0 else None
    world = connect()  # returns when the first rank has come
    request = world.comm.bcast(request)
    if not request:
        return
    mark, cwd, umask, work = pickle.loads(request)
    os.umask(umask)
    outcome = _outcome(world, cwd, work)
    if world.comm.rank == 0:
        sys.stdout.flush()
        sys.stdout.buffer.write(mark + pickle.dumps(outcome))
    end_together(0)


def _outcome(world: World, cwd: str, work: bytes) -> bytes | HimachError:
    """Do this rank's part of the work; return its result, or the error of all ranks."""
    try:
        with process_exit.guard_os_exit():
            run_collectively(world.comm, lambda: _enter(cwd))
            return pickle.dumps(unpack_work(work)(world))
    except BaseException as error:
        if not is_everywhere(error):
            raise
        return portable(as_himach(error))


def _enter(cwd: str) -> None:
    try:
        os.chdir(cwd)
    except OSError as error:
        raise UsageError(
            f"the working directory {cwd} is not there on node {node_name()} ({error.strerror}): os.chdir() to one "
            "that all nodes see"
        ) from None


if __name__ == "__main__":
    main()
