"""``python -m himach.slurm.rank_main``: one of the ranks of a step, which wait for work of the process that started it.

The first one is on its node and finds it there (`himach.launch.parent_channel`); the others have all from the first.
"""

from __future__ import annotations

import os
import signal
import sys

from himach.errors import as_himach
from himach.launch.parent_channel import ParentChannel, umask_of
from himach.launch.preload import preload
from himach.launch.rank_main import do_work
from himach.parallel import process_exit
from himach.parallel.environment import promised_rank

__all__: list[str] = []


def main() -> None:
    """Wait for work, do it with the other ranks, and leave what came of it."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # but while a run maps
    parent = ParentChannel.here() if promised_rank() == 0 else None
    try:
        if parent is not None:
            parent.die_with_parent()
        preload()
        _work(parent)
    except BaseException as error:
        told = as_himach(error)
        if parent is not None:
            parent.fail(told)
        print(f"himach: error: {told}", file=sys.stderr, flush=True)
        process_exit.leave(told.exit_code, "told")


def _work(parent: ParentChannel | None) -> None:
    from himach.parallel.mpi import connect

    connect()
    called = parent is not None and parent.wait()
    world = connect()  # where the others wait until the first has been called
    asked = world.comm.bcast(_asked(parent) if called and parent is not None else None)
    if asked is not None:
        cwd, umask, work = asked
        os.chdir(cwd)
        os.umask(umask)
        do_work(world, work, parent)


def _asked(parent: ParentChannel) -> tuple[str, int, bytes]:
    return os.getcwd(), umask_of(os.getpid()), parent.work()


if __name__ == "__main__":
    main()
