"""Where pairs lie between the outcomes of a live run: gone with it, or with the next one, and seen by all nodes."""

import os
import signal
from dataclasses import replace

import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from support.commands import himach, start_himach, wait_until
from support.threads import on_threads

from himach.parallel.communicator import alone
from himach.runner.live.scratch_pairs import LOCK, pairs_between

RUN = ["run", "rmsd", "-p", "selection=name CA", "-t", DCD, "-s", PSF, "--follow", "--every", 20]


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    place = tmp_path / "scratch"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    return place


def folders(place):
    return sorted(place.glob("himach-live-*"))


@pytest.mark.nightly
def test_what_a_killed_run_left_goes_with_the_next_and_what_a_living_one_has_stays(scratch, tmp_path):
    killed, living = (start_himach(*RUN, "--idle", 600, "--out", tmp_path / name) for name in ("killed", "living"))
    try:
        assert wait_until(lambda: all((tmp_path / one / "run.json").exists() for one in ("killed", "living")), 90)
        assert len(folders(scratch)) == 2
        killed.kill()
        killed.wait()
        assert len(folders(scratch)) == 2
        assert himach(*RUN, "--idle", 0.5, "--out", tmp_path / "next").returncode == 0
        (left,) = folders(scratch)
        assert f"process {living.pid} " in (left / LOCK).read_text()
        living.send_signal(signal.SIGINT)
        _, error = living.communicate(timeout=60)
        assert living.returncode == 0, error
        assert folders(scratch) == []
    finally:
        for process in (killed, living):
            process.kill()
            process.communicate()


def test_only_folders_of_ones_own_are_removed(scratch, tmp_path):
    mine, other = scratch / "himach-live-mine", tmp_path / "other"
    (mine / "pairs").mkdir(parents=True)
    other.mkdir()
    (scratch / "himach-live-link").symlink_to(other)
    (scratch / "himach-live-file").write_text("")
    theirs = scratch / "himach-live-theirs"
    theirs.mkdir()
    if os.geteuid() == 0:
        os.chown(theirs, 12345, 12345)
    with pairs_between(alone(), None, None, True) as path:
        assert path.parent.parent == scratch
        assert os.stat(path.parent).st_mode & 0o777 == 0o700
        assert not mine.exists()
        assert other.exists()
        assert (scratch / "himach-live-file").exists()
        assert theirs.exists() == (os.geteuid() == 0)
    assert not path.parent.exists()


def test_a_folder_that_has_no_lock_yet_is_left_for_a_while(scratch):
    new, old = scratch / ".himach-live-new", scratch / ".himach-live-old"
    for path in (new, old):
        path.mkdir()
    os.utime(old, (0, 0))
    with pairs_between(alone(), None, None, True):
        assert new.exists()
        assert not old.exists()


def test_many_at_once_keep_their_folders(scratch):

    def one(comm):
        there = []
        for _ in range(20):
            with pairs_between(alone(), None, None, True) as path:
                path.mkdir()
                there.append(path.exists())
        return all(there)

    assert on_threads(8, one) == [True] * 8
    assert os.listdir(scratch) == []


@pytest.mark.parametrize("out", [None, "out"])
def test_nodes_keep_pairs_beside_out_or_say_that_they_have_no_place(tmp_path, scratch, capsys, out):
    def one(comm):
        world = replace(alone(), comm=comm, nodes=("node1", "node2"))
        with pairs_between(world, None, None if out is None else tmp_path / out, False) as path:
            comm.barrier()
            return path

    first, second = on_threads(2, one)
    said = capsys.readouterr().err
    assert first == second
    if out is None:
        assert first is None
        assert said.count("every outcome maps all frames again") == 1
        assert "--pairs DIR" in said
    else:
        assert first.parent.parent == tmp_path
        assert not said
    assert not folders(tmp_path)


def test_nobody_needs_a_folder_where_the_user_named_one(scratch, tmp_path):
    with pairs_between(alone(), tmp_path, None, False) as path:
        assert path is None
        assert not folders(scratch)
