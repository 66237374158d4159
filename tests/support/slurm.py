"""A real SLURM on this machine (`tests/runner/slurm_cluster`), and jobs in it."""

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support import needs
from support.commands import wait_until
from support.ranks import clean_environment

CLUSTER = Path(__file__).parents[1] / "runner" / "slurm_cluster"


@contextmanager
def cluster_up(nodes: int = 4) -> Iterator[dict[str, str]]:
    """Give the environment in which a cluster of nodes node1, node2, ... is up; stores of tests are on their disks."""
    needs.program("slurmctld", "slurmd", "munged", "srun", of="SLURM", required="HIMACH_REQUIRE_SLURM")
    lab = Path("/tmp") / f"himach-slurm-{os.getpid()}"  # a short path: munge's socket lies in it
    port = 20000 + os.getpid() % 600 * 20  # two clusters on one machine must not meet
    environ = clean_environment(LAB=str(lab), SLURM_CONF=str(lab / "slurm.conf"), PORT=str(port))
    subprocess.run([CLUSTER, "up", str(nodes)], env=environ, check=True, timeout=60, stdin=subprocess.DEVNULL)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LAB", str(lab))
            yield environ
    finally:
        subprocess.run([CLUSTER, "down"], env=environ, check=False, timeout=60)


def manages(job: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes().startswith(f"slurmstepd: [{job}.".encode()):
                return True
    return False


class Jobs:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = dict(environ)

    def call(self, *words: str) -> str:
        done = subprocess.run(words, env=self.environ, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def submit(self, *words: str, **environ: str) -> str:
        """Submit a job and return its number."""
        return Jobs({**self.environ, **environ}).call("sbatch", "--parsable", *words)

    def says(self, job: str, what: str) -> str:
        """What SLURM says of a job: JobState, ExitCode, Restarts, ..."""
        found = re.search(rf"\b{what}=(\S+)", self.call("scontrol", "show", "job", job))
        assert found
        return found[1]

    def wait(self, job: str, state: str, seconds: float = 60) -> None:
        assert wait_until(lambda: self.says(job, "JobState") == state, seconds), self.call(
            "scontrol", "show", "job", job
        )

    def begin(self, job: str, seconds: float = 120) -> None:
        """Have a job that is put into the queue again begin now: SLURM would wait for two minutes.

        In that time what managed its steps ends; it would take sockets away from new steps of the same numbers.
        """

        def begins() -> bool:
            restarts, state = int(self.says(job, "Restarts")), self.says(job, "JobState")
            assert restarts or state not in ("COMPLETED", "FAILED", "TIMEOUT")
            if restarts and state == "PENDING" and not manages(job):
                with contextlib.suppress(AssertionError):  # it may have begun meanwhile
                    self.call("scontrol", "update", f"jobid={job}", "StartTime=now")
            return restarts > 0 and state not in ("PENDING", "COMPLETING")

        assert wait_until(begins, seconds), self.call("scontrol", "show", "job", job)
