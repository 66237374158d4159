"""A rank that stays: it waits for a turn, does its part of the work with the other ranks, and becomes as new again."""

from __future__ import annotations

import contextvars
import os
import pickle
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from himach.errors import as_himach
from himach.parallel.collective import is_everywhere
from himach.parallel.leaving import working
from himach.parallel.turns import StayingRank
from himach.runner.starting.ahead import import_ahead

if TYPE_CHECKING:
    from himach.parallel.communicator import World

__all__ = ["stay"]


def stay(rank: StayingRank) -> None:
    """Do work after work; return when there is no more, or when this process could not be as new for the next."""
    rank.answer()
    try:
        from himach.parallel.mpi import connect

        connect()
        import_ahead()
        from himach.io.topology.loading import remember
        from himach.runner.staying.renewal import Renewal

        remember()
        renewal = Renewal()
    except BaseException as error:
        rank.fail(as_himach(error))
    while rank.wait():
        world = connect()  # all ranks have come when it returns
        rank.begin()
        _take_turn(rank, world)
        renewal.finish_threads()
        if any(world.comm.allgather(renewal.spent())):
            return
        rank.done()
        renewal.renew()


def _take_turn(rank: StayingRank, world: World) -> None:
    """Do the work and leave result or error; an error of this rank alone ends all."""
    from himach.parallel.quiet import flush_all

    try:
        value = contextvars.copy_context().run(_work, rank, world)
        if world.comm.rank == 0:
            from himach.runner.job_pickle import pack_value

            rank.leave_result(pack_value(value))
    except BaseException as error:
        if not is_everywhere(error):
            rank.fail(as_himach(error))
        rank.leave_error(as_himach(error))
    flush_all()


def _work(rank: StayingRank, world: World) -> Any:
    """Do this rank's part, in the directory and with the variables that the starting process has now."""
    from himach.runner.job_pickle import unpack_work

    packed = pickle.loads(rank.work())
    os.environ.update(packed["environ"])
    os.chdir(f"/proc/{rank.process}/cwd")
    os.umask(_umask(rank.process))
    with warnings.catch_warnings(), working():
        return unpack_work(packed["work"])(world)


def _umask(process: int) -> int:
    lines = Path("/proc", str(process), "status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Umask:")), 8)
