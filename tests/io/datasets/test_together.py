"""Runs `ranks_together.py` on several ranks, and jobs on other nodes than the last one."""

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.cache_data import make, stage_on_nodes
from support.commands import himach, same_files
from support.disks import small_disk
from support.ranks import run_under_mpiexec
from support.threads import run_ranks

from himach.io.datasets import offline_origin
from himach.io.datasets.attachment import OriginFiles


def test_on_ranks():
    run_under_mpiexec(Path(__file__).with_name("ranks_together.py"), 3)


@pytest.mark.parametrize("name", ["md.xtc", "md.trr"])
def test_nodes_that_lack_what_the_first_one_keeps_run_with_it(tmp_path, name):
    """The node is another one than in the last job, or its disk was purged."""
    topology, trajectory = make(tmp_path, name=name)
    words = ["run", "radius-of-gyration", "-p", "selection=all", "-t", trajectory, "-s", topology, "--quiet", "--out"]
    assert himach(*words, tmp_path / "alone", "--cache", "off").returncode == 0
    for job, nodes in enumerate([["a", "b"], ["b", "c", "c"], ["b", "c"]]):
        shutil.rmtree(tmp_path / "c", ignore_errors=True)
        done = stage_on_nodes(tmp_path, nodes, *words, tmp_path / f"job{job}")
        assert done.returncode == 0, done.stderr
        same_files(tmp_path / "alone", tmp_path / f"job{job}")


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


def test_topology_files_of_a_store_stay_on_the_first_rank(monkeypatch):
    files = OriginFiles(None, {"/top.gro": (".gro", b"atoms")})
    choice = SimpleNamespace(stamp=SimpleNamespace(n_frames=5), is_pushed=False)
    monkeypatch.setattr(offline_origin, "_files", lambda comm, *known: files if comm.rank == 1 else None)
    # Threads have no Ibarrier(), by which ranks wait in these.
    monkeypatch.setattr(offline_origin, "run_collectively", lambda comm, function: function())
    monkeypatch.setattr(offline_origin, "on_first_rank", lambda *told, **options: None)
    every = run_ranks("aab", lambda world: offline_origin.offline_origin(world, None, None, choice, 1, None)[2])
    assert [each.topologies for each in every] == [files.topologies, {}, {}]
