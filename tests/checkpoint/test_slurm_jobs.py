"""The batch script of docs/slurm.md in a real SLURM: whatever ends it, it goes on, to the bytes of a run in one go.

All stories are played side by side, each on nodes of its own.
"""

import os
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.commands import himach, wait_until
from support.slurm import CLUSTER, Jobs, cluster_up

from .sample import Ground

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PAGE = Path(__file__).parents[2] / "docs" / "slurm.md"
FRAMES = 40
NODES = 12
AT_ONCE = 5  # stories
PATIENCE = 240  # seconds, for a machine that is busy
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")

Story = Callable[["Job"], None]
STORIES: list[Story] = []


class Job:
    """The script, with names of its own, as a job."""

    def __init__(self, jobs: Jobs, folder: Path, whole: Path) -> None:
        self.jobs, self.whole, self.ground = jobs, whole, Ground(folder, FRAMES)
        (script,) = re.findall(r"```bash\n(#!/bin/bash\n(?:(?!```).)*--requeue.*?)```", PAGE.read_text(), re.DOTALL)
        command = f"run=(himach {' '.join(self.ground.kept())})\n"
        script, n = re.subn(r"^run=\(.*?\)\n", command, script, flags=re.DOTALL | re.MULTILINE)
        script, m = re.subn(r"^pairs=.*\n", f"pairs={self.ground.pairs}\n", script, flags=re.MULTILINE)
        assert n == m == 1
        (folder / "job.sh").write_text(script)
        self.number = ""

    def submit(self, nodes: set[int], *sizes: str, pace: float = 0.5, **environ: object) -> "Job":
        """Begin, on some of these nodes; pace is the seconds of a frame."""
        rest = ",".join(f"node{i}" for i in range(1, NODES + 1) if i not in nodes)
        words = [f"--exclude={rest}", "--ntasks-per-node=1", f"--output={self.ground.folder / 'log'}", *sizes]
        environ = {"NOTES": self.ground.notes, "PACE": pace, "HIMACH_KEEP_EVERY": 1} | environ
        texts = {name: str(value) for name, value in environ.items()}
        self.number = self.jobs.submit(*words, str(self.ground.folder / "job.sh"), **texts)
        return self

    def says(self, what: str) -> str:
        return self.jobs.says(self.number, what)

    def wait(self, condition: Callable[[], object]) -> "Job":
        assert wait_until(condition, PATIENCE), f"{self.says('JobState')}: {self.log()}"
        return self

    def until(self, frames: int) -> "Job":
        return self.wait(lambda: len(self.ground.covered()) >= frames)

    def ends(self, state: str = "COMPLETED") -> "Job":
        self.wait(lambda: self.says("JobState") in OVER)
        assert self.says("JobState") == state, self.log()
        return self

    def goes_on(self) -> "Job":
        """Begin again, once SLURM has put the job into the queue."""
        self.jobs.begin(self.number, PATIENCE)
        return self

    def log(self) -> str:
        log = self.ground.folder / "log"
        return log.read_text() if log.exists() else ""

    def mapped(self) -> int:
        """How many frames were mapped so far, those that were mapped twice as two."""
        return sum(self.ground.mapped().values())

    def is_done(self, kept: set[int] | None = None) -> None:
        """The outcome is that of a run in one go; no frame was mapped twice, or at most those that were not kept."""
        self.ground.same_as(self.whole)
        twice = {frame for frame, times in self.ground.mapped().items() if times > 1}
        assert not twice & (set(range(FRAMES)) if kept is None else kept), self.log()


def story(play: Story) -> Story:
    STORIES.append(play)
    return play


@pytest.fixture(scope="module")
def played(request, tmp_path_factory):
    """The stories that are asked for, under way."""
    ground = Ground(tmp_path_factory.mktemp("whole"), FRAMES)
    himach(*ground.words, "--out", ground.out, code=0)
    requested = [item.callspec.params["play"] for item in request.session.items if item.path == request.path]
    with cluster_up(NODES) as environ, ThreadPoolExecutor(AT_ONCE) as pool:
        jobs = Jobs({**environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"})  # of `himach`
        under_way = {}
        for play in requested:
            job = Job(jobs, tmp_path_factory.mktemp(play.__name__), ground.out)
            under_way[play] = pool.submit(play, job)
        yield under_way
        pool.shutdown(cancel_futures=True)


@story
def the_limit_of_time(job: Job) -> None:
    """SIGUSR1 comes a minute before; at the end one rank hangs in map(), whatever it is asked.

    SLURM looks at times every 30 s, so that the other rank maps for some 80.
    """
    job.submit({1}, "--nodes=1", "--ntasks-per-node=2", "--time=3", HANGS=3, pace=2.5, HANG=600, HIMACH_KEEP_EVERY=1000)
    job.wait(job.ground.notes.with_name("notes.hung").exists)
    assert not job.ground.parts()
    job.jobs.call("scontrol", "update", f"jobid={job.number}", "EndTime=now+55")
    job.wait(job.ground.parts)
    requested, mapped = job.ground.covered(), job.mapped()
    job.wait(lambda: job.mapped() > mapped)
    assert job.says("JobState") == "RUNNING"
    job.jobs.call("scontrol", "update", f"jobid={job.number}", "EndTime=now+1")
    job.ends("TIMEOUT")
    kept = job.ground.covered()
    assert kept > requested
    job.submit({1}, "--nodes=1", "--ntasks-per-node=2", "--time=2", pace=0).ends().is_done(kept)


@story
def the_end_of_the_time(job: Job) -> None:
    job.submit({2}, "--nodes=1", "--ntasks-per-node=2", "--time=1", pace=3).goes_on().ends().is_done()
    assert job.log().count("time is up after") == 1


@story
def the_loss_of_a_node(job: Job, lost: int = 4, nodes: tuple[int, ...] = (3, 4, 5)) -> None:
    """The job goes on without it."""
    job.submit(set(nodes), "--nodes=2").until(6)  # SLURM takes the first two
    kept = job.ground.covered()
    job.jobs.call(str(CLUSTER), "lose", f"node{lost}")
    job.goes_on().ends().is_done(kept)
    assert job.ground.record()["nodes"] == 2
    assert job.ground.record()["reused"]["frames"] >= len(kept)


@story
def the_loss_of_the_first_node(job: Job) -> None:
    """The script itself is lost."""
    the_loss_of_a_node(job, 6, (6, 7, 8))


@story
def preemption(job: Job) -> None:
    job.submit({11, 12}, "--nodes=2").until(6)
    words = ["--partition=urgent", "--nodelist=node12", "--exclusive", "--output=/dev/null"]
    job.jobs.submit(*words, "--wrap=sleep 1")
    job.goes_on().ends().is_done()


@story
def scontrol_requeue(job: Job) -> None:
    job.submit({9, 10}, "--nodes=2").until(6)
    job.jobs.call("scontrol", "requeue", job.number)
    job.goes_on().ends().is_done()


@story
def scancel(job: Job) -> None:
    """Submitted again, the job goes on."""
    job.submit({9, 10}, "--nodes=2").until(6)
    job.jobs.call("scancel", job.number)
    job.ends("CANCELLED")
    assert job.says("Restarts") == "0"
    job.submit({9, 10}, "--nodes=2", "--ntasks-per-node=2", pace=0).ends().is_done()


@story
def an_error_of_the_analysis(job: Job) -> None:
    """The job ends with its exit code."""
    script = job.ground.folder / "slow.py"
    script.write_text(script.read_text().replace("        yield", "        1 / (frame.number != 20); yield", 1))
    job.submit({9, 10}, "--nodes=2", pace=0.2).ends("FAILED")
    assert job.says("ExitCode") == "1:0"
    assert job.says("Restarts") == "0"
    assert job.log().count("ZeroDivisionError") == 1


@story
def a_rank_that_is_killed(job: Job) -> None:
    """The script puts the job into the queue again. (Begun at once, it could meet what ends the step of before.)"""
    job.submit({9, 10}, "--nodes=2").until(6)
    kept = job.ground.covered()
    job.jobs.call("scancel", "--signal=KILL", f"{job.number}.0")
    job.wait(lambda: job.says("Restarts") == "1" and job.says("JobState") == "PENDING")
    job.jobs.call("scancel", job.number)
    job.submit({9, 10}, "--nodes=2", pace=0).ends().is_done(kept)


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("play", STORIES, ids=lambda play: play.__name__)
def test_the_script_survives(play, played):
    played[play].result()
