"""What a run imports and starts, and what is left when it is killed while it starts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from support.commands import DATA, himach, processes_with, start_himach, wait_until
from support.ranks import clean_environment

from himach import Ranks, run

from .probes import Probe, children

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


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "probe.py"
    path.write_text(SCRIPT)
    return path


def told(done) -> dict:
    """Return what the script found in the process of the first rank."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[0])


@pytest.mark.parametrize("words", [[], ["-n", "1"]])
def test_a_run_on_one_rank_needs_no_mpi_and_little_else(script, words):
    modules = told(himach("run", script, *DATA, "--cache", "off", *words))["modules"]
    several = ("mpi4py", "himach.ranks.mpi", "himach.ranks.launch.launcher", "himach.checkpoint")
    assert not [name for name in (*several, "scipy.sparse", "scipy.spatial", "matplotlib") if name in modules]


def test_a_short_run_of_a_built_in_imports_what_it_needs_to_its_end():
    words = [sys.executable, "-P", "-X", "importtime", "-m", "himach", "run", "rmsd", *DATA, "--cache", "off"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=200, env=clean_environment())
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "himach.engine.mapreduce" in modules
    assert not modules & {"numpy.ma", "scipy.special", "matplotlib", "pandas", "pyarrow", "xarray"}


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize(
    ("environ", "parent"),
    [
        ({}, "python"),
        ({"HIMACH_LAUNCHER": "mpiexec"}, "hydra_pmi_proxy"),
        ({"OPENBLAS_NUM_THREADS": "2"}, "hydra_pmi_proxy"),  # a process with threads is not forked
    ],
)
def test_ranks_are_forked_where_they_can_be(script, environ, parent):
    done = himach("run", script, *DATA, "--cache", "off", "-n", 2, **environ)
    assert told(done)["parent"].startswith(parent)


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
