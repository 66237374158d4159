"""The batch script of docs/slurm.md in a real SLURM: whatever ends it, it goes on, to the bytes of a run in one go."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from support.commands import himach, wait_until
from support.slurm import CLUSTER, Jobs, cluster_up

from .jobs import Ground

pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.slow, pytest.mark.timeout(600)]

PAGE = Path(__file__).parents[2] / "docs" / "slurm.md"
FRAMES = 60
PACE = 0.4


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The outcome of a run in one go."""
    ground = Ground(tmp_path_factory.mktemp("whole"), FRAMES)
    done = himach(*ground.words, "--out", ground.out)
    assert done.returncode == 0, done.stderr
    return ground.out


@pytest.fixture(scope="module")
def jobs():
    with cluster_up(4) as environ:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # of `himach`
        yield Jobs({**environ, "PATH": path, "HIMACH_KEEP_EVERY": "1"})


class Job:
    """The script, with names of its own, as a job."""

    def __init__(self, jobs: Jobs, folder: Path, **environ: object) -> None:
        self.jobs, self.ground = jobs, Ground(folder, FRAMES)
        (script,) = re.findall(r"```bash\n(#!/bin/bash\n(?:(?!```).)*--no-kill.*?)```", PAGE.read_text(), re.DOTALL)
        command = f"run=(himach {' '.join(self.ground.kept())})\n"
        script, n = re.subn(r"^run=\(.*?\)\n", command, script, flags=re.DOTALL | re.MULTILINE)
        assert n == 1
        (folder / "job.sh").write_text(script)
        self.environ = {"NOTES": str(self.ground.notes), "PACE": str(PACE)} | {k: str(v) for k, v in environ.items()}
        self.number = ""

    def submit(self, *sizes: str) -> Job:
        log = f"--output={self.ground.folder / 'log'}"
        self.number = self.jobs.submit(*sizes, log, str(self.ground.folder / "job.sh"), **self.environ)
        return self

    def says(self, what: str) -> str:
        return self.jobs.says(self.number, what)

    def until(self, frames: int) -> Job:
        """Wait until so many frames were mapped."""
        assert wait_until(lambda: sum(self.ground.mapped().values()) >= frames, 60), self.log()
        return self

    def ends(self, state: str = "COMPLETED", seconds: float = 120) -> Job:
        """Wait for the end."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")
        assert wait_until(lambda: self.says("JobState") in over, seconds), self.log()
        assert self.says("JobState") == state, self.log()
        return self

    def goes_on(self, seconds: float = 60) -> Job:
        """Begin now, once SLURM has put the job into the queue again."""
        self.jobs.begin(self.number, seconds)
        return self

    def log(self) -> str:
        return (self.ground.folder / "log").read_text()

    def is_done(self, whole: Path, twice: int = 0) -> None:
        """The outcome is that of a run in one go, and few frames were mapped twice."""
        self.ground.same_as(whole)
        assert sum(self.ground.mapped().values()) <= FRAMES + twice, self.log()


@pytest.fixture(scope="module")
def long_ones(jobs, tmp_path_factory):
    """Jobs that wait for the end of their time; SLURM counts it in minutes."""
    up = Job(jobs, tmp_path_factory.mktemp("up"), PACE=2.5).submit(*ON_ONE_NODE, "--time=1")
    hangs = Job(jobs, tmp_path_factory.mktemp("hangs"), PACE=0.5, HANGS=20, HANG=150, HIMACH_KEEP_EVERY=1000)
    hangs.submit(*ON_ONE_NODE, "--time=2").until(10)
    assert not hangs.ground.parts()
    jobs.call("scontrol", "update", f"jobid={hangs.number}", "TimeLimit=1")
    return up, hangs


ON_ONE_NODE = ("--nodes=1", "--ntasks-per-node=2", "--nodelist=node4")
ON_THREE = ("--nodes=3", "--ntasks-per-node=1", "--exclude=node4")


def test_a_node_that_is_lost_is_left_out(jobs, long_ones, whole, tmp_path):
    job = Job(jobs, tmp_path).submit(*ON_THREE).until(25)
    jobs.call(str(CLUSTER), "kill", "node3")
    try:
        job.ends().is_done(whole, twice=3 * 5)
        assert job.ground.record()["nodes"] == 2
        assert job.ground.record()["reused"]["frames"] > 0
        assert job.says("Restarts") == "0"
    finally:
        jobs.call(str(CLUSTER), "revive", "node3")


def test_a_job_that_is_cancelled_goes_on_when_it_is_submitted_again(jobs, long_ones, whole, tmp_path):
    job = Job(jobs, tmp_path).submit(*ON_THREE).until(25)
    jobs.call("scancel", job.number)
    job.ends("CANCELLED")
    job.submit("--nodes=2", "--ntasks-per-node=2", "--exclude=node4").ends().is_done(whole)


def test_a_job_that_is_put_into_the_queue_again_goes_on(jobs, long_ones, whole, tmp_path):
    job = Job(jobs, tmp_path).submit(*ON_THREE).until(25)
    jobs.call("scontrol", "requeue", job.number)
    job.goes_on().ends().is_done(whole)
    assert job.says("Restarts") == "1"


def test_a_job_that_is_preempted_goes_on(jobs, long_ones, whole, tmp_path):
    job = Job(jobs, tmp_path).submit(*ON_THREE).until(25)
    words = ["--partition=urgent", "--nodelist=node2", "--exclusive", "--output=/dev/null"]
    urgent = jobs.submit(*words, "--wrap=sleep 1")
    jobs.wait(urgent, "COMPLETED")
    job.goes_on().ends().is_done(whole)
    assert job.says("Restarts") == "1"


def test_a_job_whose_run_fails_ends_with_its_exit_code(jobs, long_ones, tmp_path):
    job = Job(jobs, tmp_path)
    (tmp_path / "slow.py").write_text((tmp_path / "slow.py").read_text().replace("yield", "1 / 0; yield"))
    job.submit(*ON_THREE).ends("FAILED")
    assert job.says("ExitCode") == "1:0"
    assert job.log().count("ZeroDivisionError") == 1


def test_a_job_whose_time_is_up_is_put_into_the_queue_again_and_goes_on(long_ones, whole):
    job, _ = long_ones
    job.goes_on(90).ends().is_done(whole)
    assert job.log().count("time is up after") == 1


def test_a_job_at_its_limit_of_time_has_kept_what_it_mapped(jobs, long_ones, whole):
    """SIGUSR1 comes before; at the end one rank hangs in map(), whatever it is asked."""
    _, job = long_ones
    job.ends("TIMEOUT", 180)
    before = sum(job.ground.mapped().values())
    assert len(job.ground.parts()) >= 2
    job.submit(*ON_ONE_NODE, "--time=2").ends().is_done(whole, twice=before // 2)
