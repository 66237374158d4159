"""``python -m himach.runner.rank_main``: one of the ranks that another process of himach started, or forks them."""

from __future__ import annotations

import os
import signal

from himach.errors import as_himach
from himach.parallel.handover import SpawnedRank
from himach.parallel.leaving import working
from himach.parallel.spawn import FORKS
from himach.parallel.turns import StayingRank

__all__: list[str] = []


def main() -> None:
    """Take the work from the process that started this one, do it with the other ranks, and leave it the result.

    Once, or again and again.
    """
    spawned = SpawnedRank.here() or StayingRank.here()
    if spawned is None:
        raise SystemExit("himach.runner.rank_main is how himach starts its ranks; it is not started by hand")
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # but while a run maps
    ranks = int(os.environ.pop(FORKS, "0"))
    if ranks:
        _fork(spawned, ranks)
    spawned.hold_lifeline()
    if isinstance(spawned, StayingRank):
        from himach.runner.staying.waiting import stay

        stay(spawned)
        return
    try:
        from himach.parallel.mpi import connect

        world = connect()
        from himach.runner.job_pickle import pack_value, unpack_work

        with working():
            value = unpack_work(spawned.work())(world)
        if world.comm.rank == 0:
            spawned.leave_result(pack_value(value))
    except BaseException as error:
        spawned.fail(as_himach(error))


def _fork(spawned: SpawnedRank, ranks: int) -> None:
    """Import what every run needs, once for all ranks, and return in each of them."""
    starter = spawned.watch()
    try:
        from himach.runner.starting.ahead import import_ahead

        import_ahead()
        from himach.parallel.mpi import load

        library = load()
        from himach.parallel.forking.launcher import fork_ranks, has_threads, speaks_pmi

        if has_threads() or not speaks_pmi(library):
            from himach.parallel.spawn import exec_mpiexec
            from himach.runner.staying.ranks import RANK

            exec_mpiexec(RANK, ranks)
        fork_ranks(ranks, starter)
    except BaseException as error:
        spawned.fail(as_himach(error))


if __name__ == "__main__":
    main()
