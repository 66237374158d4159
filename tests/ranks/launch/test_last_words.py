"""What is told of a rank that a signal killed: which rank, signal, frame and line of the user's code."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import MDAnalysis as mda
import pytest
from MDAnalysis.analysis.base import AnalysisBase
from MDAnalysis.analysis.results import ResultsGroup
from MDAnalysisTests.datafiles import DCD, PSF
from ranks.launch.probes import at_frame, number_in
from support import commands
from support.ranks import clean_environment, mpiexec

import himach.mdanalysis
from himach import Analysis, RankError

SCRIPT = '''
import ctypes, os, pathlib, signal
import himach

class Dies(himach.Analysis):
    """Dies."""
    how: str = ""
    def map(self, frame):
        if frame.number == 40:
            self.die()
        yield "n", 1
    def die(self):
        ctypes.string_at(0) if self.how == "read" else None
        os.kill(os.getpid(), signal.SIGBUS) if self.how == "bus" else None
        os.abort() if self.how == "abort" else None
        pathlib.Path(self.how).write_text(str(os.getpid()))
        signal.pause()
    def reduce(self, key, series):
        return len(series)
'''

pytestmark = pytest.mark.fresh


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "größe.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("launcher", ["", "mpiexec"])
@pytest.mark.parametrize(
    ("ranks", "how", "name"), [(2, "read", "11 (SIGSEGV)"), (3, "bus", "7 (SIGBUS)"), (3, "abort", "6 (SIGABRT)")]
)
def test_of_a_rank_that_crashes_frame_and_line_are_told(script, launcher, ranks, how, name):
    words = ["-n", ranks, "-p", f"how={how}", "--cache", "off"]
    done = commands.himach("run", script, *commands.DATA, *words, HIMACH_LAUNCHER=launcher)
    assert done.returncode == 1
    number, line = next((i, line) for i, line in enumerate(SCRIPT.splitlines(), 1) if f'"{how}"' in line)
    assert re.sub(r"rank \d", "rank N", done.stderr.strip()) == (
        f"himach: error: rank N was killed by signal {name} at frame 40, and the other ranks of {ranks} were ended\n"
        f"  {script}, line {number}, in die: {line.strip()}"
    )


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_command_that_nobody_of_ours_has_started_tells_the_line_itself(script, ranks):
    command = [sys.executable, "-m", "himach", "run", str(script), *commands.DATA, "-p", "how=read", "--cache", "off"]
    if ranks == 1:
        done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), check=False)
    else:
        done = mpiexec(ranks, command)
    assert done.returncode != 0
    assert "Fatal Python error: Segmentation fault" in done.stderr
    assert re.search(r"line \d+ in die\n", done.stderr)


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize(
    ("launcher", "told"),
    [
        ("", r"error: rank [01] was killed by signal 9 \(SIGKILL\) at frame 40, "),
        (
            "mpiexec",
            r"error: a rank was killed by signal 9 \(SIGKILL\).*; it was (rank \d at frame \d+ or )?rank \d at",
        ),
    ],
)
def test_of_a_rank_that_was_killed_the_frame_is_told(script, tmp_path, monkeypatch, launcher, told):
    monkeypatch.setenv("HIMACH_LAUNCHER", launcher)
    file = tmp_path / "process"
    process = commands.start_himach("run", script, *commands.DATA, "-n", 2, "-p", f"how={file}", "--cache", "off")
    os.kill(number_in(file), signal.SIGKILL)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 1
    assert re.search(told, said) and "frame 40" in said, said


def test_a_child_of_the_users_has_no_say():
    code = "import os\nif os.fork() == 0: os.kill(os.getpid(), 11)\nos.wait(); os.kill(os.getpid(), 9)"
    with pytest.raises(RankError, match=r"^rank 0 was killed by signal 9 \(SIGKILL\) at frame 40;.*fewer ranks$"):
        at_frame(1, code)


def test_of_a_rank_that_crashes_after_the_last_frame_no_frame_is_told():
    class Late(Analysis):
        def map(self, frame):
            yield "n", 1

        def reduce(self, key, series):
            os.kill(os.getpid(), signal.SIGSEGV)

    with pytest.raises(
        RankError, match=r"^rank \d was killed by signal 11 \(SIGSEGV\), and .*\n  .*, in reduce: os.kill"
    ):
        himach.run(Late(), DCD, PSF, ranks=2, cache="off")


class Dying(AnalysisBase):
    """Dies at frame 40."""

    _analysis_algorithm_is_parallelizable = True

    def __init__(self, atoms):
        super().__init__(atoms.universe.trajectory)

    def _single_frame(self):
        if self._ts.frame == 40:
            os.kill(os.getpid(), signal.SIGSEGV)

    def _get_aggregator(self):
        return ResultsGroup({})


@pytest.mark.parametrize("launcher", ["", "mpiexec"])
def test_analyses_of_mdanalysis_are_no_exception(monkeypatch, launcher):
    monkeypatch.setenv("HIMACH_LAUNCHER", launcher)
    universe = mda.Universe(PSF, DCD)
    told = r"rank \d was killed by signal 11 \(SIGSEGV\) at frame 40, .*\n  .*, in _single_frame: os.kill"
    with pytest.raises(RankError, match=told):
        himach.mdanalysis.run(Dying(universe.atoms), ranks=2)
