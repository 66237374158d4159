"""`Ranks`, for `himach.run(..., ranks=ranks)`: they wait for runs, on this machine or in a job of SLURM's."""

import os
import shlex
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from himach.errors import UsageError
from himach.ranks.launch.memory import node_memory
from himach.ranks.launch.pool import RANK, RankPool
from himach.ranks.process_exit import promised_ranks, under_launcher

if TYPE_CHECKING:
    from himach.ranks.slurm.job_pool import JobPool

#: Most ranks a processor, unless the user asks for more.
OF_PROCESSOR = 4
#: Memory of a rank before it reads a frame, in bytes.
RANK_BYTES = 1 << 25


def check_machine(ranks: int) -> None:
    """Refuse more ranks than this machine can take: five hundred on two processors stop it."""
    processors, memory = len(os.sched_getaffinity(0)), node_memory()
    most = max(1, min(OF_PROCESSOR * processors, memory // RANK_BYTES))
    if ranks > most:
        raise UsageError(
            f"{ranks} ranks are more than this machine can do with ({processors} processors, {memory / 2**30:.3g} GiB "
            f"for them): start at most {most}, or say that it is meant, by --oversubscribe or "
            f"himach.Ranks({ranks}, oversubscribe=True)"
        )


class Ranks:
    """Ranks of this machine, or in a job of SLURM's, that are there before a run begins, with all that runs import.

    They are started at once and wait, without using a processor, until `close()`, the end of a ``with`` block or of
    this process, whatever ends it. Each run has ranks that have run nothing: they are forked, as soon as those of the
    run before have ended, from one process that has imported MDAnalysis and himach and runs nothing itself. Code, files
    and the environment count as they are when a run begins. After the death of a rank, an interruption or a change of
    the environment that process is a new one. The MPI library is MPICH, as ``himach[local]`` brings it.

    With `slurm` a job is submitted at once, and the first run waits for it. It ends with `close()`, the ``with`` block
    or this process, whatever ends that. An interruption or an error ends a run and not the job; interrupted before it
    has begun, it is cancelled. Where a job is over (its time is up, it was cancelled), the next run submits another.

    Parameters
    ----------
    size
        Number of ranks. Where mpiexec or srun started several, these are used, and `size` must be their number.
    oversubscribe
        Whether there may be more than four a processor, or more than memory holds.
    slurm
        In place of `size` options of salloc, as a text or as words: ``"-N4 -n64 --time=1:00:00"``. The ranks are the
        tasks of that job. ``--mpi`` goes to srun; without it, it is what fits the MPI library.

    Raises
    ------
    UsageError
        If there are too many for this machine, or they cannot be had: closed, busy with a run of another thread, or
        those of the process that forked this one. If a job cannot be submitted.

    Examples
    --------
    >>> with himach.Ranks(8) as ranks:  # doctest: +SKIP
    ...     for cutoff in (3.0, 3.5):
    ...         himach.run(Contacts(cutoff=cutoff), "traj.xtc", "top.gro", ranks=ranks)
    >>> ranks = himach.Ranks(slurm="-N4 -n64 --time=1:00:00")  # doctest: +SKIP
    """

    def __init__(
        self, size: int | None = None, oversubscribe: bool = False, *, slurm: str | Sequence[str] | None = None
    ) -> None:
        if (size is None) == (slurm is None):
            raise UsageError("give a number of ranks of this machine, or options for a job: himach.Ranks(slurm='-n64')")
        self._options = None if slurm is None else shlex.split(slurm) if isinstance(slurm, str) else list(slurm)
        if size is not None and size < 1:
            raise UsageError(f"ranks must be 1 or more, not {size}")
        if slurm is not None and under_launcher():
            raise UsageError("slurm=: srun or mpiexec started this process as one of several ranks; leave ranks out")
        if size is not None and not (oversubscribe or under_launcher()):
            check_machine(size)
        self._process = os.getpid()
        self._busy = threading.Lock()
        self._closed = False
        self.size = size or 0
        self._ranks = None if under_launcher() else self._start()

    def _start(self) -> "RankPool | JobPool":
        if self._options is None:
            return RankPool(RANK, self.size)
        from himach.ranks.slurm.job_pool import JobPool

        pool = JobPool(self._options)
        weakref.finalize(self, pool.end)
        self.size = pool.size
        return pool

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
        self._acquire()
        try:
            self._closed = True
            if self._ranks is not None:
                self._ranks.end()
        finally:
            self._busy.release()

    def do(self, work: bytes, keeps: bool = False) -> bytes:
        """Have all ranks do packed work (`pack_work`), which may keep pairs; return rank 0's result."""
        self._acquire()
        try:
            return self._start_ranks().do(work, keeps)
        finally:
            self._busy.release()

    def _acquire(self) -> None:
        if os.getpid() != self._process:
            raise UsageError("these ranks are those of the process that forked this one; make others: himach.Ranks(n)")
        if not self._busy.acquire(blocking=False):
            raise UsageError("these ranks are busy with a run of another thread; give each thread Ranks of its own")
        if self._closed:
            self._busy.release()
            again = self.size if self._options is None else f"slurm={shlex.join(self._options)!r}"
            raise UsageError(f"these ranks were closed; make new ones: himach.Ranks({again})")

    def _start_ranks(self) -> "RankPool | JobPool":
        """Return live ranks with the present environment."""
        ranks = self._ranks
        if ranks is None or not ranks.alive:
            if ranks is not None:
                ranks.end()
            ranks = self._ranks = self._start()
        return ranks

    @property
    def elsewhere(self) -> bool:
        """Whether ranks may be on other machines, which cannot see this process's memory."""
        return self._options is not None

    def __repr__(self) -> str:
        ranks = "1 rank" if self.size == 1 else f"{self.size} ranks"
        if self._ranks is not None and not isinstance(self._ranks, RankPool):
            ranks += f" of job {self._ranks.job.number}"
        state = "closed" if self._closed else "waiting" if self.alive else "to be started by the next run"
        if self._busy.locked() and not self._closed:
            state = "running"
        return f"<himach.Ranks: {ranks}, {state}>"

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
