"""Runs that are told from outside to keep what they have, to end, or to be done in time; and runs that go on with them.

SLURM does so in `test_slurm_jobs.py`.
"""

import signal
import sys
import time
from pathlib import Path

import pytest
from runner.trials import MarkedRun, launch
from support.commands import himach, wait_until

from .sample import Ground

FRAMES = 60
LAUNCHERS = ("alone", "-n", "mpiexec")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    ground = Ground(tmp_path_factory.mktemp("whole"), FRAMES)
    himach(*ground.words, "--out", ground.out, code=0)
    return ground.out


@pytest.fixture
def ground(tmp_path):
    return Ground(tmp_path, FRAMES)


class Run(MarkedRun):
    """A run under way."""

    def __init__(self, ground: Ground, launcher: str, *more: str, pace: float = 0.05, **environ: str) -> None:
        self.ground, self.before = ground, sum(ground.mapped().values())
        variables = {"NOTES": str(ground.notes), "PACE": str(pace), **environ}
        super().__init__(launch(launcher, 3, *ground.kept(), *more), ground.folder, **variables)

    def until(self, frames: int) -> "Run":
        assert wait_until(lambda: sum(self.ground.mapped().values()) - self.before >= frames, 40), self.end()
        return self

    def send(self, signum: int) -> "Run":
        self.process.send_signal(signum)
        return self

    def end(self, seconds: float = 60) -> tuple[int, str]:
        """Wait for the end; return the exit code and standard error. No process is left behind."""
        code = self.wait(seconds)
        assert code is not None, self.stderr()
        assert self.leftovers(5) == []
        return code, self.stderr()


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
    code, message = run.end()
    assert time.monotonic() - began < 5
    assert code == 143, message
    assert ("himach: terminated" in message) == (launcher != "mpiexec")
    assert "Traceback" not in message
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
    run.end()
    assert kept < FRAMES
    goes_on(ground, whole, twice=sum(ground.mapped().values()) - 35 + ranks)


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_time_that_is_up_ends_mapping_with_75(ground, whole, launcher):
    began = time.monotonic()
    code, message = Run(ground, launcher, "--max-time", "00:00:06", pace=0.6).end()
    assert code == 75, message
    assert time.monotonic() - began < 10
    assert "the same command goes on" in message
    assert message.count("himach:") == 1
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
    code, message = run.end()
    assert code == (0 if signum == signal.SIGUSR1 else 143), message
    goes_on(ground, whole, twice=0)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_rank_that_hangs_holds_up_the_end_for_20_seconds_at_most(ground, whole):
    """The others have kept what they mapped, and it too but for the frames since it last did."""
    run = Run(ground, "-n", HANGS="40")
    assert wait_until(ground.notes.with_name("notes.hung").exists, 40)
    began = time.monotonic()
    code, message = run.send(signal.SIGTERM).end()
    assert code == 143, message
    assert time.monotonic() - began < 21
    goes_on(ground, whole, twice=FRAMES)


def test_sigterm_of_a_script_that_starts_ranks_ends_it_by_the_signal(ground, whole):
    script, after = ground.folder / "script.py", ground.folder / "after"
    script.write_text(
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import himach, slow\n"
        f"himach.run(slow.Slow, {str(ground.folder / 'run.xtc')!r}, {str(ground.folder / 'top.gro')!r}, cache='off', "
        f"pairs={str(ground.pairs)!r}, ranks=2)\n"
        f"open({str(after)!r}, 'w')\n"
    )
    command = [sys.executable, str(script), str(ground.folder)]
    run = MarkedRun(command, ground.folder, NOTES=str(ground.notes), PACE="0.05")
    assert wait_until(lambda: sum(ground.mapped().values()) > 20, 40)
    run.process.terminate()
    assert run.wait(30) == -signal.SIGTERM
    assert run.leftovers(5) == []
    assert not after.exists()
    goes_on(ground, whole)
