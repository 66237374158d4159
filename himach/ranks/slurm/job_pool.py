"""Ranks in a job of SLURM's, for a process outside it: `JobPool` submits the job and runs steps of it."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from himach.errors import HimachError, RankError
from himach.ranks.launch.pool import GRACE, LOOK_EVERY, MARK, RANK, Pool, common_environment, read_umask
from himach.ranks.slurm.job import JobState, SlurmJob, split_options

FIRST_LOOK, LAST_LOOK = 0.5, 10.0  # seconds between checks of a queued job
COMPLETES = 10.0  # most seconds until SLURM reports how a job ended
#: Command of a step. Steps overlap: the next run's step starts before SLURM has removed the last one.
SRUN = ("srun", "--quiet", "--kill-on-bad-exit=1", "--unbuffered", "--export=ALL", "--overlap", "--input=0")
#: Prints the version text of the MPI library, without loading that into this process.
LIBRARY = (sys.executable, "-P", "-c", "from himach.ranks.mpi import load; print(load())")
PMIX = ("Open MPI", "PRRTE")


class JobPool(Pool):
    """Ranks in a job, which ends with `end()` or with this process.

    The ranks of a run are the tasks of a step, which srun starts from here. When they have ended, those of the next run
    start and wait.
    """

    def __init__(self, options: Sequence[str]) -> None:
        super().__init__()
        self._ended = False
        words, self._options = split_options(options)
        self.job = SlurmJob.submit(words, common_environment())
        self._environ: dict[str, str] = {}  # of the step
        try:
            self.size = self.job.tasks()
        except BaseException:
            self.end()
            raise

    @property
    def alive(self) -> bool:
        """Whether the job waits or takes work."""
        return not self._ended and self.job.alive

    def end(self) -> None:
        """End the job, in the queue or running."""
        if os.getpid() != self._owner or self._ended:
            return
        self._ended = True
        self._end_step()
        self.job.cancel()

    def detach(self) -> None:
        """Close the pipes to the job and the step, in a child forked from this process."""
        self.job.detach()
        if self._step is not None and self._step.stdin is not None:
            self._step.stdin.close()

    def _await_start(self) -> None:
        """Wait until the job has begun."""
        pause, reason = FIRST_LOOK, ""
        while not self.job.wait(pause):
            state = self.job.poll()
            if state.is_over:
                error = self.job.end_error(state)
                raise type(error)(f"{error}; its ranks never came")
            if state.name != "RUNNING" and state.reason != reason:
                reason = state.reason
                print(
                    f"himach: job {self.job.number} waits in the queue ({reason or state.name}); Ctrl-C cancels it",
                    file=sys.stderr,
                    flush=True,
                )
            pause = min(LAST_LOOK, 1.5 * pause)

    def _start_step(self) -> subprocess.Popen[bytes]:
        self._await_start()
        environ = common_environment() | self.job.environ | {MARK: self._mark}
        if self._step is not None and self._step.poll() is None and environ == self._environ:
            return self._step
        self._end_step()
        if not self._options:
            library = subprocess.run(LIBRARY, env=environ, capture_output=True, text=True, check=False).stdout
            self._options = ["--mpi=pmix" if any(name in library for name in PMIX) else "--mpi=pmi2"]
        tasks = environ.get("SLURM_NTASKS") or environ["SLURM_JOB_NUM_NODES"]  # the default is one a node
        words = [*SRUN, f"--ntasks={tasks}", *self._options]
        if cpus := environ.get("SLURM_CPUS_PER_TASK"):  # srun ignores it since 22.05
            words.append(f"--cpus-per-task={cpus}")
        self._step = subprocess.Popen(
            [*words, *RANK],
            cwd="/",  # do not keep the user's directory mounted while there is no work
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._environ = environ
        return self._step

    def _send(self, work: bytes, last: bool) -> None:
        assert self._step is not None and self._step.stdin is not None
        with self._step.stdin as pipe:
            pipe.write(pickle.dumps((os.getcwd(), read_umask(), work)))

    def _wait(self, step: subprocess.Popen[bytes]) -> int:
        while step.poll() is None:
            time.sleep(LOOK_EVERY)
        return step.returncode

    def _after(self, outcome: bytes | HimachError, last: bool) -> None:
        """Start the next step; raise an error if the job is over."""
        if isinstance(outcome, RankError) and (state := self._last_state()).is_over:
            self.end()
            raise self.job.end_error(state)
        self._start_step()

    def _break_off(self, terminated: bool) -> None:
        self._end_step()
        if terminated or not self.job.environ:
            self.end()

    def _end_step(self) -> None:
        """End the step at once."""
        step, self._step = self._step, None
        if step is None:
            return
        for _ in range(2):  # srun kills the ranks at the second SIGINT within a second
            step.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                step.wait(0.1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            step.wait(GRACE)
        step.kill()
        step.wait()
        for pipe in (step.stdin, step.stdout, step.stderr):
            assert pipe is not None
            pipe.close()

    def _last_state(self) -> JobState:
        """Return the state of a job whose step has ended, as soon as SLURM knows it."""
        deadline = time.monotonic() + COMPLETES
        while (state := self.job.poll()).name == "COMPLETING" and time.monotonic() < deadline:
            time.sleep(0.2)
        return state

    def _death(self, status: int) -> str:
        rest = f", and the other ranks of {self.size} were ended" if self.size > 1 else ""
        return (
            f"a rank ended before the work was done (srun's exit code is {status}){rest}; what it, its MPI library or "
            "SLURM printed is above"
        )
