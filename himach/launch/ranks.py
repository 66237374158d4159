"""`Ranks`: ranks of this machine that are there before a run begins, for `himach.run(..., ranks=ranks)`."""

from __future__ import annotations

import os
import sys
import threading
from types import TracebackType

from himach.errors import UsageError
from himach.launch.memory import node_memory
from himach.launch.rank_pool import NotBegunError, RankPool
from himach.launch.spawn import rank_environment
from himach.parallel.environment import promised_ranks, under_launcher

__all__ = ["RANK", "Ranks", "check_machine"]

#: What every rank is that himach starts.
RANK = (sys.executable, "-P", "-m", "himach.launch.rank_main")
#: Ranks a processor, at most, unless more are asked for by name.
OF_PROCESSOR = 4
#: What a rank takes for itself, before it reads a frame.
RANK_BYTES = 1 << 25


def check_machine(ranks: int) -> None:
    """Refuse more ranks than this machine can be meant to have: five hundred of them on two processors stop it."""
    processors, memory = len(os.sched_getaffinity(0)), node_memory()
    most = max(1, min(OF_PROCESSOR * processors, memory // RANK_BYTES))
    if ranks > most:
        raise UsageError(
            f"{ranks} ranks are more than this machine can do with ({processors} processors, {memory / 2**30:.3g} GiB "
            f"for them): start at most {most}, or say that it is meant, by --oversubscribe or "
            f"himach.Ranks({ranks}, oversubscribe=True)"
        )


class Ranks:
    """Ranks of this machine that are there before a run begins, with all that runs import.

    They are started at once and wait, without using a processor, until `close()`, the end of a ``with`` block or of
    this process, whatever ends it. Each run has ranks that have run nothing: they are forked, as soon as those of the
    run before have ended, from one process that has imported MDAnalysis and himach and runs nothing itself. Code, files
    and the environment count as they are when a run begins. After the death of a rank, an interruption or a change of
    the environment that process is a new one. Where MPI's library has no ranks that are forked (Open MPI, or MPICH
    built for another launcher), each run starts its ranks by mpiexec, all but the first when it begins.

    Parameters
    ----------
    size
        Number of ranks. Where mpiexec or srun started several, these are used, and `size` must be their number.
    oversubscribe
        Whether there may be more than four a processor, or more than memory holds.

    Raises
    ------
    RankError
        If there is no mpiexec.
    UsageError
        If there are too many for this machine, or they cannot be had: closed, busy with a run of another thread, or
        those of the process that forked this one.

    Examples
    --------
    >>> with himach.Ranks(8) as ranks:  # doctest: +SKIP
    ...     for cutoff in (3.0, 3.5):
    ...         himach.run(Contacts(cutoff=cutoff), "traj.xtc", "top.gro", ranks=ranks)
    """

    def __init__(self, size: int, oversubscribe: bool = False) -> None:
        if size < 1:
            raise UsageError(f"ranks must be 1 or more, not {size}")
        if not (oversubscribe or under_launcher()):
            check_machine(size)
        self.size = size
        self._process = os.getpid()
        self._busy = threading.Lock()
        self._closed = False
        self._ranks = None if under_launcher() else RankPool(RANK, size, forks=True)

    @property
    def alive(self) -> bool:
        """Whether the next run finds them waiting; else it starts them anew, unless they are closed."""
        if os.getpid() != self._process:
            return False
        return promised_ranks() == self.size if self._ranks is None else self._ranks.alive

    def close(self) -> None:
        """End the ranks; no run can use them any more."""
        if os.getpid() != self._process or self._closed:
            return
        self._take()
        try:
            self._closed = True
            if self._ranks is not None:
                self._ranks.end()
        finally:
            self._busy.release()

    def do(self, work: bytes, keeps: bool = False) -> bytes:
        """Have all ranks do packed work (`himach.launch.work_pickle`), which may keep pairs; return rank 0's result.

        Raises
        ------
        UsageError
            As the class says.
        HimachError
            As with ranks of its own.
        """
        self._take()
        try:
            for last in (False, True):
                try:
                    return self._started().do(work, keeps)
                except NotBegunError:  # they were killed while they waited
                    if last:
                        raise
            raise AssertionError("the last attempt returns or raises")
        finally:
            self._busy.release()

    def _take(self) -> None:
        if os.getpid() != self._process:
            raise UsageError("these ranks are those of the process that forked this one; make others: himach.Ranks(n)")
        if not self._busy.acquire(blocking=False):
            raise UsageError("these ranks are busy with a run of another thread; give each thread Ranks of its own")
        if self._closed:
            self._busy.release()
            raise UsageError(f"these ranks were closed; make new ones: himach.Ranks({self.size})")

    def _started(self) -> RankPool:
        """Return ranks that are alive and know the environment as it is."""
        ranks = self._ranks
        if ranks is None or not ranks.alive or ranks.environ != rank_environment():
            if ranks is not None:
                ranks.end()
            ranks = self._ranks = RankPool(RANK, self.size, forks=True)
        return ranks

    def __repr__(self) -> str:
        ranks = "1 rank" if self.size == 1 else f"{self.size} ranks"
        state = "closed" if self._closed else "waiting" if self.alive else "to be started by the next run"
        if self._busy.locked() and not self._closed:
            state = "running"
        return f"<himach.Ranks: {ranks}, {state}>"

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
