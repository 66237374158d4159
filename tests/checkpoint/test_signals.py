"""Runs that are told from outside to keep what they have, to end, or to be done in time; and runs that go on with them.

SLURM does so in `test_slurm_jobs.py`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from support.commands import himach, processes_with, wait_until
from support.ranks import clean_environment

from .jobs import Ground

FRAMES = 60
LAUNCHERS = {
    "alone": [],
    "-n": ["-n", "3"],
    "mpiexec": [str(Path(sys.executable).with_name("mpiexec")), "-launcher", "fork", "-n", "3"],
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The outcome of a run in one go."""
    ground = Ground(tmp_path_factory.mktemp("whole"), FRAMES)
    himach(*ground.words, "--out", ground.out, code=0)
    return ground.out


@pytest.fixture
def ground(tmp_path):
    return Ground(tmp_path, FRAMES)


class Run:
    """A run under way."""

    def __init__(self, ground: Ground, launcher: str, *more: str, pace: float = 0.05, **environ: str) -> None:
        self.mark = uuid.uuid4().hex
        words = [sys.executable, "-P", "-m", "himach", *ground.kept(), *more]
        words = [*words, *LAUNCHERS[launcher]] if launcher == "-n" else [*LAUNCHERS[launcher], *words]
        environ = {"NOTES": str(ground.notes), "PACE": str(pace), "HIMACH_TEST_MARK": self.mark, **environ}
        self.ground, self.before = ground, sum(ground.mapped().values())
        self.process = subprocess.Popen(
            words,
            env=clean_environment(**environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def until(self, frames: int) -> Run:
        """Wait until so many frames were mapped."""
        assert wait_until(lambda: sum(self.ground.mapped().values()) - self.before >= frames, 40), self.end()
        return self

    def send(self, signum: int) -> Run:
        self.process.send_signal(signum)
        return self

    def end(self, seconds: float = 60) -> tuple[int, str]:
        """Wait for the end; return the exit code and what was said. Nothing is left behind."""
        _, said = self.process.communicate(timeout=seconds)
        assert wait_until(lambda: not processes_with(self.mark), 5)
        return self.process.returncode, said


def is_spared(process: int) -> bool:
    """Whether SIGUSR1 is ignored or heard there."""
    masks = dict(line.split(":") for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return bool((int(masks["SigIgn"], 16) | int(masks["SigCgt"], 16)) & 1 << signal.SIGUSR1 - 1)


def goes_on(ground: Ground, whole: Path, *more: str, twice: int = 0) -> None:
    """The same command maps what is left, on another number of ranks, and its outcome is that of a run in one go."""
    before = ground.mapped()
    himach(*ground.kept(), *more, NOTES=str(ground.notes), PACE="0", code=0)
    assert ground.record()["reused"]["frames"] + sum((ground.mapped() - before).values()) == FRAMES
    assert sum(ground.mapped().values()) <= FRAMES + twice
    ground.same_as(whole)


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_sigterm_keeps_what_is_mapped_and_ends_with_143(ground, whole, launcher):
    run = Run(ground, launcher).until(30).send(signal.SIGTERM)
    began = time.monotonic()
    code, said = run.end()
    assert time.monotonic() - began < 5
    assert code == 143, said
    assert ("himach: terminated" in said) == (launcher != "mpiexec")
    assert "Traceback" not in said
    goes_on(ground, whole, "-n", "2")


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_sigusr1_keeps_what_is_mapped_and_goes_on(ground, whole, launcher):
    run = Run(ground, launcher).until(15).send(signal.SIGUSR1)
    ranks = 1 if launcher == "alone" else 3
    assert wait_until(lambda: len(ground.parts()) >= ranks)
    run.until(35).send(signal.SIGUSR1)
    assert wait_until(lambda: len(ground.parts()) >= 2 * ranks)
    kept = sum(ground.mapped().values())
    run.process.kill()
    run.process.communicate()
    assert wait_until(lambda: not processes_with(run.mark), 5)
    assert kept < FRAMES
    goes_on(ground, whole, twice=sum(ground.mapped().values()) - 35 + ranks)


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_time_that_is_up_ends_mapping_with_75(ground, whole, launcher):
    began = time.monotonic()
    code, said = Run(ground, launcher, "--max-time", "00:00:06", pace=0.6).end()
    assert code == 75, said
    assert time.monotonic() - began < 10
    assert "the same command goes on" in said
    assert said.count("himach:") == 1
    assert 0 < sum(ground.mapped().values()) < FRAMES
    goes_on(ground, whole, "--max-time", "1h")


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("moment", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGTERM])
def test_signals_before_mapping_do_what_they_do_there(ground, whole, moment, signum):
    """SIGUSR1 nothing, as soon as himach runs; SIGTERM ends at once."""
    run = Run(ground, "-n", pace=0.1)
    assert wait_until(lambda: is_spared(run.process.pid), 20)
    time.sleep(moment)
    run.send(signum)
    code, said = run.end()
    assert code == (0 if signum == signal.SIGUSR1 else 143), said
    goes_on(ground, whole, twice=0)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_rank_that_hangs_holds_up_the_end_for_20_seconds_at_most(ground, whole):
    """The others have kept what they mapped, and it too but for the frames since it last did."""
    run = Run(ground, "-n", HANGS="40")
    assert wait_until(ground.notes.with_name("notes.hung").exists, 40)
    began = time.monotonic()
    code, said = run.send(signal.SIGTERM).end()
    assert code == 143, said
    assert time.monotonic() - began < 21
    goes_on(ground, whole, twice=FRAMES)


def test_sigterm_of_a_script_that_starts_ranks_ends_it_by_the_signal(ground, whole):
    script = ground.folder / "script.py"
    script.write_text(
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import himach, slow\n"
        f"himach.run(slow.Slow, {str(ground.folder / 'run.xtc')!r}, {str(ground.folder / 'top.gro')!r}, cache='off', "
        f"pairs={str(ground.pairs)!r}, ranks=2)\n"
        "print('after')\n"
    )
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, str(script), str(ground.folder)],
        env=clean_environment(NOTES=str(ground.notes), PACE="0.05", HIMACH_TEST_MARK=mark),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert wait_until(lambda: sum(ground.mapped().values()) > 20, 40)
    os.kill(process.pid, signal.SIGTERM)
    assert (process.communicate(timeout=30)[0], process.returncode) == ("", -signal.SIGTERM)
    assert wait_until(lambda: not processes_with(mark), 5)
    goes_on(ground, whole)
