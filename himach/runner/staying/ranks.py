"""`Ranks`: ranks of this machine that stay between runs, for `himach.run(..., ranks=ranks)`."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from types import TracebackType

from himach.errors import UsageError
from himach.parallel.environment import promised_ranks, under_launcher
from himach.parallel.spawn import rank_environment
from himach.parallel.staying import NotBegunError, StayingRanks

__all__ = ["RANK", "Ranks"]

#: What every rank is that himach starts.
RANK = (sys.executable, "-P", "-m", "himach.runner.rank_main")

#: Variables that are read when they are needed; others count when a process or a library starts.
READ_LATE = ("HIMACH_", "COLUMNS")


class Ranks:
    """Ranks of this machine that stay between runs, with all that they have imported.

    They are started at once and wait, without using a processor, until `close()`, the end of a ``with`` block or of
    this process, whatever ends it. What a run does and gives is what it does and gives with ranks of its own: code,
    files and the environment count as they are when a run begins. Where that cannot be so for ranks that have run,
    where one of them has died, and after an interruption, the next run starts new ones.

    Parameters
    ----------
    size
        Number of ranks. Where mpiexec or srun started several, these are used, and `size` must be their number.

    Raises
    ------
    RankError
        If there is no mpiexec.
    UsageError
        If they cannot be had: closed, busy with a run of another thread, or those of the process that forked this one.

    Examples
    --------
    >>> with himach.Ranks(8) as ranks:  # doctest: +SKIP
    ...     for cutoff in (3.0, 3.5):
    ...         himach.run(Contacts(cutoff=cutoff), "traj.xtc", "top.gro", ranks=ranks)
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise UsageError(f"ranks must be 1 or more, not {size}")
        self.size = size
        self._process = os.getpid()
        self._busy = threading.Lock()
        self._closed = False
        self._ranks = None if under_launcher() else StayingRanks(RANK, size)

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
        """Have all ranks do packed work (see `himach.runner.job_pickle`), which may keep pairs; return rank 0's result.

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
                    return self._started().do(self._packed(work), keeps)
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

    def _started(self) -> StayingRanks:
        """Return ranks that are alive and know the environment as it is."""
        ranks = self._ranks
        if ranks is None or not ranks.alive or _lasting(ranks.environ) != _lasting(rank_environment()):
            if ranks is not None:
                ranks.end()
            ranks = self._ranks = StayingRanks(RANK, self.size)
        return ranks

    def _packed(self, work: bytes) -> bytes:
        environ = rank_environment()
        late = {name: value for name, value in environ.items() if name.startswith(READ_LATE)}
        return pickle.dumps({"environ": late, "work": work})

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


def _lasting(environ: dict[str, str]) -> dict[str, str]:
    """Return those variables that count when a process or a library starts."""
    return {name: value for name, value in environ.items() if not name.startswith(READ_LATE)}
