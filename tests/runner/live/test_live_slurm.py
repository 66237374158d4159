"""Live runs whose ranks lie on several nodes, under a real SLURM."""

import json
import os
import subprocess
import sys

import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from runner.live.engines import MadeUpEngine, made_up, topology
from support.commands import himach, same_files, write_analysis
from support.slurm import cluster_up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HIMACH = [sys.executable, "-P", "-m", "himach"]


@pytest.fixture(scope="module")
def cluster():
    with cluster_up(2) as environ:
        yield environ


def srun(environ, *words):
    done = subprocess.run(
        ["srun", "-N2", "-n4", *HIMACH, *map(str, words)],
        env={**environ, "HIMACH_CACHE": os.environ["HIMACH_CACHE"]},
        capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.nightly
def test_a_file_is_followed_by_several_nodes(cluster, tmp_path):
    words = ["follow", "rmsd", "-p", "selection=name CA", "-t", DCD, "-s", PSF]
    done = srun(cluster, *words, "--every", 20, "--idle", 1, "--out", tmp_path / "out")
    assert done.stderr.count("after 98 frames") == 1
    assert "maps all frames again" not in done.stderr
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["nodes"] == 2
    assert record["reused"]["frames"] >= 80
    himach("run", *words[1:], "--out", tmp_path / "again", code=0)
    same_files(tmp_path / "out", tmp_path / "again")
    assert not list(tmp_path.glob("himach-live-*"))


def test_an_engine_is_received_by_the_first_node(cluster, tmp_path):
    script = write_analysis(tmp_path / "count.py", "yield 'frames', frame.number")
    words = ["follow", script, "-s", topology(tmp_path)]
    with MadeUpEngine(made_up(30), rate=20) as engine:
        done = srun(
            cluster, *words, "-t", engine.address, "--every", 5, "--dataset", "run7", "--out", tmp_path / "out"
        )  # fmt: skip
    assert "after 30 frames, kept as dataset run7" in done.stderr
    assert json.loads((tmp_path / "out" / "run.json").read_text())["nodes"] == 2
    store = os.environ["HIMACH_CACHE"].replace("{node}", "node1")
    there = store.replace("/local/", "/disk/node1/")  # to this machine
    store = there if os.path.exists(there) else store
    himach("run", *words[1:], "-t", "run7", "--cache", store, "--out", tmp_path / "again", code=0)
    same_files(tmp_path / "out", tmp_path / "again")
