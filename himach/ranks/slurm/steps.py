"""Steps of a job, each a world of ranks: `StepPool` starts one by srun, from within the job."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from himach.ranks.launch.pool import RANK, RankPool
from himach.ranks.mpi import load

PMIX = ("Open MPI", "PRRTE")
#: Options of srun. Steps overlap: the next run's step starts before SLURM has removed the last one.
STEP = ("--quiet", "--kill-on-bad-exit=1", "--unbuffered", "--export=ALL", "--overlap")


def n_tasks() -> int:
    """Return the number of tasks of this job: the requested number, else one a node."""
    return int(os.environ.get("SLURM_NTASKS") or os.environ["SLURM_JOB_NUM_NODES"])


def fitting_mpi() -> str:
    """Return srun's option with which ranks of the present MPI library find each other."""
    library = load()
    return "--mpi=pmix" if any(name in library for name in PMIX) else "--mpi=pmi2"


class StepPool(RankPool):
    """Ranks that are the tasks of one step; rank 0 is on this process's node."""

    def __init__(self, options: Sequence[str], first_death: Callable[[], str]) -> None:
        self._first_death = first_death
        tasks = n_tasks()
        words = ["srun", *STEP, f"--ntasks={tasks}", *options]
        if cpus := os.environ.get("SLURM_CPUS_PER_TASK"):  # srun ignores it since 22.05
            words.append(f"--cpus-per-task={cpus}")
        super().__init__([*words, *RANK, "step"], tasks, environ=os.environ)

    def _death(self, status: int) -> str:
        subject = self._first_death() or f"a rank (srun ended with exit code {status})"
        rest = f", and the other ranks of {self._size} were ended" if self._size > 1 else ""
        return f"{subject} ended before the work was done{rest}; what it, its MPI library or SLURM printed is above"

    def _pass_on(self, signum: int) -> None:
        self._process.send_signal(signum)  # srun forwards it to all

    def _kill(self) -> None:
        self._channel.end_ranks()  # ends rank 0; srun then ends the others
