"""A SLURM job from outside: `SlurmJob` submits, polls and cancels it; `split_options()` separates srun's options."""

from __future__ import annotations

import contextlib
import re
import select
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from himach.errors import HimachError, RankError, TimeUpError, UsageError

#: Environment variable of a job: address of the process that submitted it, and the key.
JOINS = "HIMACH_JOINS"
SECONDS = 60.0  # most time of a SLURM command
#: Default options of sbatch. A requeued job would find no process that waits for it.
DEFAULTS = ("--job-name=himach", "--output=/dev/null", "--no-requeue")
UNREACHABLE = 69  # exit code of a job that did not reach its submitter; from sysexits.h


def split_options(options: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options of sbatch, and those of srun alone."""
    steps = [word for word in options if word.startswith("--mpi")]
    if "--mpi" in steps:
        raise UsageError("--mpi is written with its value: --mpi=pmi2")
    return [word for word in options if word not in steps], steps


@dataclass(frozen=True)
class JobState:
    """State of a job."""

    name: str  # SLURM's name: PENDING, RUNNING, TIMEOUT, ...; "" if SLURM no longer knows the job
    reason: str = ""  # SLURM's reason; "" if it gives none
    exit_code: int = 0  # of the job's script

    WAITING: ClassVar = ("PENDING", "CONFIGURING", "REQUEUED", "SUSPENDED")
    GOING_ON: ClassVar = (*WAITING, "RUNNING")

    @property
    def waits(self) -> bool:
        """Whether the job is in the queue."""
        return self.name in self.WAITING

    @property
    def is_over(self) -> bool:
        """Whether the job neither waits nor runs."""
        return self.name not in self.GOING_ON


class SlurmJob:
    """A submitted job, which a process beside this one keeps."""

    #: Submits a script and cancels the job when its input is at its end: when this process ends, whatever ends that.
    #: The script may hold a secret, so that it comes in the environment: anybody may read a command line.
    KEEPER = (
        "trap '' PIPE INT TERM; script=$HIMACH_SCRIPT; unset HIMACH_SCRIPT; "
        'job=$(printf %s "$script" | sbatch --parsable "$@") || exit; echo "$job"; '
        'read -r word; exec scancel --quiet "${job%%;*}"'
    )

    def __init__(self, number: str, keeper: subprocess.Popen[bytes] | None = None) -> None:
        self.number, self._keeper = number, keeper

    @classmethod
    def submit(cls, options: Sequence[str], script: str, environ: Mapping[str, str]) -> Self:
        """Have sbatch submit a script."""
        _find("sbatch")
        keeper = subprocess.Popen(
            ["/bin/sh", "-c", cls.KEEPER, "sh", *DEFAULTS, *options],
            env={**environ, "HIMACH_SCRIPT": script},
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert keeper.stdout is not None and keeper.stderr is not None
        try:
            answers = select.select([keeper.stdout], [], [], SECONDS)[0]
            if answers and (number := keeper.stdout.readline().strip()):
                return cls(number.decode().partition(";")[0], keeper)
            message = f"sbatch did not answer for {SECONDS:g} s"
            if answers:
                message = keeper.stderr.read().decode().strip() or f"exit code {keeper.wait()}"
            raise UsageError(f"sbatch takes no job with the options {shlex.join(options)!r}: {message}")
        except BaseException:
            cls("", keeper).cancel()
            raise

    def poll(self) -> JobState:
        """Return the job's state; RUNNING if SLURM does not answer."""
        fields = self._query()
        if fields is None:
            return JobState("RUNNING")
        name, code = fields.get("JobState", ""), fields.get("ExitCode", "0").partition(":")[0]
        reason = fields.get("Reason", "None")
        return JobState(name, "" if reason == "None" else reason, int(code) if code.isdigit() else 0)

    def tasks(self) -> int:
        """Return the number of tasks."""
        n_tasks = (self._query() or {}).get("NumTasks", "")
        if not n_tasks.isdigit():
            raise RankError(f"SLURM does not say how many tasks job {self.number} has ('scontrol show job')")
        return int(n_tasks)

    def cancel(self) -> None:
        """Cancel the job, in the queue or running; no other method may be called then."""
        self.detach()
        if self._keeper is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._keeper.wait(SECONDS)

    def detach(self) -> None:
        """Close the pipe to the job's keeper, also in a child forked from this process."""
        for pipe in () if self._keeper is None else (self._keeper.stdin, self._keeper.stdout, self._keeper.stderr):
            assert pipe is not None
            pipe.close()

    def end_error(self, state: JobState) -> HimachError:
        """Return the error for the job's end."""
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


def _find(command: str) -> None:
    if shutil.which(command) is None:
        raise UsageError(
            f"there is no {command} here, which himach.Ranks(slurm=...) needs: it is for the login node of a cluster; "
            "himach.Ranks(n) starts ranks on this machine"
        )


def _slurm(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    _find(words[0])
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 1, "", f"{words[0]} did not answer for {SECONDS:g} s")
