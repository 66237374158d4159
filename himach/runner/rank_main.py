"""``python -m himach.runner.rank_main``: one of the ranks that another process of himach started."""

from __future__ import annotations

from himach.errors import as_himach
from himach.parallel.spawn import SpawnedRank

__all__: list[str] = []


def main() -> None:
    """Take the work from the private folder, do it with the other ranks, and leave what rank 0 returns there."""
    spawned = SpawnedRank.here()
    if spawned is None:
        raise SystemExit("himach.runner.rank_main is how himach starts its ranks; it is not started by hand")
    spawned.hold_lifeline()
    rank = 0
    try:
        from himach.parallel.mpi import connect

        world = connect()
        rank = world.comm.rank
        from himach.runner.job_pickle import pack_value, unpack_work

        value = unpack_work(spawned.work())(world)
        if rank == 0:
            spawned.leave_result(pack_value(value))
    except Exception as error:
        spawned.fail(as_himach(error), rank)


if __name__ == "__main__":
    main()
