"""``python -m himach.launch.rank_main``: one of the ranks that another process of himach started, or forks them."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from himach.errors import as_himach
from himach.launch.parent_channel import ParentChannel
from himach.launch.spawn import FORKS
from himach.parallel import process_exit

if TYPE_CHECKING:
    from himach.parallel.communicator import World

__all__ = ["do_work"]


def main() -> None:
    """Wait for work of the process that started this one, do it with the other ranks, and leave it the result."""
    parent = ParentChannel.here()
    if parent is None:
        raise SystemExit("himach.launch.rank_main is how himach starts its ranks; it is not started by hand")
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # but while a run maps
    ranks = int(os.environ.pop(FORKS, "0"))
    try:
        if ranks:
            _fork(parent, ranks)
            process_exit.end_at_once()
        parent.die_with_parent()
        _work(parent)
    except BaseException as error:
        parent.fail(as_himach(error))


def _fork(parent: ParentChannel, ranks: int) -> None:
    """Import what every run needs, once for all ranks, and return in each of them."""
    starter = parent.watch()
    from himach.launch.preload import preload

    preload()
    from himach.parallel.mpi import load

    library = load()
    from himach.launch.helper import has_threads
    from himach.launch.launcher import fork_ranks, speaks_pmi

    if has_threads() or not speaks_pmi(library):
        from himach.launch.rank_pool import RANK
        from himach.launch.spawn import exec_mpiexec

        exec_mpiexec(RANK, ranks)
    os.chdir("/")  # a directory of the user's can be unmounted before there is work
    fork_ranks(ranks, starter, parent.report_end, parent.report_death)


def _work(parent: ParentChannel) -> None:
    """Be there before there is work; do this rank's part of it."""
    from himach.parallel.mpi import connect

    connect()
    if parent.wait():
        world = connect()  # all ranks have come when it returns
        do_work(world, parent.work(), parent)


def do_work(world: World, work: bytes, parent: ParentChannel | None) -> None:
    """Do this rank's part of the work when all have come, and leave `parent`, which the first one has, what came of it.

    Raises
    ------
    BaseException
        If this rank alone failed.
    """
    from himach.launch.work_pickle import pack_value, unpack_work
    from himach.parallel.collective import is_everywhere
    from himach.parallel.mpi import end_together

    if parent is not None:
        parent.leave_last_words(world.comm.rank)
        if world.comm.rank == 0:
            parent.begin()
    try:
        with process_exit.working():
            value = unpack_work(work)(world)
    except BaseException as error:
        if not is_everywhere(error):
            raise
        if parent is not None:
            parent.leave_error(as_himach(error))
        end_together(0)
    if parent is not None and world.comm.rank == 0:
        parent.leave_result(pack_value(value))


if __name__ == "__main__":
    main()
