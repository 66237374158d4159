"""Runs `ranks_together.py` on several ranks, and jobs on other nodes than the last one."""

import re
import shutil
from pathlib import Path

import pytest
from support.cache_data import make, stage_on_nodes
from support.commands import himach, same_files
from support.needs import small_disk
from support.ranks import run_under_mpiexec


def test_on_ranks():
    run_under_mpiexec(Path(__file__).with_name("ranks_together.py"), 3)


WAYS = [".", "*-*", "*-*/*.seg", "*-*/*.idx", "*-*/meta", "*-*/x-*", "*-*/x-index", "*-*/x-origin.json"]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Stores of two nodes after a job, what it was, and what one process gives."""
    folder = tmp_path_factory.mktemp("jobs")
    topology, trajectory = make(folder, name="md.xtc")
    words = ["run", "radius-of-gyration", "-p", "selection=all", "-t", trajectory, "-s", topology, "--quiet", "--out"]
    assert himach(*words, folder / "alone", "--cache", "off").returncode == 0
    assert stage_on_nodes(folder / "disks", ["a", "b"], *words, folder / "job").returncode == 0
    return folder, words


@pytest.mark.parametrize("node", ["a", "b"])
@pytest.mark.parametrize("lost", WAYS)
def test_a_store_that_lost_files_between_jobs(jobs, tmp_path, lost, node):
    """A disk's purge removes what was not used for long: a store, a dataset, or some of its files."""
    folder, words = jobs
    shutil.copytree(folder / "disks", tmp_path / "disks", ignore=shutil.ignore_patterns(".disk"))
    gone = [*(tmp_path / "disks" / node).glob(lost)] if lost != "." else [tmp_path / "disks" / node]
    assert gone
    for path in gone:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    done = stage_on_nodes(tmp_path / "disks", ["a", "b"], *words, tmp_path / "job")
    assert done.returncode == 0, done.stderr
    same_files(folder / "alone", tmp_path / "job")


def test_a_full_disk_is_told_with_its_node(tmp_path):
    topology, trajectory = make(tmp_path)
    words = ["run", "radius-of-gyration", "-p", "selection=all", "-t", trajectory, "-s", topology, "--quiet"]
    with small_disk(tmp_path / "m", "mode=700,size=16k"):
        done = stage_on_nodes(tmp_path, ["n", "m"], *words)
    assert done.returncode == 0, done.stderr
    assert re.search(r"warning: no frames are .*\(node m\)", done.stderr), done.stderr
