"""Runs under a real SLURM: four nodes (slurmd daemons) on this machine, from Debian's packages.

Skipped where SLURM is not installed, unless HIMACH_REQUIRE_SLURM is set, as CI does.
"""

import json
import os
import subprocess
import sys
import time

import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from runner.live.engines import MadeUpEngine, made_up, topology
from runner.passes import PASSES
from support.commands import himach, same_files, write_analysis
from support.slurm import cluster_up

# Ranks wait by spinning, so that eight on two cores start slowly where the machine is busy.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HIMACH = [sys.executable, "-P", "-m", "himach", "run"]
ON_TWO_NODES = ["-N2", "-n4", *HIMACH[:-1]]
RMSD = [*HIMACH, "rmsd", "--trajectory", str(DCD), "--topology", str(PSF), "-p", "selection=name CA"]


@pytest.fixture(scope="module")
def cluster():
    with cluster_up() as environ:
        yield environ


@pytest.fixture
def slurm(cluster):
    """The environment for srun in that cluster, with the frame store of this test."""
    return {**cluster, "HIMACH_CACHE": os.environ["HIMACH_CACHE"]}


def srun(environ, *words: object, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    options = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
    return subprocess.run(["srun", *map(str, words)], env=environ, timeout=timeout, check=False, **options)


@pytest.mark.nightly(but=["channel"])
@pytest.mark.parametrize("name", PASSES)
def test_ranks_on_four_nodes_leave_the_bytes_of_one_process(slurm, tmp_path, name):
    alone = himach("run", *PASSES[name], "--quiet", "--out", tmp_path / "alone", code=0)
    done = srun(slurm, "-N4", "-n8", *HIMACH, *PASSES[name], "--out", str(tmp_path / "srun"))
    assert done.returncode == 0, done.stderr
    same_files(tmp_path / "alone", tmp_path / "srun")
    record = json.loads((tmp_path / "srun" / "run.json").read_text())
    assert record["ranks"] == 8
    assert record["nodes"] == 4
    assert done.stdout == alone.stdout  # what is printed comes from the first rank alone


def test_a_launcher_that_does_not_fit_is_named(slurm):
    done = srun(slurm, "--mpi=none", "-n2", *RMSD)
    assert done.returncode == 1
    assert "2 worlds of one rank" in done.stderr
    assert "--mpi=pmi2" in done.stderr


def test_an_error_on_one_rank_ends_all_within_seconds(slurm, tmp_path):
    failing = "if frame.number == 3: raise ValueError('no')\nyield 1, 1"
    script = write_analysis(tmp_path / "fails.py", failing, name="Fails")
    words = [*HIMACH, str(script), "--trajectory", str(DCD), "--topology", str(PSF)]
    for options in ([], ["--kill-on-bad-exit=1"]):
        begun = time.monotonic()
        done = srun(slurm, "-N4", "-n4", *options, *words)
        # With the option, srun may report the signal by which it ended the last ranks.
        assert done.returncode == 1 or options, done.stderr
        assert done.returncode in (1, 137, 143), done.stderr
        assert done.stderr.count("Fails.map()") == 1
        assert "frame 3" in done.stderr
        assert time.monotonic() - begun < 60


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize(("death", "status"), [("os.kill(os.getpid(), 9)", 137), ("ctypes.CDLL(None)._exit(0)", 137)])
def test_a_rank_that_dies_without_a_word_ends_all(slurm, tmp_path, death, status):
    """SLURM alone would let the others wait for it as long as the job may take."""
    dying = f"if frame.number == 40: {death}\nyield 1, 1"
    script = write_analysis(tmp_path / "dies.py", dying, before="import ctypes, os")
    done = srun(slurm, "-N2", "-n4", *HIMACH, str(script), "--trajectory", str(DCD), "--topology", str(PSF))
    assert done.returncode == status, done.stderr
    assert "of 4 (node node" in done.stderr
    assert "died, by a signal or an exit of its own, before its work was done; all ranks are ended" in done.stderr


@pytest.mark.nightly
def test_ranks_can_be_started_within_a_batch_job(slurm, tmp_path):
    """An enclosing job's variables do not reach the ranks that -n starts."""
    done = srun(slurm, "-n1", *RMSD, "-n", "2", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "run.json").read_text())["ranks"] == 2


@pytest.mark.nightly
def test_a_file_is_followed_by_several_nodes(slurm, tmp_path):
    words = ["follow", "rmsd", "-p", "selection=name CA", "-t", DCD, "-s", PSF]
    done = srun(slurm, *ON_TWO_NODES, *words, "--every", 20, "--idle", 1, "--out", tmp_path / "out")
    assert done.returncode == 0 and done.stderr.count("after 98 frames") == 1, done.stderr
    assert "maps all frames again" not in done.stderr
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["nodes"] == 2
    assert record["reused"]["frames"] >= 80
    himach("run", *words[1:], "--out", tmp_path / "again", code=0)
    same_files(tmp_path / "out", tmp_path / "again")
    assert not list(tmp_path.glob("himach-live-*"))


def test_an_engine_is_received_by_the_first_node(slurm, tmp_path):
    script = write_analysis(tmp_path / "count.py", "yield 'frames', frame.number")
    words = ["follow", script, "-s", topology(tmp_path)]
    with MadeUpEngine(made_up(30), rate=20) as engine:
        live = ["-t", engine.address, "--every", 5, "--dataset", "run7", "--out", tmp_path / "out"]
        done = srun(slurm, *ON_TWO_NODES, *words, *live)
    assert done.returncode == 0 and "after 30 frames, kept as dataset run7" in done.stderr, done.stderr
    assert json.loads((tmp_path / "out" / "run.json").read_text())["nodes"] == 2
    store = os.environ["HIMACH_CACHE"].replace("{node}", "node1")
    there = store.replace("/local/", "/disk/node1/")  # to this machine
    store = there if os.path.exists(there) else store
    himach("run", *words[1:], "-t", "run7", "--cache", store, "--out", tmp_path / "again", code=0)
    same_files(tmp_path / "out", tmp_path / "again")
