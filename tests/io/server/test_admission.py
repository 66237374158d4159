"""Who is let in by a server: key, challenge and answer."""

from __future__ import annotations

import hmac
import socket
import threading

import pytest
from support.messages import ERROR, OPEN, OPENED, PLACES, READ, STOP, connect, message, open_body

import himach
from himach.io.server import control
from himach.io.server.admission import read_key
from himach.io.store.bodhi import ServerRefusedError
from himach.io.store.store import StoreError


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


def test_a_server_without_the_key_is_refused(key):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pose():
            with listener.accept()[0] as raw:
                raw.sendall(b"BdhAuth2" + bytes(32))
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


def test_from_another_machine_nobody_stops_a_server(run_server, key):
    running = run_server()
    session = connect(running.address, read_key(key))
    session.send(message(STOP))
    verb, said = session.receive()
    assert verb == ERROR and b"may stop it" in said
    assert running.process.poll() is None
    session = connect(running.address, read_key(key))
    session.send(message(OPEN, open_body()))
    assert session.receive()[0] == OPENED
    session.send(message(READ, bytes(8)))
    verb, places = session.receive()
    assert verb == PLACES and places[24:28] == b"\xff\xff\xff\xff"  # it is not there
