"""Servers of the tests: real processes, a store each, all on this machine."""

import contextlib
import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support import needs

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


def become(user):
    """Make this process another user's."""
    os.setgroups([])
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)


def free_addresses(n):
    """Addresses of this machine at which nobody listens."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(n)]
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in listeners]


@pytest.fixture
def stranger():
    needs.root("to make a user")
    needs.program("useradd")
    name = f"himach{os.getpid()}"
    subprocess.run(["useradd", "--no-create-home", name], check=True)
    try:
        yield pwd.getpwnam(name)
    finally:
        subprocess.run(["userdel", name], check=True, capture_output=True)


@pytest.fixture
def open_place():
    """A directory that everybody may enter, as /var/tmp is; pytest's own are closed."""
    with tempfile.TemporaryDirectory(prefix="himach-test-") as directory:
        os.chmod(directory, 0o1777)
        yield Path(directory)
