"""Requests of FUSE to a mount: files that grow, are made anew, or cannot be read; datasets of several servers."""

import errno
import logging
import os

import pytest
from support.servers import peering

from himach.errors import TrajectoryError
from himach.io.trajectories.layouts import Content, Trr
from himach.mount import block_cache, tree
from himach.mount.operations import Operations
from himach.mount.stores import Facts

from .mounts import ListedFrames, mounted, sample_frames, until, whole
from .test_mount import FILES, positions_in, push

N_ATOMS = 20
FRAMES = sample_frames(12, N_ATOMS)
CONTENT = whole(Trr(Content(12, N_ATOMS)), FRAMES)
PATH = "/run7/trajectory.trr"


class Made(ListedFrames):
    """A dataset whose content the tests change."""

    def __init__(self):
        super().__init__(FRAMES)
        self.version, self.n_frames = b"one", 5

    def names(self):
        return ["run7"]

    def facts(self, name):
        return Facts(name, self.version, self.n_frames, N_ATOMS, False, False, True, 7, {".gro": 3})

    def topology(self, facts, suffix):
        if self.missing:
            raise TrajectoryError("it is gone")
        return b"top"


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(tree, "TTL_SECONDS", 0.0)
    monkeypatch.setattr(tree, "TTL_SHARE", 0.0)
    monkeypatch.setattr(block_cache, "AGAIN_SECONDS", 0.0)


@pytest.fixture
def made():
    return Made()


@pytest.fixture
def operations(made):
    operations = Operations(made, lambda: None)
    yield operations
    operations.close()


def read(operations, handle, size=10**6, offset=0):
    return bytes(operations.read(PATH, size, offset, handle))


def test_a_file_that_is_made_anew_is_not_mixed_with_the_one_before(made, operations, caplog):
    handle = operations.open(PATH, os.O_RDONLY)
    assert read(operations, handle) == CONTENT[: 5 * 360]
    made.version = b"two"
    with caplog.at_level(logging.WARNING, "himach.mount"), pytest.raises(OSError) as caught:
        read(operations, handle)
    assert caught.value.errno == errno.EIO
    assert "made anew" in caplog.text
    assert read(operations, operations.open(PATH, os.O_RDONLY)) == CONTENT[: 5 * 360]


def test_an_open_file_grows_with_its_dataset(made, operations):
    handle = operations.open(PATH, os.O_RDONLY)
    assert read(operations, handle) == CONTENT[: 5 * 360]
    made.n_frames = 12
    assert read(operations, handle) == CONTENT
    assert read(operations, handle, 360, 11 * 360) == CONTENT[-360:]


def test_what_cannot_be_read_is_told_once(made, operations, caplog):
    made.missing = {2}
    handle = operations.open(PATH, os.O_RDONLY)
    with caplog.at_level(logging.WARNING, "himach.mount"):
        for _ in range(3):
            with pytest.raises(OSError) as caught:
                read(operations, handle)
            assert caught.value.errno == errno.EIO
        assert read(operations, handle, 360, 360) == CONTENT[360:720]
    assert [item.message for item in caplog.records] == [f"{PATH} cannot be read: frame 2 is missing"]
    made.missing = set()
    assert read(operations, handle) == CONTENT[: 5 * 360]


def test_a_topology_that_is_gone(made, operations):
    path = "/run7/topology.gro"
    made.missing = {0}
    handle = operations.open(path, os.O_RDONLY)
    with pytest.raises(OSError) as caught:
        operations.read(path, 10, 0, handle)
    assert caught.value.errno == errno.EIO
    made.missing = set()
    assert bytes(operations.read(path, 2, 1, handle)) == b"op"
    assert operations.read(path, 2, 3, handle) == b""


@pytest.fixture
def served(tmp_path, run_server):
    """Give what starts servers that are peers, each with some frames of a dataset."""

    def start(*parts):
        return peering(tmp_path, run_server, len(parts), lambda i: push(tmp_path / f"n{i}", "run7", parts[i]))

    return start


def test_a_server_is_killed_and_comes_back(tmp_path, served, key):
    server, other = served(range(0, 3000), range(0, 3000))
    with mounted(tmp_path / "m", "--server", server.address, "--key", key) as mount:
        file = mount.path / "run7" / "trajectory.trr"
        with file.open("rb") as content:
            content.read(100_000)
            other.kill()
            assert len(content.read()) == 3000 * 720 - 100_000
        server.kill()
        assert sorted(os.listdir(mount.path / "run7")) == FILES
        server.start(server.address)
        os.posix_fadvise(os.open(file, os.O_RDONLY), 0, 0, os.POSIX_FADV_DONTNEED)

        def read():
            try:
                return positions_in(file) == list(range(3000))
            except OSError:
                return False

        until(read, "frames again")
