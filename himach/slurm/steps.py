"""Steps of a job, each of which is a world of ranks: `StepPool` starts one by srun, from within the job."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence

from himach.launch.rank_pool import RankPool
from himach.launch.spawn import ENDING
from himach.launch.stop_requests import Terminated
from himach.parallel import last_words

__all__ = ["StepPool", "fitting_mpi", "n_tasks"]

RANK = (sys.executable, "-P", "-m", "himach.slurm.rank_main")
PMIX = ("Open MPI", "PRRTE")
#: Steps overlap: that of the next run is there before SLURM has put the one before away.
STEP = ("--quiet", "--kill-on-bad-exit=1", "--unbuffered", "--export=ALL", "--overlap")


def n_tasks() -> int:
    """Return how many tasks this job has: what was asked for, else one a node."""
    return int(os.environ.get("SLURM_NTASKS") or os.environ["SLURM_JOB_NUM_NODES"])


def fitting_mpi() -> str:
    """Return the option of srun by which ranks of the MPI library that is here find each other.

    Raises
    ------
    RankError
        If there is none.
    """
    from himach.parallel.mpi import load

    library = load()
    return "--mpi=pmix" if any(name in library for name in PMIX) else "--mpi=pmi2"


class StepPool(RankPool):
    """Ranks that are the tasks of one step; its first one is beside this process.

    Parameters
    ----------
    options
        Of srun.
    show
        Called with how far ranks are, as `himach.parallel.last_words.progress_at` has it.
    first_death
        Called for what srun said of the first task that died; "" if nothing.
    """

    def __init__(self, options: Sequence[str], show: Callable[[bytes], object], first_death: Callable[[], str]) -> None:
        self._show, self._first_death = show, first_death
        tasks = n_tasks()
        words = ["srun", *STEP, f"--ntasks={tasks}", *options]
        if cpus := os.environ.get("SLURM_CPUS_PER_TASK"):  # which srun does not look at since 22.05
            words.append(f"--cpus-per-task={cpus}")
        super().__init__([*words, *RANK], tasks, environ=os.environ)

    def _bar(self) -> _Told:
        return _Told(self._channel.last_words, self._show)

    def _death(self, status: int) -> str:
        who = self._first_death() or f"a rank (srun ended with exit code {status})"
        others = f", and the other ranks of {self._size} were ended" if self._size > 1 else ""
        return f"{who} ended before the work was done{others}; what it, its MPI library or SLURM printed is above"

    def _pass_on(self, signum: int) -> None:
        self._process.send_signal(signum)  # which srun sends to all

    def _stop(self, stopped: BaseException, keeps: bool) -> None:
        if keeps and isinstance(stopped, Terminated):
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDING)
        self._channel.end_ranks()  # the first one, after which srun ends the others


class _Told:
    """Tells how far ranks are."""

    def __init__(self, words: int, show: Callable[[bytes], object]) -> None:
        self._words, self._show = words, show
        self._last = (0, 0, 0)

    def look(self) -> None:
        now = last_words.progress_at(self._words)
        if now != self._last:
            self._last = now
            self._show(struct.pack("<3q", *now))

    def close(self) -> None:
        self.look()
