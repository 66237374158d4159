"""The server: starting, stopping, recovering; what is no server, or a stuck one; runs that use that of their node."""

import contextlib
import json
import os
import shutil
import signal
import socket
import threading
import time
from pathlib import Path

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from support import commands
from support.cache_data import frame_of, push
from support.commands import wait_until

import himach
from himach import ServerUnreachableError, examples
from himach.errors import UsageError
from himach.frame import POSITIONS, VELOCITIES
from himach.io.datasets.source import Source
from himach.io.datasets.subsets import UNREACHABLE
from himach.io.frame_source import ReadOptions
from himach.io.server import control
from himach.io.server.client import find
from himach.io.store.bodhi import ServerProtocolError
from himach.io.store.store import Store, StoreBusyError
from himach.io.trajectories.origin import open_origin


def command(*arguments, code=None):
    return commands.himach("cache", *arguments, timeout=120, code=code)


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
        again = command("start", "--cache", place, code=1)
        assert f"pid {facts['pid']}" in again.stderr
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
        (["--listen", "::1:7411"], "or [::1]:7411"),
        (["--allow-user", "nobody-by-this-name"], "there is no user"),
    ],
)
def test_refused_options(tmp_path, key, options, said):
    result = command("start", "--cache", tmp_path / "s", "--key", key, *options, code=2)
    assert said in result.stderr


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
    command("start", *words, code=0)
    assert control.status(place)["answers"]
    command("stop", "--cache", place, code=0)
    assert "ends, by SIGTERM" in Path(first["log"]).read_text()


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
    assert log == "full" or "ends, by SIGTERM" in Path(started["log"]).read_text()


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
    with contextlib.ExitStack() as stack:
        stack.callback(running.process.send_signal, signal.SIGCONT)
        with pytest.raises(StoreBusyError, match="has not ended"):
            control.stop(running.place, seconds=0.3)
        assert control.status(running.place, timeout=0.3)["answers"] is False
        with contextlib.suppress(BlockingIOError):  # its backlog is full
            while True:
                client = stack.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect(str(running.path))
        with pytest.raises(StoreBusyError, match="has not ended"):
            control.stop(running.place, seconds=0.3)
    assert running.process.wait(30) in (0, 143)  # the signal may come when it has ended already


class NoOrigin:
    """An origin of which nothing may be asked."""

    present = False
    n_atoms = 50


def run(place, **options):
    """Run over whole frames: what was kept of some atoms is read by the ranks themselves."""
    return himach.run(examples.load("rmsd")(selection="all"), DCD, PSF, cache=str(place), **options)


def test_ranks_read_by_the_server_of_their_node(run_server):
    running = run_server()
    first = run(running.place)
    assert first.record["bytes"]["origin"] > 0
    with running.client() as client:
        before = client.counters()
    for ranks in (None, 2):
        again = run(running.place, ranks=ranks)
        assert again.record["bytes"]["origin"] == 0
        assert again.record["bytes"]["cache"] > 0
        assert again.record["assignment"]["alien"] == 98
        np.testing.assert_array_equal(again.outcome["rmsd"]["rmsd"], first.outcome["rmsd"]["rmsd"])
    with running.client() as client:
        after = client.counters()
    assert any(after[name] >= before[name] + 2 * 98 for name in after), (before, after)


def test_a_run_goes_on_when_the_server_ends_in_the_middle(run_server):
    running = run_server()
    with Store(running.place).dataset("run", segment_bytes=1) as dataset:
        for number in range(70):  # a segment each, of which a message grants 32
            dataset.write(number, 1.0, None, np.full((50, 3), number, dtype=np.float32))
            dataset.flush()
    with running.client():
        source = Source(NoOrigin(), dataset)
        found = source.read(np.arange(70))
        assert next(found).number == 0
        running.kill()
        assert [float(frame.positions[7, 1]) for frame in found] == list(range(1, 70))
        assert [frame.number for frame in source.read(np.arange(3))] == [0, 1, 2]
        assert source.bytes_origin == 0
        assert source.bytes_cache == dataset.places(np.r_[:70, :3])["length"].sum()


def test_a_field_is_read_late_when_the_server_has_ended(run_server):
    running = run_server()
    with Store(running.place).dataset("run") as dataset:
        for number in range(5):
            dataset.write(number, 1.0, None, *np.full((2, 50, 3), number, dtype=np.float32))
    with running.client():
        source = Source(NoOrigin(), dataset, options=ReadOptions(fields=POSITIONS))
        for frame in source.read(np.arange(5)):
            if frame.number == 0:
                running.kill()
            np.testing.assert_array_equal(frame.field(VELOCITIES), np.full((50, 3), frame.number))


def test_reads_after_an_interrupted_one_are_misses(run_server):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    running = run_server()
    push(running, range(5))
    with running.client() as client:
        dataset = client.open("run")
        running.process.send_signal(signal.SIGSTOP)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            list(dataset.read(np.arange(5)))
        running.process.send_signal(signal.SIGCONT)
        reading = dataset.read(np.arange(5))
        assert list(reading) == [None] * 5
        assert reading.reason == UNREACHABLE


def test_a_cache_that_goes_away_in_the_middle_is_told_of(run_server):
    """Another user's store, of which nothing can be read without its server."""
    running = run_server()
    push(running, range(5))
    origin = open_origin([Path(DCD)], Path(PSF), {})
    for ends_before in (True, False):
        with running.client() as client:
            source = Source(origin, client.open("run"))
            assert source.lost == ""
            found = None if ends_before else source.read(np.arange(5))
            if found is not None:
                assert len(next(found).positions) == 100
            running.kill()
            found = source.read(np.arange(5)) if found is None else source.read(np.arange(3))
            assert len(next(found).positions) == 3341
            assert "the cache is away" in source.lost
        running.start()


def push_some(numbers, universe, **options):
    """Push these frames, each under its number."""
    with himach.Writer("run8", universe.atoms.n_atoms, **options) as writer:
        for number in numbers:
            universe.trajectory[number]
            writer.number = number
            writer.write(universe)


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("ranks", [None, 2])
def test_frames_that_were_never_pushed_are_named_and_left_out(run_server, key, ranks):
    """Those at the beginning and the end, and some between."""
    running = run_server()
    universe = mda.Universe(PSF, DCD)
    held = [number for number in range(3, 90) if number not in (4, 50, 51)]
    push_some(held, universe, servers=[running.address], key=key)
    expected = himach.run(examples.load("rmsd")(selection="name CA"), DCD, PSF, start=3, cache="off").outcome["rmsd"]
    analysis = examples.load("rmsd")(selection="name CA")
    said = r"6 of 90 frames selected .* are left out: 0, 1, 2, 4, 50, \.\.\."
    with contextlib.nullcontext() if ranks else pytest.warns(UserWarning, match=said):  # spawned ranks print it
        found = himach.run(analysis, "run8", PSF, cache=str(running.place), ranks=ranks)
    assert found.record["frames"] == len(held) and found.record["dataset"]["frames"] == 90
    assert found.record["faulty"] == {"damaged": 0, "missing": 6}
    places = np.array(held) - 3
    np.testing.assert_array_equal(found.outcome["rmsd"]["rmsd"], np.array(expected["rmsd"])[places])
    np.testing.assert_array_equal(found.outcome["rmsd"]["time_ps"], np.array(expected["time_ps"])[places])
    assert himach.run(analysis, "run8", PSF, cache=str(running.place), start=5, stop=50).record["frames"] == 45
    with pytest.raises(himach.UsageError, match="none of the frames selected is there"):
        himach.run(analysis, "run8", PSF, cache=str(running.place), start=50, stop=52)
