"""What a server spends on its clients: memory and connections; pushers beside a dead server."""

import contextlib
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.cache_data import push
from support.messages import FRAME, OPEN, READ, connect, dial, message, open_body, talk

import himach
from himach.io.server.admission import make_key, read_key

MEGA = 1 << 20


def resident(process, what="VmRSS"):
    """Bytes of memory of a process, now or (VmHWM) at most."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


READING = message(OPEN, open_body(flags=0))
PUSHING = message(OPEN, open_body())


# --- Memory -----------------------------------------------------------------------------------------------------------


def test_answers_that_nobody_takes(run_server):
    """Two hundred clients ask and ask which frames there are, and read nothing."""
    running = run_server()
    push(running, range(3))
    before = resident(running.process)
    ask = message(READ, bytes(8 * 4096)) * 500
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            raw = dial(stack, running.path, READING)
            raw.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                raw.send(ask)
        time.sleep(1)
        with running.client() as client:
            assert client.counters()["connections"] >= 200
        assert resident(running.process, "VmHWM") - before < 80 * MEGA


@pytest.mark.parametrize("opened", [b"", READING])
def test_a_large_body_without_the_right_to_it(run_server, opened):
    running = run_server()
    push(running, [0])
    before = resident(running.process)
    header = message(FRAME, size=1 << 30)
    said = talk(running.path, opened + header, *[bytes(MEGA)] * 300, may_break=True)
    assert b"needs an OPEN that pushes before it" in said
    assert resident(running.process, "VmHWM") - before < 20 * MEGA


# --- Connections ------------------------------------------------------------------------------------------------------


def test_the_end_of_a_host_is_noticed(run_server, key):
    """The system asks now and then whether the other machine is still there (timer 2 of /proc/net/tcp)."""
    running = run_server()
    session = connect(running.address, read_key(key))
    with session.raw as raw:
        session.send(PUSHING)
        assert raw.recv(16)
        ours, theirs = raw.getsockname()[1], raw.getpeername()[1]
        time.sleep(1)  # until what was sent is acknowledged
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        (timer,) = (row[5] for row in rows if row[1].endswith(f":{theirs:04X}") and row[2].endswith(f":{ours:04X}"))
        when = int(timer.split(":")[1], 16) / os.sysconf("SC_CLK_TCK")
        assert timer.startswith("02") and when <= 60


# --- Clients ----------------------------------------------------------------------------------------------------------


def longest_push(writer, count):
    longest = 0.0
    for number in range(count):
        begun = time.monotonic()
        writer.push(np.zeros((writer.n_atoms, 3), np.float32), time=number)
        longest = max(longest, time.monotonic() - begun)
    return longest


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("how", ["stopped", "silent"])
def test_a_dead_server_of_two_stalls_no_push(run_server, key, how):
    """One that is stopped while frames come to it, or takes connections and says nothing from the first on."""
    alive = run_server()
    with contextlib.ExitStack() as stack:
        if how == "silent":
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            dead = f"127.0.0.1:{listener.getsockname()[1]}"
        else:
            stopped = run_server()
            dead = stopped.address
            stack.callback(stopped.process.send_signal, signal.SIGCONT)
        begun = time.monotonic()
        writer = himach.Writer("run", 20_000, servers=[dead, alive.address], key=key, timeout=10, batch_bytes=4 * MEGA)
        assert time.monotonic() - begun < 2
        writer.push(np.zeros((20_000, 3), np.float32), time=0)
        if how == "stopped":
            stopped.process.send_signal(signal.SIGSTOP)
        assert longest_push(writer, 40) < 2
        time.sleep(1.5)
        assert longest_push(writer, 40) < 2
        begun = time.monotonic()
        writer.flush()
        assert time.monotonic() - begun < 12
        assert writer.facts()["acknowledged"] == 81
        writer.close()


def test_the_key_file_appears_whole(tmp_path):
    """Many who begin at once read the same key."""
    for attempt in range(20):
        path = tmp_path / f"d{attempt}" / "key"

        def begin(path):
            make_key(path)
            return read_key(path)

        with ThreadPoolExecutor(10) as pool:
            keys = set(pool.map(begin, [path] * 10))
        assert len(keys) == 1
        assert [file.name for file in path.parent.iterdir()] == ["key"]
        assert path.stat().st_mode & 0o777 == 0o600
