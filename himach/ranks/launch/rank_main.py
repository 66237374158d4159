"""``python -m himach.ranks.launch.rank_main``: a rank that a himach process started, or the process that forks them."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from functools import partial

from himach.errors import as_himach
from himach.ranks import process_exit
from himach.ranks.collective import is_everywhere
from himach.ranks.communicator import World
from himach.ranks.launch.launcher import fork_ranks, has_threads, speaks_pmi
from himach.ranks.launch.parent_channel import BEGUN, DIED, ParentChannel, read_umask
from himach.ranks.launch.pool import FORKS, RANK, exec_mpiexec, unpack_work
from himach.ranks.launch.preload import preload
from himach.ranks.process_exit import promised_rank

#: Argument of the tasks of a job step, of which only the first finds the starting process.
STEP = "step"


def main() -> None:
    """Wait for work of the starting process, do it with the other ranks, and leave it the result."""
    parent = ParentChannel.from_env()
    if parent is None:
        raise SystemExit("himach.ranks.launch.rank_main is how himach starts its ranks; it is not started by hand")
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a run handles it while it maps
    ranks, step = int(os.environ.pop(FORKS, "0")), STEP in sys.argv
    if step and promised_rank() != 0:  # it may be on another node, which does not see that process
        parent = None
    try:
        if ranks:
            assert parent is not None
            _fork(parent, ranks)
        if parent is not None:
            parent.die_with_parent()
        _work(parent, step)
    except BaseException as error:
        if parent is not None:
            parent.fail(as_himach(error))
        print(f"himach: error: {as_himach(error)}", file=sys.stderr, flush=True)
        process_exit.exit_process(as_himach(error).exit_code, "told")


def _fork(parent: ParentChannel, ranks: int) -> None:
    """Import what every run needs once for all ranks, fork them, and return in each."""
    starter = parent.watch()
    preload()
    from himach.ranks.mpi import load

    if speaks_pmi(load()) and not has_threads():
        os.chdir("/")  # do not keep the user's directory mounted while there is no work
        fork_ranks(ranks, starter, parent.report_end, partial(parent.say, DIED))
        return
    exec_mpiexec(RANK, ranks)


def _work(parent: ParentChannel | None, step: bool) -> None:
    """Initialise MPI, wait for work, and do this rank's part of it."""
    if step:
        preload()
    from himach.ranks.mpi import connect

    connect()
    called = parent is not None and parent.wait()
    if not (called or step):
        return
    world = connect()  # returns when all ranks have come; in a step, when the first one was called
    work = parent.work() if called and parent is not None else None
    if step:
        request = (os.getcwd(), read_umask(os.getpid()), work) if called else None  # an uncalled rank's may not exist
        request = world.comm.bcast(request)
        if request is None:
            return
        cwd, umask, work = request
        os.chdir(cwd)
        os.umask(umask)
    assert work is not None
    do_work(world, work, parent)


def do_work(world: World, work: bytes, parent: ParentChannel | None) -> None:
    """Do this rank's part of the work when all ranks are there; rank 0 leaves the result to `parent`."""
    from himach.ranks.mpi import end_together

    if parent is not None:
        parent.publish_last_words(world.comm.rank)
        if world.comm.rank == 0:
            parent.say(BEGUN)
    try:
        with process_exit.guard_os_exit():
            value = unpack_work(work)(world)
    except BaseException as error:
        if not is_everywhere(error):
            raise
        if parent is not None:
            parent.publish_error(as_himach(error))
        end_together(0)
    if parent is not None and world.comm.rank == 0:
        parent.publish_result(pickle.dumps(value))


if __name__ == "__main__":
    main()
