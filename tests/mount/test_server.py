"""Mounts of what servers have, this node's and others': read from all, and from those that are left."""

from __future__ import annotations

import os

import pytest
from support.servers import peering

from .mounts import mounted, until
from .test_mount import FILES, positions_in, push


@pytest.fixture
def served(tmp_path, run_server):
    """Give what starts servers that are peers, each with some frames of a dataset."""

    def start(*parts):
        return peering(tmp_path, run_server, len(parts), lambda i: push(tmp_path / f"n{i}", "run7", parts[i]))

    return start


def test_frames_come_from_all_servers(tmp_path, served, key):
    _, server = served(range(0, 30), range(30, 50))
    with mounted(tmp_path / "m", "--server", server.address, "--key", key) as mount:
        assert sorted(os.listdir(mount.path / "run7")) == FILES
        file = mount.path / "run7" / "trajectory.trr"
        until(lambda: file.stat().st_size == 50 * 720, "all frames")
        assert positions_in(file) == list(range(50))


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
