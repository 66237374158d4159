"""Mounts of what servers have, this node's and others': read from all, and from those that are left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from himach.io.server.admission import make_key

from .mounts import mounted, until
from .test_mount import FILES, positions_in, push


class Served:
    """Servers of some stores on this machine, peers of each other."""

    def __init__(self, place, parts):
        self.key = place / "key"
        make_key(self.key)
        self.processes, self.addresses = [], []
        peers = place / "peers"
        peers.write_text("")
        for number, numbers in enumerate(parts):
            push(place / f"n{number}", "run7", numbers)
            self._start(place / f"n{number}", number, "127.0.0.1:0")
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        peers.write_text("\n".join(self.addresses))
        addresses, self.processes, self.addresses = self.addresses, [], []
        for number, address in enumerate(addresses):
            self._start(place / f"n{number}", number, address, "--peers", peers)

    def _start(self, store, number, address, *words):
        reader, writer = os.pipe()
        command = ["cache", "start", "--foreground", "--ready", writer, "--cache", store, "--listen", address, *words]
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "himach", *map(str, [*command, "--key", self.key])],
            pass_fds=[writer],
            env=os.environ | {"HIMACH_NODE": f"n{number}"},
        )
        os.close(writer)
        self.processes.append(process)
        with os.fdopen(reader) as lines:
            self.addresses.append(json.loads(lines.readline())["listen"])


@pytest.fixture
def served(tmp_path):
    made = []

    def make(*parts):
        made.append(Served(tmp_path, parts))
        return made[-1]

    yield make
    for item in made:
        for process in item.processes:
            process.kill()
            process.wait(60)


def test_frames_come_from_all_servers(tmp_path, served):
    servers = served(range(0, 30), range(30, 50))
    with mounted(tmp_path / "m", "--server", servers.addresses[1], "--key", servers.key) as mount:
        assert sorted(os.listdir(mount.path / "run7")) == FILES
        file = mount.path / "run7" / "trajectory.trr"
        until(lambda: file.stat().st_size == 50 * 720, "all frames")
        assert positions_in(file) == list(range(50))


def test_a_server_is_killed_and_comes_back(tmp_path, served):
    servers = served(range(0, 3000), range(0, 3000))
    with mounted(tmp_path / "m", "--server", servers.addresses[0], "--key", servers.key) as mount:
        file = mount.path / "run7" / "trajectory.trr"
        with file.open("rb") as content:
            content.read(100_000)
            servers.processes[1].kill()
            servers.processes[1].wait()
            assert len(content.read()) == 3000 * 720 - 100_000
        servers.processes[0].kill()
        servers.processes[0].wait()
        assert sorted(os.listdir(mount.path / "run7")) == FILES
        servers._start(tmp_path / "n0", 0, servers.addresses[0])
        os.posix_fadvise(os.open(file, os.O_RDONLY), 0, 0, os.POSIX_FADV_DONTNEED)

        def read():
            try:
                return positions_in(file) == list(range(3000))
            except OSError:
                return False

        until(read, "frames again")
