"""What a run imports and starts; what is left of one that is killed, and what is told of a rank that is."""

import contextlib
import json
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
from support import commands
from support.commands import DATA, processes_with, start_himach, wait_until
from support.ranks import clean_environment, mpiexec

import himach.mdanalysis
from himach import Analysis, RankError, Ranks, run

from .probes import Probe, at_frame, children, number_in

SCRIPT = """
import json, os, sys, himach

class Probe(himach.Analysis):
    def map(self, frame):
        yield frame.number, 1
    def reduce(self, key, series):
        return 1
    def finish(self, results):
        parent = open(f"/proc/{os.getppid()}/comm").read().strip()
        print(json.dumps({"parent": parent, "modules": sorted(sys.modules)}))
        return {}
"""
FORKED = b"himach.ranks.launch.rank_main"

pytestmark = pytest.mark.fresh


def told(done) -> dict:
    """Return what the script found in the process of the first rank."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[0])


@pytest.mark.parametrize("words", [[], ["-n", "1"]])
def test_a_run_on_one_rank_needs_no_mpi_and_little_else(script, words):
    modules = told(commands.himach("run", script, *DATA, "--cache", "off", *words))["modules"]
    several = ("mpi4py", "himach.ranks.mpi", "himach.ranks.launch.launcher")
    assert not [name for name in (*several, "scipy.sparse", "scipy.spatial", "matplotlib") if name in modules]


def test_a_short_run_of_a_built_in_imports_what_it_needs_to_its_end():
    words = [sys.executable, "-P", "-X", "importtime", "-m", "himach", "run", "rmsd", *DATA, "--cache", "off"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=200, env=clean_environment())
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "himach.engine.mapreduce" in modules
    assert not modules & {"numpy.ma", "scipy.special", "matplotlib", "pandas", "pyarrow", "xarray"}


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("environ", [{}, {"OPENBLAS_NUM_THREADS": "2"}], ids=str)
def test_ranks_are_forked(script, environ):
    done = commands.himach("run", script, *DATA, "--cache", "off", "-n", 2, **environ)
    assert told(done)["parent"].startswith("python")


@pytest.mark.parametrize("who", ["starter", "launcher"])
@pytest.mark.parametrize("when", ["at once", "with ranks"])
def test_nothing_is_left_of_a_run_that_is_killed_while_it_starts(mark, script, who, when):
    least = {"at once": 1, "with ranks": 3}[when]

    def forked() -> list[int]:
        found = []
        for process in processes_with(mark):
            try:
                if FORKED in Path(f"/proc/{process}/cmdline").read_bytes():
                    found.append(process)
            except OSError:
                continue
        return sorted(found)

    script.write_text(SCRIPT.replace("yield", "import time; time.sleep(600); yield"))  # longer than `mark` waits
    process = start_himach("run", script, *DATA, "-n", "2", "--cache", "off")
    assert wait_until(lambda: len(forked()) >= least, 30)
    os.kill(process.pid if who == "starter" else forked()[0], signal.SIGKILL)
    _, said = process.communicate(timeout=30)
    if who == "launcher":
        assert process.returncode == 1
        assert "a rank was killed by signal 9 (SIGKILL), and the other ranks of 2 were ended" in said


def test_sigusr1_leaves_ranks_alone_from_their_first_moment(script):
    """A batch system sends it to all processes of a job, whatever they are about."""
    process = start_himach("run", script, *DATA, "-n", "2", "--cache", "off")
    met: dict[int, set[int]] = {}  # of each launcher what it started
    while process.poll() is None:
        for launcher in children(process.pid):
            ranks = children(launcher)
            met.setdefault(launcher, set()).update(ranks)
            for one in (launcher, *ranks):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, signal.SIGUSR1)
    said = process.communicate()[1]
    assert (process.returncode, "error" in said) == (0, False), said
    (ranks,) = met.values()
    assert len(ranks) >= 2  # and what a package asks of the machine while it is imported


@pytest.mark.nightly
def test_ranks_that_are_forked_import_nothing_more_of_himach(tmp_path):
    """What a run imports is imported ahead, once for all runs over `himach.Ranks`."""
    ahead = "import himach.ranks.launch.rank_main, himach.ranks.mpi, himach.ranks.launch.launcher\n"
    ahead += "from himach.ranks.launch.preload import preload\npreload()\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", ahead], capture_output=True, text=True, check=True)
    code = "import sys; found = [name for name in sys.modules if name.startswith('himach.')]"
    with Ranks(2) as ranks:
        run(Probe(code=code), DCD, PSF, cache=tmp_path, progress=False, ranks=ranks)
        held = set(run(Probe(code=code), DCD, PSF, cache=tmp_path, progress=False, ranks=ranks).outcome)
    assert held - set(done.stdout.split()) == set()


def test_paths_are_not_asked_whether_they_are_objects_of_packages(tmp_path):
    """MDAnalysis imports OpenMM, ParmEd, MMTF with urllib and ssl to find that out."""
    code = "import sys; found = [name for name in ('openmm', 'parmed', 'mmtf.api', 'ssl') if name in sys.modules]"
    with Ranks(1) as ranks:
        assert run(Probe(code=code), DCD, PSF, cache=tmp_path, progress=False, ranks=ranks).outcome == []


DYING = '''
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


@pytest.fixture
def dying(tmp_path: Path) -> Path:
    path = tmp_path / "größe.py"
    path.write_text(DYING)
    return path


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize(
    ("ranks", "how", "name"), [(2, "read", "11 (SIGSEGV)"), (3, "bus", "7 (SIGBUS)"), (3, "abort", "6 (SIGABRT)")]
)
def test_of_a_rank_that_crashes_frame_and_line_are_told(dying, ranks, how, name):
    words = ["-n", ranks, "-p", f"how={how}", "--cache", "off"]
    done = commands.himach("run", dying, *DATA, *words)
    assert done.returncode == 1
    number, line = next((i, line) for i, line in enumerate(DYING.splitlines(), 1) if f'"{how}"' in line)
    assert re.sub(r"rank \d", "rank N", done.stderr.strip()) == (
        f"himach: error: rank N was killed by signal {name} at frame 40, and the other ranks of {ranks} were ended\n"
        f"  {dying}, line {number}, in die: {line.strip()}"
    )


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_command_that_nobody_of_ours_has_started_tells_the_line_itself(dying, ranks):
    command = [sys.executable, "-m", "himach", "run", str(dying), *DATA, "-p", "how=read", "--cache", "off"]
    if ranks == 1:
        done = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), check=False)
    else:
        done = mpiexec(ranks, command)
    assert done.returncode != 0
    assert "Fatal Python error: Segmentation fault" in done.stderr
    assert re.search(r"line \d+ in die\n", done.stderr)


@pytest.mark.nightly(but=1)
def test_of_a_rank_that_was_killed_the_frame_is_told(dying, tmp_path):
    file = tmp_path / "process"
    process = start_himach("run", dying, *DATA, "-n", 2, "-p", f"how={file}", "--cache", "off")
    os.kill(number_in(file), signal.SIGKILL)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 1
    assert re.search(r"error: rank [01] was killed by signal 9 \(SIGKILL\) at frame 40, ", said), said


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


def test_analyses_of_mdanalysis_are_no_exception():
    universe = mda.Universe(PSF, DCD)
    told = r"rank \d was killed by signal 11 \(SIGSEGV\) at frame 40, .*\n  .*, in _single_frame: os.kill"
    with pytest.raises(RankError, match=told):
        himach.mdanalysis.run(Dying(universe.atoms), ranks=2)
