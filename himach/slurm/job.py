"""A job of SLURM's, from outside: `Job` submits it, looks how it is, cancels it; `split_options()` by command."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from himach.errors import HimachError, RankError, TimeUpError, UsageError

#: Environment variable of a job: where the process that submitted it listens, and the key.
JOINS = "HIMACH_JOINS"
SECONDS = 60.0  # that a command of SLURM's may take
#: How a job is submitted unless the options say otherwise. Put into the queue again it would find nobody.
DEFAULTS = ("--job-name=himach", "--output=/dev/null", "--no-requeue")
UNREACHABLE = 69  # exit code of a job that did not reach the process that submitted it; of sysexits.h


def split_options(options: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options that are sbatch's, and those that srun alone has."""
    steps = [word for word in options if word.startswith("--mpi")]
    if "--mpi" in steps:
        raise UsageError("--mpi is written with its value: --mpi=pmi2")
    return [word for word in options if word not in steps], steps


@dataclass(frozen=True)
class JobState:
    """How a job is."""

    name: str  # as SLURM calls it: PENDING, RUNNING, TIMEOUT, ...; "" if it knows the job no more
    reason: str = ""  # why it is not another one; "" if none is told
    exit_code: int = 0  # of its script

    WAITING: ClassVar = ("PENDING", "CONFIGURING", "REQUEUED", "SUSPENDED")
    GOING_ON: ClassVar = (*WAITING, "RUNNING")

    @property
    def waits(self) -> bool:
        """Whether it is in the queue."""
        return self.name in self.WAITING

    @property
    def is_over(self) -> bool:
        """Whether nothing will come of it any more."""
        return self.name not in self.GOING_ON


class Job:
    """A job that was submitted."""

    def __init__(self, number: str) -> None:
        self.number = number

    @classmethod
    def submit(cls, options: Sequence[str], script: str) -> Self:
        """Have sbatch submit a script."""
        done = _slurm(["sbatch", "--parsable", *DEFAULTS, *options], script)
        if done.returncode:
            message = done.stderr.strip() or f"exit code {done.returncode}"
            raise UsageError(f"sbatch takes no job with the options {shlex.join(options)!r}: {message}")
        return cls(done.stdout.strip().partition(";")[0])

    def poll(self) -> JobState:
        """Return how it is; where SLURM does not answer, that it runs."""
        fields = self._query()
        if fields is None:
            return JobState("RUNNING")
        name, code = fields.get("JobState", ""), fields.get("ExitCode", "0").partition(":")[0]
        reason = fields.get("Reason", "None")
        return JobState(name, "" if reason == "None" else reason, int(code) if code.isdigit() else 0)

    def tasks(self) -> int:
        """Return how many tasks it has."""
        n_tasks = (self._query() or {}).get("NumTasks", "")
        if not n_tasks.isdigit():
            raise RankError(f"SLURM does not say how many tasks job {self.number} has ('scontrol show job')")
        return int(n_tasks)

    def cancel(self) -> None:
        """Cancel it, in the queue or running."""
        _slurm(["scancel", "--quiet", self.number])

    def end_error(self, state: JobState) -> HimachError:
        """Return the error that says how it ended."""
        if "TIMEOUT" in state.name or state.reason == "TimeLimit":
            return TimeUpError(
                f"the time of job {self.number} is up; what was mapped is kept where a run keeps pairs, and the same "
                "call submits another job and goes on"
            )
        if not state.is_over:
            return RankError(f"the connection to job {self.number} is lost, and the job is cancelled")
        reason = f" ({state.reason})" if state.reason else ""
        return RankError(f"job {self.number} is over: {state.name or 'SLURM knows it no more'}{reason}")

    def _query(self) -> Mapping[str, str] | None:
        done = _slurm(["scontrol", "--oneliner", "show", "job", self.number])
        if done.returncode:
            return {} if "Invalid job id" in done.stderr else None
        return dict(re.findall(r"(?:^| )(\w+)=(\S*)", done.stdout))


def _slurm(words: Sequence[str], script: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, input=script, capture_output=True, text=True, timeout=SECONDS, check=False)
    except FileNotFoundError:
        raise UsageError(
            f"there is no {words[0]} here, which himach.Ranks(slurm=...) needs: it is for the login node of a cluster; "
            "himach.Ranks(n) starts ranks on this machine"
        ) from None
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 1, "", f"{words[0]} did not answer for {SECONDS:g} s")
