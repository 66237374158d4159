"""``python -m himach.ranks.launch.rank_main``: a rank that a himach process started, or the process that forks them."""

from __future__ import annotations

import os
import pickle
import signal
from functools import partial

from himach.errors import as_himach
from himach.ranks import process_exit
from himach.ranks.collective import is_everywhere
from himach.ranks.launch.launcher import fork_ranks, has_threads, speaks_pmi
from himach.ranks.launch.parent_channel import BEGUN, DIED, ParentChannel
from himach.ranks.launch.pool import FORKS, RANK, exec_mpiexec, unpack_work
from himach.ranks.launch.preload import preload


def main() -> None:
    """Wait for work of the starting process, do it with the other ranks, and leave it the result."""
    parent = ParentChannel.from_env()
    if parent is None:
        raise SystemExit("himach.ranks.launch.rank_main is how himach starts its ranks; it is not started by hand")
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a run handles it while it maps
    try:
        if ranks := int(os.environ.pop(FORKS, "0")):
            _fork(parent, ranks)
        parent.die_with_parent()
        _work(parent)
    except BaseException as error:
        parent.fail(as_himach(error))


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


def _work(parent: ParentChannel) -> None:
    """Initialise MPI, wait for work, and do this rank's part of it; rank 0 leaves the result."""
    from himach.ranks.mpi import connect, end_together

    connect()
    if not parent.wait():
        return
    world = connect()  # returns when all ranks have come
    parent.publish_last_words(world.comm.rank)
    if world.comm.rank == 0:
        parent.say(BEGUN)
    try:
        with process_exit.guard_os_exit():
            value = unpack_work(parent.work())(world)
    except BaseException as error:
        if not is_everywhere(error):
            raise
        parent.publish_error(as_himach(error))
        end_together(0)
    if world.comm.rank == 0:
        parent.publish_result(pickle.dumps(value))


if __name__ == "__main__":
    main()
