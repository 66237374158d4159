"""A SLURM job from outside: `SlurmJob` submits, polls and cancels it; `split_options()` separates srun's options."""

import contextlib
import itertools
import re
import select
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from himach.errors import HimachError, RankError, TimeUpError, UsageError

SECONDS = 60.0  # most time of a SLURM command
DEFAULTS = ("--job-name=himach", "--kill-command=KILL")  # of salloc; the second ends its command with the job
NUMBER = re.compile(rb"job allocation (\d+)")  # in salloc's first lines


def split_options(options: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options of salloc, and those of srun alone."""
    steps = [word for word in options if word.startswith("--mpi")]
    if "--mpi" in steps:
        raise UsageError("--mpi is written with its value: --mpi=pmi2")
    return [word for word in options if word not in steps], steps


class JobState(NamedTuple):
    """State of a job."""

    name: str  # SLURM's name: PENDING, RUNNING, TIMEOUT, ...; "" if SLURM no longer knows the job
    reason: str = ""  # SLURM's reason; "" if it gives none

    @property
    def is_over(self) -> bool:
        """Whether the job neither waits nor runs."""
        return self.name not in ("PENDING", "CONFIGURING", "REQUEUED", "SUSPENDED", "RUNNING")


class SlurmJob:
    """A job of salloc, which ends when this process ends, whatever ends that."""

    #: Runs salloc, and ends it when the input is at its end, as this process has ended or wants no job.
    KEEPER = 'exec 3<&0; salloc "$@" & exec >&- 2>&-; read -r word; sleep 0.2; kill "$!"'
    #: Runs in the allocation until the same input is at its end; without its salloc it has to cancel the job.
    COMMAND = (
        "env | grep ^SLURM; echo; read -r word <&3; read -r pid name state parent rest </proc/$$/stat; "
        '[ "$parent" = "$PPID" ] || exec scancel --quiet "$SLURM_JOB_ID"'
    )

    def __init__(self, number: str, keeper: subprocess.Popen[bytes]) -> None:
        assert keeper.stdin is not None and keeper.stdout is not None and keeper.stderr is not None
        self.number, self._keeper, self._output = number, keeper, keeper.stdout
        self._pipes = keeper.stdin, keeper.stdout, keeper.stderr
        self.environ: dict[str, str] = {}  # what SLURM tells srun within the job, when that has begun

    @classmethod
    def submit(cls, options: Sequence[str], environ: Mapping[str, str]) -> Self:
        """Have salloc submit a job."""
        _find("salloc")
        keeper = subprocess.Popen(
            ["/bin/sh", "-c", cls.KEEPER, "sh", *DEFAULTS, *options, "/bin/sh", "-c", cls.COMMAND],
            env=environ,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert keeper.stderr is not None
        text = b""
        try:
            while select.select([keeper.stderr], [], [], SECONDS)[0]:
                line = keeper.stderr.readline()
                if match := NUMBER.search(line):
                    return cls(match[1].decode(), keeper)
                if not line:
                    raise UsageError(f"salloc takes no job with the options {shlex.join(options)!r}: {text.decode()}")
                text += line
            raise UsageError(f"salloc did not answer for {SECONDS:g} s: {text.decode()}")
        except BaseException:
            cls("", keeper).cancel()
            raise

    def wait(self, seconds: float) -> bool:
        """Wait until the job has begun; return False if it has not in this time, or is over."""
        if not self.environ and select.select([self._output], [], [], seconds)[0]:
            lines = itertools.takewhile(bool, iter(self._output.readline, b"\n"))
            self.environ = dict(line.decode().strip().split("=", 1) for line in lines)
        return bool(self.environ)

    @property
    def alive(self) -> bool:
        """Whether the job waits or runs, as far as salloc knows."""
        silent = not select.select([self._output], [], [], 0)[0]
        return silent or (not self.environ and self.wait(0))

    def poll(self) -> JobState:
        """Return the job's state; RUNNING if SLURM does not answer."""
        fields = self._query()
        if fields is None:
            return JobState("RUNNING")
        reason = fields.get("Reason", "None")
        return JobState(fields.get("JobState", ""), "" if reason == "None" else reason)

    def tasks(self) -> int:
        """Return the number of tasks."""
        n_tasks = (self._query() or {}).get("NumTasks", "")
        if not n_tasks.isdigit():
            raise RankError(f"SLURM does not say how many tasks job {self.number} has ('scontrol show job')")
        return int(n_tasks)

    def cancel(self) -> None:
        """Cancel the job, in the queue or running; no other method may be called then."""
        self.detach()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(SECONDS)

    def detach(self) -> None:
        """Close the pipes to the job's keeper, also in a child forked from this process."""
        for pipe in self._pipes:
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
