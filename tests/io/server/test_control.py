"""The server: starting, stopping, recovering; what is no server, or a stuck one."""

import contextlib
import json
import os
import shutil
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from support import commands
from support.cache_data import frame_of, push
from support.commands import wait_until

import himach
from himach import ServerUnreachableError
from himach.errors import UsageError
from himach.io.server import control
from himach.io.server.client import find
from himach.io.store.bodhi import ServerProtocolError
from himach.io.store.store import Store, StoreBusyError, StoreError


def command(*arguments):
    return commands.himach("cache", *arguments, timeout=120)


def test_start_status_stop(tmp_path, key):
    place = tmp_path / "store"
    started = command("start", "--cache", place, "--listen", "127.0.0.1:0", "--key", key)
    try:
        assert started.returncode == 0, started.stderr
        assert f"listens at {place}/server/socket" in started.stdout
        assert "for other machines at 127.0.0.1:" in started.stdout
        facts = json.loads(command("status", "--cache", place, "--json").stdout)["server"]
        assert facts["running"] and facts["answers"] and facts["connections"] == 1 and facts["frames"] == 0
        assert "frames pushed" in command("status", "--cache", place).stdout
        again = command("start", "--cache", place)
        assert again.returncode == 1 and f"pid {facts['pid']}" in again.stderr
        for path in (place, place / "server", place / "server" / "socket"):
            assert path.stat().st_mode & 0o077 == 0
    finally:
        stopped = command("stop", "--cache", place)
    assert stopped.stdout == "stopped\n"
    assert not (place / "server" / "socket").exists()
    assert command("stop", "--cache", place).stdout == "there is no server to stop\n"
    assert json.loads(command("status", "--cache", place, "--json").stdout)["server"] == {"running": False}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--listen", "nowhere"], "'nowhere' is no address"),
        (["--listen", "127.0.0.1:99999"], "is no address"),
        (["--allow-user", "nobody-by-this-name"], "there is no user"),
    ],
)
def test_refused_options(tmp_path, key, options, said):
    result = command("start", "--cache", tmp_path / "s", "--key", key, *options)
    assert result.returncode == 2 and said in result.stderr


def test_socket_path_too_long(tmp_path):
    place = tmp_path / ("d" * 100)
    with pytest.raises(UsageError, match=rf"has {len(str(place)) + 14} bytes; this system takes 107"):
        control.start(place)


def test_sigterm_keeps_what_was_pushed(run_server):
    running = run_server()
    writer = himach.Writer("run", 100, servers=[running.path], timeout=0.5)
    writer.push(frame_of(0), time=0)
    time.sleep(0.3)
    assert running.terminate() == 0
    assert control.status(running.place) == {"running": False}
    assert list(Store(running.place).dataset("run").native) == [0]
    with contextlib.suppress(ServerUnreachableError):
        writer.close()


def test_sigkill_and_restart(run_server):
    running = run_server()
    push(running, range(5))
    pid = running.process.pid
    running.kill()
    assert find(running.place) is None
    assert control.status(running.place) == {"running": False}
    running.start()
    assert f"pid {pid}" in running.facts["notes"][0]
    assert "the store has 5 frames" in running.facts["notes"][1]
    with running.client() as client:
        assert list(client.open("run").native) == list(range(5))


@pytest.mark.parametrize("inside", [False, True])
def test_a_server_ends_when_its_store_is_removed(tmp_path, key, inside):
    """By the end of a job, say: another one begins at the same port, and the first leaves its socket alone."""
    place = tmp_path / "store"
    with socket.create_server(("127.0.0.1", 0)) as free:
        words = ["--cache", place, "--listen", f"127.0.0.1:{free.getsockname()[1]}", "--key", key]
    first = control.start(place, listen=words[3], key_file=key)
    for path in [*place.iterdir()] if inside else [place]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert wait_until(lambda: not Path("/proc", str(first["pid"]), "stat").exists() or is_zombie(first["pid"]), 30)
    text = Path(first["log"]).read_text()
    assert f"begins to serve {place}" in text
    assert f"{place} was removed, and its server ends" in text
    assert command("start", *words).returncode == 0
    assert control.status(place)["answers"]
    assert command("stop", "--cache", place).returncode == 0
    assert "ends, by himach cache stop" in Path(first["log"]).read_text()


@pytest.mark.parametrize("log", ["no home", "full"])
def test_a_server_runs_whatever_its_log_meets(tmp_path, monkeypatch, log):
    place = tmp_path / "store"
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/none")
    if log == "full":
        (place / "server").mkdir(mode=0o700, parents=True)
        monkeypatch.setattr(control, "_open_log", lambda path, flags: os.open("/dev/full", os.O_WRONLY))
    started = control.start(place)
    try:
        assert started["log"] == f"{place}/server/log"
        assert wait_until(lambda: control.status(place).get("answers"), 30)
        assert log == "full" or "begins to serve" in Path(started["log"]).read_text()
    finally:
        assert control.stop(place)
    assert log == "full" or "ends, by himach cache stop" in Path(started["log"]).read_text()


def is_zombie(pid):
    return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_not_a_server(key):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pose():
            with listener.accept()[0] as raw:
                raw.sendall(b"HTTP/1.1 400 Bad Request and so on, and so on.")

        threading.Thread(target=pose, daemon=True).start()
        with pytest.raises((ServerProtocolError, ServerUnreachableError)):
            himach.Writer("run", 1, servers=[f"127.0.0.1:{listener.getsockname()[1]}"], key=key)


def test_stop_of_a_stuck_server(run_server):
    running = run_server()
    running.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(StoreBusyError, match="has not ended"):
            control.stop(running.place, seconds=0.3)
        assert control.status(running.place, timeout=0.3)["answers"] is False
    finally:
        running.process.send_signal(signal.SIGCONT)
    assert running.process.wait(30) in (0, 143)  # the signal may come when it has ended already


def test_what_a_killed_server_leaves_open_is_closed_by_whoever_looks_for_it(run_server):
    running = run_server("--allow-user", "nobody")
    places = [running.place, running.place / "server"]
    assert running.client() and [path.stat().st_mode & 0o777 for path in places] == [0o711, 0o711]
    running.process.send_signal(signal.SIGSTOP)  # it does not answer, and is there
    with contextlib.suppress(StoreError):
        find(running.place, timeout=0.2)
    assert [path.stat().st_mode & 0o777 for path in places] == [0o711, 0o711]
    running.kill()
    assert find(running.place) is None
    assert [path.stat().st_mode & 0o777 for path in places] == [0o700, 0o700]


def test_the_first_address_of_a_name_that_can_be_had_is_listened_at(monkeypatch):
    """Where a family has no sockets here, or an address is taken, the next is tried, and nothing is left open."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        of = [(9999, ("::1", 0)), (socket.AF_INET, taken.getsockname()), (socket.AF_INET, ("127.0.0.1", 0))]
        found = [(family, socket.SOCK_STREAM, 0, "", name) for family, name in of]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *words, **options: found)
        before = len(list(Path("/proc/self/fd").iterdir()))
        with control._listen_remotely("host:0") as listener:
            assert listener.getsockname()[0] == "127.0.0.1"
        found.pop()
        with pytest.raises(UsageError, match="cannot listen at host:0: Address already in use"):
            control._listen_remotely("host:0")
        assert len(list(Path("/proc/self/fd").iterdir())) == before
