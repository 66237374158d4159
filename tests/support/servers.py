"""Servers of the tests: real processes, a store each, all on this machine."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import himach

from himach.io.server.admission import make_key
from himach.io.server.client import Client, find


class Running:
    """A server in a process of its own."""

    def __init__(self, place: Path, key: Path, *options: str, listen: str = "127.0.0.1:0") -> None:
        self.place = place
        self.key = key
        self.options = options
        self.start(listen)

    def start(self, listen: str = "127.0.0.1:0") -> None:
        reader, writer = os.pipe()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "himach", "cache", "start", "--foreground", "--ready", str(writer)),
                *("--cache", str(self.place), "--key", str(self.key), "--listen", listen, *self.options),
            ],
            pass_fds=[writer],
            env=os.environ | {"HIMACH_NODE": self.place.name},
        )
        os.close(writer)
        with os.fdopen(reader) as lines:
            line = lines.readline()
        if not line:
            raise RuntimeError(f"the server ended with {self.process.wait(30)}")
        self.facts = json.loads(line)
        self.address = self.facts["listen"]
        self.path = self.facts["socket"]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def client(self) -> Client:
        found = find(self.place)
        assert found is not None
        return found


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "key"
    make_key(path)
    return path


@pytest.fixture
def run_server(tmp_path, key):
    """Returns a function that starts servers, each for a store of its own."""
    running = []

    def run(*options, name=None):
        running.append(Running(tmp_path / (name or f"n{len(running)}"), key, *options))
        return running[-1]

    yield run
    for one in running:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait(30)


@pytest.fixture
def server():
    """The server of this node, for the store that the environment names."""
    himach("cache", "start", code=0)
    yield
    himach("cache", "stop", code=0)


def free_addresses(n):
    """Addresses of this machine at which nobody listens."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(n)]
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in listeners]


def peering(tmp_path, run_server, n, fill_one):
    """Start servers that know each other, each for a store that ``fill_one(i)`` has filled."""
    peers = tmp_path / "peers"
    addresses = free_addresses(n)
    peers.write_text("# all of them\n" + "".join(f"{address}  # one\n" for address in addresses))
    for i in range(n):
        fill_one(i)
    running = []
    for address in addresses:
        one = run_server("--peers", str(peers))
        one.terminate()
        one.start(address)
        running.append(one)
    return running
