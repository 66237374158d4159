"""Who may do what at a server: admission, keys, strangers."""

import ast
import ctypes
import encodings.idna  # noqa: F401 - for create_connection(): a stranger may not be able to read Python's library
import hmac
import os
import pwd
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import warnings
from pathlib import Path

import pytest
from support import commands, needs
from support.cache_data import push
from support.ranks import clean_environment

import himach
import himach.io.datasets.offline_origin  # of files that a stranger may not read
from himach import examples
from himach.io.datasets.lookup import open_cache
from himach.io.server import (
    control,
    survey,  # noqa: F401 - a stranger may not be able to read himach either
)
from himach.io.server.client import find
from himach.io.store.bodhi import ServerRefusedError
from himach.io.store.store import Store, StoreError


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


def as_user(user, work):
    """Run `work` in a child process of another user; return what it printed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            os.setgroups([])
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
            try:
                said = str(work())
            except BaseException as error:  # the parent wants to know of any
                said = f"{type(error).__name__}: {error}"
            os.write(writer, said.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as lines:
        said = lines.read()
    os.waitpid(child, 0)
    return said


def connect(path):
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(path))
    return "connected"


def test_a_stranger_gets_nowhere(run_server, stranger, open_place, key):
    running = run_server(name=open_place / "store")
    push(running, range(3), 1000)
    place = running.place
    (segment,) = Store(place).dataset("run").path.glob("*.seg")
    for attempt in (
        lambda: connect(running.path),
        lambda: os.listdir(place),
        segment.read_bytes,
        (place / "x").mkdir,
        lambda: (place / "server" / "socket").symlink_to("/tmp"),
        key.read_bytes,
    ):
        assert "PermissionError" in as_user(stranger, attempt)
    assert "Refused" in as_user(stranger, lambda: find(place, owner=os.stat("/").st_uid))


def test_an_allowed_user_may_read(run_server, stranger, open_place):
    running = run_server("--allow-user", stranger.pw_name, name=open_place / "store")
    push(running, range(3), 1000)
    owner = os.geteuid()

    def read():
        with find(running.place, owner=owner) as client:
            return [float(frame.positions[0, 0]) for frame in client.open("run").read(range(3))]

    def write():
        with find(running.place, owner=owner) as client:
            reading = client.open("run").read([0])
            opened = {fd: os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir()}
            (granted,) = (fd for fd, file in opened.items() if str(running.place) in file and file.endswith(".seg"))
            next(reading)
            return os.open(granted, os.O_RDWR)

    assert as_user(stranger, read) == "[0.0, 1000.0, 2000.0]"
    assert "PermissionError" in as_user(stranger, write)
    assert "PermissionError" in as_user(stranger, lambda: os.listdir(running.place))
    assert running.terminate() == 0
    assert running.place.stat().st_mode & 0o077 == 0


@pytest.fixture
def trajectory(open_place):
    """Trajectory and topology that everybody may read."""
    from MDAnalysisTests.datafiles import DCD, PSF

    copies = [Path(shutil.copy(file, open_place)) for file in (DCD, PSF)]
    for copy in copies:
        copy.chmod(0o644)
    return copies


def test_runs_read_another_users_store_by_its_server(run_server, stranger, open_place, trajectory, monkeypatch):
    monkeypatch.setattr("himach.runner.run_record.version", lambda package: "")  # of files that a stranger may not read
    running = run_server("--allow-user", stranger.pw_name, name=open_place / "store")
    analysis = examples.load("rmsd")(selection="all")

    def run(**options):
        return himach.run(analysis, *trajectory, cache=str(running.place), **options)

    def told(**options):
        found = run(**options)
        read = found.record["bytes"]
        return (
            found.outcome["rmsd"]["rmsd"].tolist(),
            found.record["assignment"]["alien"],
            read["origin"],
            read["cache"],
        )

    def as_stranger(**options):
        said = as_user(stranger, lambda: told(**options))
        assert said.startswith("(["), said
        return ast.literal_eval(said)

    expected = run(stop=50).outcome["rmsd"]["rmsd"].tolist()

    def contents():
        return {path: path.read_bytes() for path in running.place.glob("*-*/*")}  # of times, meta's tells of use

    before = contents()
    outcome, alien, origin, cache = as_stranger(stop=50)
    assert (outcome, alien, origin) == (expected, 50, 0) and cache > 0
    outcome, alien, origin, cache = as_stranger()  # the rest comes from the origin, and is not kept
    assert (outcome[:50], len(outcome), alien) == (expected, 98, 50) and origin > 0
    assert contents() == before
    for file in trajectory:
        file.rename(file.with_suffix(".away"))
    assert as_stranger(stop=50)[:3] == (expected, 50, 0)  # stamp and topology come through the server
    for file in trajectory:
        file.with_suffix(".away").rename(file)
    trajectory[0].write_bytes(trajectory[0].read_bytes()[:-100])  # another content: what is cached is not used
    assert as_user(stranger, lambda: told(stop=20)[1:3]).startswith("(0, ")
    running.kill()

    def warned():
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            _, alien, origin, cache = told(stop=20)
        return alien, origin > 0, cache, [str(one.message) for one in said if "belongs to user" in str(one.message)]

    said = as_user(stranger, warned)  # only the cache is away
    assert said.startswith("(0, True, 0, ['no cache is used: "), said


def test_a_store_that_nobody_serves_is_refused_as_such(stranger, open_place):
    Store(open_place / "store")  # into which the stranger may not even look
    said = as_user(stranger, lambda: open_cache(str(open_place / "store")))
    assert said.startswith("UsageError: cache names "), said


def test_what_a_stranger_plants_is_refused(stranger, open_place, key):
    """A store, a socket or a link that was there first."""

    def plant_store():
        (open_place / "store" / "server").mkdir(parents=True)
        raw = socket.socket(socket.AF_UNIX)
        raw.bind(str(open_place / "store" / "server" / "socket"))
        raw.listen()
        (open_place / "link").symlink_to(open_place / "store")

    assert as_user(stranger, plant_store) == "None"
    for name in ("store", "link"):
        with pytest.raises(ServerRefusedError):
            find(open_place / name)
        result = commands.himach("cache", "start", "--cache", open_place / name, timeout=60, code=1)
        assert "belongs to user" in result.stderr
    with pytest.raises(ServerRefusedError, match="not user"), socket.socket(socket.AF_UNIX) as raw:
        path = open_place / "mine"
        listener = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(f"""
                    import os, socket, time
                    os.setuid({stranger.pw_uid})
                    s = socket.socket(socket.AF_UNIX); s.bind({str(path)!r}); s.listen(); time.sleep(60)
                """)]
        )  # fmt: skip
        try:
            while not path.exists():
                time.sleep(0.02)
            time.sleep(0.1)
            himach.Writer("run", 1, servers=[str(path)], timeout=5)
        finally:
            listener.send_signal(signal.SIGKILL)
            listener.wait()
            raw.close()


def test_wrong_key(run_server, tmp_path):
    running = run_server()
    other = tmp_path / "other"
    other.write_text("another key, long enough")
    other.chmod(0o600)
    with pytest.raises(ServerRefusedError, match="refuses the key"):
        himach.Writer("run", 1, servers=[running.address], key=other)
    other.chmod(0o640)
    with pytest.raises(ServerRefusedError, match="mode 600"):
        himach.Writer("run", 1, servers=[running.address], key=other)
    with pytest.raises(StoreError, match="mode 600"):
        control.start(tmp_path / "s", listen="127.0.0.1:0", key_file=other)


def answer_of(key, challenge, counter=bytes(32)):
    return counter + hmac.digest(key.read_bytes().strip(), b"client" + challenge + counter, "sha256")


def test_replayed_answer(run_server, key):
    running = run_server()
    host, port = running.address.split(":")
    answers = []
    for replay in (False, True):
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            challenge = raw.recv(40, socket.MSG_WAITALL)[8:]
            answers.append(answer_of(key, challenge))
            raw.sendall(answers[0])
            reply = raw.recv(36, socket.MSG_WAITALL)
            assert (reply[:4] == bytes(4)) is not replay
            if replay:
                assert raw.recv(1) == b""


PUSH = """
import numpy as np, sys, himach
from himach.io.server import control
from himach.io.server.client import find
place = sys.argv[1]
with himach.Writer("run", 3, servers=[control.start(place)["socket"]]) as writer:
    writer.push(np.ones((3, 3), np.float32), time=0)
with find(place) as client:
    (frame,) = client.open("run").read([0])
    print("read", frame.positions.sum())
control.stop(place)
"""


def test_what_is_local_works_without_libcrypto(tmp_path):
    """Where that is an empty file."""
    needs.mount_namespace()
    ctypes.CDLL("libcrypto.so.3")
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libcrypto.so." in line}
    hidden = [shlex.join(["mount", "--bind", "/dev/null", path]) for path in mapped]
    words = shlex.join([sys.executable, "-P", "-c", PUSH, str(tmp_path / "store")])
    command = ["unshare", "-m", "sh", "-c", " && ".join([*hidden, f"exec {words}"])]
    environ = clean_environment(HIMACH_CACHE=str(tmp_path / "store"))
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=200, check=False)
    assert (done.stdout, done.stderr) == ("read 9.0\n", "")
