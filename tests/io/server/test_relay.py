"""Messages that are touched on their way to a server are refused, and nothing of them is taken; a soak."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support.cache_data import frame_of
from support.commands import run_python
from support.messages import GREETING, HEADER, PROOF, REPLY, TAG, receive

import himach
from himach.io.server.admission import read_key
from himach.io.server.remote_store import RemoteStore
from himach.io.server.survey import Server
from himach.io.store.store import Store, StoreError

#: Called with the side that sends ("c" or "s"), the message's number in its session and its bytes with the tag; returns
#: what goes on instead.
Act = Callable[[str, int, bytes], list[bytes]]


class Relay:
    """Listens at `address` and passes on to the server at `to`, as `act` says."""

    def __init__(self, to: str, act: Act) -> None:
        self.to, self.act = to, act
        self.sessions = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                host, port = self.to.rsplit(":", 1)
                server = socket.create_connection((host, int(port)), timeout=30)
                client.settimeout(30)
                self.sessions += 1
                threading.Thread(target=self._introduce, args=(client, server), daemon=True).start()

    def _introduce(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            client.sendall(receive(server, GREETING))
            server.sendall(receive(client, PROOF))
            client.sendall(receive(server, REPLY))
            for side, source, target in (("c", client, server), ("s", server, client)):
                threading.Thread(target=self._pass_on, args=(side, source, target), daemon=True).start()

    def _pass_on(self, side: str, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            for number, message in enumerate(messages_of(source)):
                for one in self.act(side, number, message):
                    target.sendall(one)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def messages_of(source: socket.socket) -> Iterator[bytes]:
    """The messages that come, each with its tag, until the end."""
    while len(header := receive(source, HEADER)) == HEADER:
        size = struct.unpack_from("<I", header, 8)[0]
        rest = receive(source, size + TAG)
        if len(rest) < size + TAG:
            return
        yield header + rest


N_ATOMS, N_FRAMES = 3000, 12
FRAMES = range(N_FRAMES)


def flip(at):
    """Change a byte of a message: of its header, body or tag."""

    def act(data):
        where = at if at >= 0 else len(data) + at
        return [data[:where] + bytes([data[where] ^ 1]) + data[where + 1 :]]

    return act


class Touch:
    """Does one thing to one message of one session, and passes on everything else."""

    def __init__(self, side, number, way):
        self.side, self.number, self.way = side, number, way
        self.done = False
        self.moved = None

    def __call__(self, side, number, data):
        if self.done or side != self.side or (number != self.number and self.moved is None):
            return [data]
        if self.way == "moved" and self.moved is None:
            self.moved = data
            return []
        self.done = True
        return [data, self.moved] if self.way == "moved" else WAYS[self.way](data)


WAYS = {
    "verb": flip(6),
    "zeros": flip(12),
    "body": flip(HEADER),
    "tag": flip(-1),
    "dropped": lambda data: [],
    "repeated": lambda data: [data, data],
    "cut short and filled up": lambda data: [data[: len(data) // 2] + bytes(len(data) - len(data) // 2)],
    "made longer": lambda data: [
        data[:8] + struct.pack("<I", len(data) - 32 + 4) + data[12:-16] + bytes(4) + data[-16:]
    ],
}


def stored(place):
    """Frames of the store that servers keep, by number."""
    store = Store(place, read_only=True)
    found = {}
    for generation in store.generations("run"):
        dataset = store.dataset("run", generation, create=False)
        for number in dataset.native:
            (frame,) = list(dataset.read([number]))
            found[number] = frame.positions.copy()
    return found


def fill(address, key, **options):
    with himach.Writer("run", N_ATOMS, servers=[address], key=key, **options) as writer:
        for frame in FRAMES:
            writer.number = frame
            writer.push(frame_of(frame, N_ATOMS), time=frame)


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("way", [*WAYS, "moved"])
def test_pushed_frames_that_are_touched_are_not_taken(run_server, key, way):
    """The writer pushes them again, over a new session, and what is stored in the end is what it pushed."""
    running = run_server()
    for number in (1, 5):
        act = Touch("c", number, way)
        relay = Relay(running.address, act)
        fill(relay.address, key, timeout=6, batch_bytes=1 << 17)
        assert act.done
        assert relay.sessions > 1, "what was touched was not refused"
        relay.close()
    for number, positions in stored(running.place).items():
        assert np.array_equal(positions, frame_of(number, N_ATOMS))
    assert sorted(stored(running.place)) == list(FRAMES)


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("side", ["c", "s"])
@pytest.mark.parametrize("way", [*WAYS, "moved"])
def test_what_is_read_is_right_or_not_there(run_server, key, monkeypatch, side, way):
    monkeypatch.setattr("himach.io.server.remote_store.READ_SECONDS", 2.0)
    running = run_server()
    fill(running.address, key)
    refused = 0
    for number in range(6):
        act = Touch(side, number, way)
        relay = Relay(running.address, act)
        missed = False
        try:
            dataset = RemoteStore(Server(relay.address, read_key(key)), seconds=2).dataset("run")
            for frame, wanted in zip(dataset.read(FRAMES[::-1]), FRAMES[::-1], strict=True):
                missed |= frame is None
                assert frame is None or np.array_equal(frame.positions, frame_of(wanted, N_ATOMS))
            dataset.close()
        except StoreError:
            missed = True
        finally:
            relay.close()
        # The first of two that are the same is what was sent, and is taken; nothing is after the second.
        assert missed or not act.done or way == "repeated"
        refused += missed
    assert refused, "nothing was refused"
    (first,) = list(RemoteStore(Server(running.address, read_key(key))).dataset("run").read([3]))
    assert np.array_equal(first.positions, frame_of(3, N_ATOMS))


@pytest.mark.fresh
@pytest.mark.slow
def test_killing_everybody():
    done = run_python(Path(__file__).with_name("soak.py"), "--kills", 20, "--seed", 5, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "'frames checked'" in done.stdout
