"""Messages that are malformed, and a soak."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
from support.messages import (
    ANSWER,
    FLUSH,
    FRAME,
    OPEN,
    READ,
    STATUS,
    dial,
    frame_body,
    message,
    open_body,
    question,
    talk,
)

OPENED = message(OPEN, open_body())


@pytest.mark.nightly(but=6)
@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([b"GET / HTTP/1.1\r\n\r\n"], b"no message of himach"),
        ([message(STATUS, version=1)], b"another version"),
        ([message(99)], b"not known here"),
        ([message(ANSWER, bytes(48))], b"not known here"),
        ([message(FRAME, size=0xFFFFFFFF)], b"length that its verb"),
        ([message(STATUS, b"x")], b"length that its verb"),
        ([question(STATUS, bytes(4097))], b"length that its verb"),
        ([message(OPEN, open_body(), crc=1)], b"checksum"),
        ([message(OPEN, open_body(name_bytes=4096))], b"does not fit"),
        ([message(OPEN, open_body(name=b"a\0b"))], b"does not fit"),
        ([message(FLUSH)], b"must be opened first"),
        ([message(FRAME, frame_body())], b"must be opened first"),
        ([OPENED, OPENED], b"needs another one"),
        ([OPENED, message(FRAME, frame_body(claimed=3))], b"do not fit its length"),
        ([OPENED, message(FRAME, frame_body(fields=8))], b"do not fit its length"),
        ([OPENED, message(FRAME, frame_body(fields=2))], b"do not fit its length"),
        ([OPENED, message(READ, b"\xff" * 8)], b"too large"),
    ],
)
def test_malformed(run_server, parts, said):
    running = run_server()
    assert said in talk(running.path, *parts)
    with running.client() as client:
        assert client.counters()["connections"] == 1


def test_truncated_frame_is_not_kept(run_server):
    running = run_server()
    with contextlib.ExitStack() as stack:
        dial(stack, running.path, OPENED + message(FRAME, frame_body(1000))[:-1]).recv(64)
    with running.client() as client:
        assert not client.open("run").native


@pytest.mark.slow
def test_killing_everybody():
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("soak.py")), "--kills", "20", "--seed", "5"],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "'frames checked'" in done.stdout
