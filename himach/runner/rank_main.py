"""``python -m himach.runner.rank_main``: one of the ranks that `himach.run(..., ranks=N)` started."""

from __future__ import annotations

from himach.errors import as_himach
from himach.parallel.spawn import Started

__all__: list[str] = []


def main() -> None:
    """Take the job from the private folder, carry it out, and leave the result there."""
    started = Started.here()
    if started is None:
        raise SystemExit("himach.runner.rank_main is how himach.run() starts its ranks; it is not started by hand")
    started.hold_lifeline()
    rank = 0
    try:
        from himach.parallel.mpi import connect

        world = connect()
        rank = world.comm.rank
        from himach.parallel.quiet import quiet_ranks
        from himach.runner.job_pickle import pack_result, unpack_job
        from himach.runner.rank import perform

        with quiet_ranks(rank):
            job, begun = unpack_job((started.folder / "job").read_bytes())
            done = perform(world, job, begun)
            if rank == 0:
                (started.folder / "result").write_bytes(pack_result(done))
    except Exception as error:
        started.fail(as_himach(error), rank)


if __name__ == "__main__":
    main()
