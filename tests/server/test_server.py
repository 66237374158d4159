"""The server: control, reading, recovery, limits, and everything malformed that a client can send."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from messages import FLUSH, FRAME, HAVE, OPEN, READ, STATUS, STOP, frame_body, message, open_body

import himach
from himach.errors import UsageError
from himach.io import bodhi, server
from himach.io.client import find
from himach.io.serving import (
    ServerHandle,
    ServerProtocolError,
    ServerRefusedError,
    ServerUnreachableError,
    hmac_sha256,
)
from himach.io.store import Store, StoreBusyError, StoreError, StoreNotFoundError


def frame_of(number, n_atoms=100):
    return (np.arange(n_atoms * 3, dtype=np.float32) + number * 1000).reshape(n_atoms, 3)


def push(running, numbers, n_atoms=100, **options):
    with himach.Writer("run", n_atoms, servers=[running.path], **options) as writer:
        for number in numbers:
            writer.number = number
            writer.push(frame_of(number, n_atoms), time=number / 2, box=[9, 9, 9, 90, 90, 90])


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "himach", "cache", *arguments], check=False, capture_output=True, text=True, timeout=120
    )


# --- Control ----------------------------------------------------------------------------------------------------------


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
        server.start(place)


def test_sigterm_ends_cleanly(run_server):
    running = run_server()
    push(running, range(5))
    assert running.terminate() == 0
    assert server.status(running.place) == {"running": False}
    assert list(Store(running.place).dataset("run").native) == list(range(5))


def test_sigterm_keeps_what_was_pushed(run_server):
    running = run_server()
    writer = himach.Writer("run", 100, servers=[running.path], timeout=0.5)
    writer.push(frame_of(0), time=0)
    time.sleep(0.3)
    assert running.terminate() == 0
    assert list(Store(running.place).dataset("run").native) == [0]
    with contextlib.suppress(ServerUnreachableError):
        writer.close()


def test_sigkill_and_restart(run_server):
    running = run_server()
    push(running, range(5))
    pid = running.process.pid
    running.kill()
    assert find(running.place) is None
    assert server.status(running.place) == {"running": False}
    running.start()
    assert f"pid {pid}" in running.facts["notes"][0]
    assert "the store has 5 frames" in running.facts["notes"][1]
    with running.client() as client:
        assert list(client.open("run").bitmaps()[0]) == list(range(5))


def test_one_server_a_store(run_server):
    running = run_server()
    with pytest.raises(StoreBusyError, match="has a server already"):
        server.start(running.place)


# --- Reading ----------------------------------------------------------------------------------------------------------


def test_reading(run_server):
    running = run_server()
    push(running, range(300))
    with Store(running.place).dataset("run") as dataset:
        dataset.write(1000, 1.0, None, frame_of(1000))
    with running.client() as client:
        client.open("run")
        native, alien = client.bitmaps()
        assert list(native) == list(range(300)) and list(alien) == [1000]
        assert client.have([0, 1000, 1001]).tolist() == [1, 2, 0]
        wanted = [7, 1000, 299, 5000, 0, *range(100)]
        for number, frame in zip(wanted, client.read(wanted), strict=True):
            if number == 5000:
                assert frame is None
                continue
            np.testing.assert_array_equal(frame.positions, frame_of(number))
            assert frame.number == number and (frame.box is None) == (number == 1000)


def test_reading_some_atoms_of_packed_frames(run_server):
    running = run_server()
    steps = np.random.default_rng(1).integers(0, 5000, (3, 9000, 3))
    frames = steps.astype(np.float32) * np.float32(0.001) * np.float32(10)  # as from XTC
    with himach.Writer("run", 9000, servers=[running.path]) as writer:
        for number, positions in enumerate(frames):
            writer.number = number
            writer.push(positions, time=0.0, velocities=positions)
    atoms = np.array([3, 8500], dtype=np.int64)
    with running.client() as client:
        client.open("run")
        with client.places([0]) as (place,):
            assert place.length < 1.6 * frames[0].nbytes  # two fields, one packed
        for positions, frame in zip(frames, client.read(range(3)), strict=True):
            np.testing.assert_array_equal(frame.positions, positions)
            np.testing.assert_array_equal(frame.velocities, positions)
        for positions, frame in zip(frames, client.read(range(3), atoms, bodhi.POSITIONS), strict=True):
            np.testing.assert_array_equal(frame.positions[atoms], positions[atoms])
            assert frame.velocities is None


@pytest.fixture(params=["raw", "packed"])
def large(request, run_server):
    """A server with four large frames with velocities, and their positions."""
    running = run_server()
    rng = np.random.default_rng(1)
    steps = rng.integers(0, 5000, (4, 60_000, 3))
    frames = steps.astype(np.float32) * np.float32(0.001) * np.float32(10)
    if request.param == "raw":
        frames += rng.normal(size=frames.shape).astype(np.float32)
    with himach.Writer("run", frames.shape[1], servers=[running.path]) as writer:
        for number, positions in enumerate(frames):
            writer.number = number
            writer.push(positions, time=number, velocities=positions + 1)
    return running, frames


@pytest.mark.parametrize("fields", [0, bodhi.POSITIONS, bodhi.VELOCITIES, bodhi.FORCES])
@pytest.mark.parametrize("atoms", [None, [0], [59_999], [0, 30_000, 30_001, 59_999], range(8000, 9000), range(60_000)])
def test_only_the_blocks_that_are_asked_for_are_read(large, atoms, fields):
    running, frames = large
    chosen = None if atoms is None else np.array(atoms, dtype=np.int64)
    rows = slice(None) if chosen is None else chosen
    with running.client() as client:
        client.open("run")
        with client.places(range(4)) as places:
            whole = sum(place.length for place in places)
        for number, frame in enumerate(client.read(range(4), chosen, fields)):
            assert (frame.number, frame.time) == (number, number)
            assert (frame.positions is not None) == (fields in (0, bodhi.POSITIONS))
            assert (frame.velocities is not None) == (fields in (0, bodhi.VELOCITIES))
            if frame.positions is not None:
                np.testing.assert_array_equal(frame.positions[rows], frames[number][rows])
            if frame.velocities is not None:
                np.testing.assert_array_equal(frame.velocities[rows], frames[number][rows] + 1)
        assert client.nbytes <= whole
        if fields and (chosen is None or chosen.size < 10):
            assert client.nbytes < 0.8 * whole
        if fields == bodhi.POSITIONS and chosen is not None and chosen.size == 1:
            assert client.nbytes < 0.2 * whole


@pytest.mark.parametrize("block", [0, 7, 14])
def test_damage_outside_of_what_is_asked_for_is_not_read(large, block):
    running, frames = large
    with running.client() as client:
        client.open("run")
        with client.places([1]) as (place,):
            segment = Store(running.place).dataset("run").path / f"n-{place.segment:016x}.seg"
            head = os.pread(place.fd, 4096, place.offset)
            (n_blocks,) = struct.unpack_from("<I", head, 108)
            sizes = [struct.unpack_from("<I", head, 112 + 8 * i)[0] for i in range(n_blocks)]
            begin = place.offset + -(-(112 + 8 * n_blocks) // 64) * 64
        assert block < n_blocks // 2
        with open(segment, "r+b") as file:
            file.seek(begin + sum(sizes[:block]) + 70)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1]))
        (block_atoms,) = struct.unpack_from("<I", head, 76)
        hit = np.array([block * block_atoms], dtype=np.int64)
        other = np.array([(block + n_blocks // 4) % (n_blocks // 2) * block_atoms], dtype=np.int64)
        assert list(client.read([1], hit)) == [None]
        (frame,) = client.read([1], other)
        np.testing.assert_array_equal(frame.positions[other], frames[1][other])


def test_reading_is_checked(run_server):
    running = run_server()
    push(running, range(3))
    (segment,) = Store(running.place).dataset("run").path.glob("*.seg")
    with open(segment, "r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"\xff" * 8)
    with running.client() as client:
        assert [frame is None for frame in client.open("run").read([0, 1, 2])] == [False, False, True]


def test_places_hold_the_segment(run_server):
    running = run_server()
    push(running, range(3))
    dataset = Store(running.place).dataset("run")
    segment = dataset.segments()[0]["id"]
    with running.client() as client, client.open("run").places([1]):
        time.sleep(0.1)
        with pytest.raises(StoreBusyError):
            dataset.evict(segment)
    dataset.evict(segment)


FAR = 2000  # atoms: ten frames of so many are no neighbours any more


def reading(running, wanted, order):
    """Threads that each read some frames in a turn of theirs; `order` gets what they read."""

    def read(numbers):
        with running.client() as client, client.open("run").places(numbers) as places:
            order.append(("begin", tuple(numbers)))
            assert all(place is not None for place in places)
            time.sleep(0.2)
            order.append(("end", tuple(numbers)))

    return [threading.Thread(target=read, args=(numbers,)) for numbers in wanted]


def serialized(running, wanted):
    """What happens in which order when others wait while frame 50 is being read."""
    order = []
    with running.client() as first:
        with first.open("run").places([50]):
            threads = reading(running, wanted, order)
            for thread in threads:
                thread.start()
            deadline = time.monotonic() + 20
            while first.counters()["waiting"] < len(wanted) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert order == []
        for thread in threads:
            thread.join(30)
        return order, first.counters()["shared_turns"]


def test_serialized_reads_take_turns(run_server):
    running = run_server("--serialize-reads")
    push(running, range(100), FAR)
    order, shared = serialized(running, [[10], [90], [70]])
    assert order == [(what, (number,)) for number in (70, 90, 10) for what in ("begin", "end")]
    assert shared == 0


def test_serialized_reads_of_neighbours_share_a_turn(run_server):
    """Two clients that read every other frame each are one sweep; who reads far away waits for both."""
    running = run_server("--serialize-reads")
    push(running, range(100), FAR)
    even, odd = list(range(60, 80, 2)), list(range(61, 80, 2))
    order, shared = serialized(running, [even, [5], odd, [65, 66]])
    assert [what for what, _ in order] == ["begin"] * 3 + ["end"] * 3 + ["begin", "end"]
    assert {numbers for _, numbers in order[:6]} == {tuple(even), tuple(odd), (65, 66)}
    assert order[6:] == [("begin", (5,)), ("end", (5,))]
    assert shared == 2


def test_serialized_reads_go_on_when_one_of_a_turn_is_killed(run_server):
    running = run_server("--serialize-reads")
    push(running, range(100), FAR)
    with running.client() as held, running.client() as waiting:
        held._link.open("run", b"")
        held._link.places([50])  # a turn that nobody ends
        waiting.open("run")
        held.close()
        with waiting.places([0]) as places:
            assert places[0] is not None


def test_unknown_dataset(run_server):
    with run_server().client() as client, pytest.raises(StoreNotFoundError):
        client.open("other")


# --- Malformed --------------------------------------------------------------------------------------------------------


def talk(path, *parts, wait=10.0):
    """Send parts and return what comes back until the server closes."""
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(wait)
        raw.connect(path)
        for part in parts:
            raw.sendall(part)
        answer = b""
        while more := raw.recv(65536):
            answer += more
    return answer


OPENED = message(OPEN, open_body())


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([b"GET / HTTP/1.1\r\n\r\n"], b"no message of himach"),
        ([message(STATUS, version=2)], b"another version"),
        ([message(99)], b"not known here"),
        ([message(0)], b"not known here"),
        ([message(2, bytes(48))], b"not known here"),
        ([message(FRAME, size=0xFFFFFFFF)], b"length that its verb"),
        ([message(STATUS, b"x")], b"length that its verb"),
        ([message(HAVE, b"123456789")], b"length that its verb"),
        ([message(HAVE, size=8 * 16385)], b"length that its verb"),
        ([message(OPEN, open_body(), crc=1)], b"checksum"),
        ([message(OPEN, open_body(name_bytes=4096))], b"does not fit"),
        ([message(OPEN, open_body(name=b"a\0b"))], b"does not fit"),
        ([message(FLUSH)], b"must be opened first"),
        ([message(FRAME, frame_body())], b"must be opened first"),
        ([OPENED, OPENED], b"needs another one"),
        ([OPENED, message(FRAME, frame_body(claimed=3))], b"do not fit its length"),
        ([OPENED, message(FRAME, frame_body(claimed=0xFFFFFFFF))], b"do not fit its length"),
        ([OPENED, message(FRAME, frame_body(fields=8))], b"do not fit its length"),
        ([OPENED, message(FRAME, frame_body(fields=2))], b"do not fit its length"),
        ([OPENED, message(HAVE, b"\xff" * 8)], b"too large"),
    ],
)
def test_malformed(run_server, parts, said):
    running = run_server()
    assert said in talk(running.path, *parts)
    with running.client() as client:
        assert client.counters()["connections"] == 1


def test_truncated_frame_is_not_kept(run_server):
    running = run_server()
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(running.path)
        raw.sendall(OPENED + message(FRAME, frame_body(1000))[:-1])
        raw.recv(64)
    with running.client() as client:
        assert not client.open("run").bitmaps()[0]


@contextlib.contextmanager
def served(tmp_path, **limits):
    """A server in a thread, with limits that no option sets."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.setblocking(False)
        handle = ServerHandle(os.fsencode(tmp_path / "store"), listener.fileno(), **limits)
        thread = threading.Thread(target=handle.run)
        thread.start()
        try:
            yield str(path)
        finally:
            os.write(handle.wake, b"x")
            thread.join(30)
            handle.close()


@pytest.mark.parametrize("part", [OPENED[:7], OPENED[:16], OPENED[:-1]])
def test_silence_amid_a_message(tmp_path, part):
    with served(tmp_path, message_ms=300) as path:
        start = time.monotonic()
        assert talk(path, part) == b""
        assert time.monotonic() - start < 5


def test_trickle_amid_a_message(tmp_path):
    with served(tmp_path, message_ms=500) as path, socket.socket(socket.AF_UNIX) as raw:
        raw.connect(path)
        start = time.monotonic()
        with pytest.raises(OSError):  # reset or broken pipe
            for byte in OPENED:
                raw.sendall(bytes([byte]))
                time.sleep(0.1)
        assert time.monotonic() - start < 4


def test_idle_connection_is_closed(tmp_path):
    with served(tmp_path, idle_ms=300) as path:
        assert talk(path, OPENED) != b""


def test_too_many_connections(tmp_path):
    with served(tmp_path, max_connections=3) as path, contextlib.ExitStack() as stack:
        for _ in range(3):
            raw = stack.enter_context(socket.socket(socket.AF_UNIX))
            raw.connect(path)
            raw.sendall(message(STATUS))
            assert raw.recv(65536)
        assert b"as many connections" in talk(path)
        raw.close()
        time.sleep(0.3)
        assert b"no message" in talk(path, b"x" * 16)


def test_frame_larger_than_allowed(tmp_path):
    with served(tmp_path, max_frame=1000) as path:
        assert b"length that its verb" in talk(path, OPENED, message(FRAME, frame_body(100)))


# --- Admission --------------------------------------------------------------------------------------------------------


def test_hmac_is_pythons():
    for size in (0, 1, 55, 56, 63, 64, 65, 200):
        for key_size in (1, 64, 65, 131):
            key, data = bytes(range(key_size)), bytes(i % 251 for i in range(size))
            assert hmac_sha256(key, data) == hmac.digest(key, data, hashlib.sha256)


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
        server.start(tmp_path / "s", listen="127.0.0.1:0", key_file=other)


def test_a_server_without_the_key_is_refused(key):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pose():
            with listener.accept()[0] as raw:
                raw.sendall(b"BdhAuth1" + bytes(32))
                raw.recv(64)
                raw.sendall(bytes(36))
                raw.recv(1)

        threading.Thread(target=pose, daemon=True).start()
        with pytest.raises(ServerRefusedError, match="does not have the key"):
            himach.Writer("run", 1, servers=[f"127.0.0.1:{listener.getsockname()[1]}"], key=key)


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


def test_silence_at_the_door(run_server):
    running = run_server()
    host, port = running.address.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.recv(40, socket.MSG_WAITALL)
        assert raw.recv(1) == b""


def test_remote_may_only_push(run_server, key):
    running = run_server()
    host, port = running.address.split(":")
    for request, said in ((message(STOP), b"may stop it"), (OPENED + message(READ, bytes(8)), b"of this machine only")):
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            raw.sendall(answer_of(key, raw.recv(40, socket.MSG_WAITALL)[8:]))
            raw.recv(36, socket.MSG_WAITALL)
            raw.sendall(request)
            answer = b""
            while more := raw.recv(65536):
                answer += more
            assert said in answer
    assert running.process.poll() is None


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
            server.stop(running.place, seconds=0.3)
        assert server.status(running.place, timeout=0.3)["answers"] is False
    finally:
        running.process.send_signal(signal.SIGCONT)
    assert running.process.wait(30) in (0, 143)  # the signal may come when it has ended already
