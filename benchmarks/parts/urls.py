"""``himach bench remote``: trajectories by URL: time beside that of the link, bytes beside those that are needed.

`served()` is the web server that they come from, and that of the tests: it sends at a rate, and fails as it is told.
"""

import contextlib
import email.utils
import hashlib
import http.server
import os
import random
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import click

from ..harness.data import adk
from ..harness.figures import report
from ..harness.interleave import scratch
from ..harness.options import DIRECTORY, RANKS, only
from ..harness.results import chosen

__all__ = ["FAULTS", "Web", "main", "served"]

PIECE = 1 << 16
FAULTS = (
    *("cut", "changed", "500", "503"),
    *("403", "404", "slow", "reset", "page", "packed", "whole"),
)
EVERY = 100
FIRST_BAR, SECOND_BAR, BYTES_BAR = 1.05, 1.1, 1.2
CA = "selection=name CA"


@only("first, frames")
@click.option(
    "--frames", type=click.IntRange(min=200), default=10_000, show_default=True, help="Frames of AdK in water."
)
@click.option("--rate", type=click.IntRange(min=1), default=100, show_default=True, help="Of the link, MB/s.")
@RANKS
@DIRECTORY
def main(only: Sequence[str], frames: int, rate: int, ranks: int, directory: Path | None) -> None:
    """Run the RMSD of C-alpha atoms of AdK in water (47,681 atoms) by URL, from a web server on this machine."""
    parts: Mapping[str, Callable[[Path], None]] = {
        "first": lambda place: _first(place, frames, rate * 1e6, ranks),
        "frames": lambda place: _frames(place, frames, ranks),
    }
    with scratch(directory) as place:
        for name in chosen("part", only, parts):
            parts[name](place)


def _first(place: Path, frames: int, rate: float, ranks: int) -> None:
    """Time a first and a second run, and a second one of the local file."""
    topology, trajectory = adk(frames)
    size = trajectory.stat().st_size
    words = ["-s", topology, "-p", CA, "-n", ranks]
    with served(trajectory.parent, rate) as web:
        url = web.url(trajectory.name)
        first = _run(place, "store", "-t", url, *words)
        sent = web.sent[trajectory.name]
        answer = (place / "out/rmsd.csv").read_bytes()
        second = _run(place, "store", "-t", url, *words)
        asked = web.sent[trajectory.name] - sent
    _run(place, "local", "-t", trajectory, *words)
    local = _run(place, "local", "-t", trajectory, *words)
    assert (place / "out/rmsd.csv").read_bytes() == answer, "a run by URL has another outcome"
    print(f"{frames:,} frames of AdK in water, {size / 1e6:,.0f} MB, {ranks} ranks, {rate / 1e6:.0f} MB/s")
    report("first run: beside the link's time", f"{first * rate / size:.2f} times", f"{FIRST_BAR}")
    report("first run: bytes sent beside the file's", f"{sent / size:.4f} times", "1.001")
    report("second run: beside one of the local file", f"{second / local:.2f} times", f"{SECOND_BAR}")
    report("second run: bytes sent", f"{asked}")


def _frames(place: Path, frames: int, ranks: int) -> None:
    """Count the bytes of every so many frames: in a first run, which has no index, too."""
    topology, trajectory = adk(frames)
    with served(trajectory.parent) as web:
        _run(place, "few", "-t", web.url(trajectory.name), "-s", topology, "-p", CA, "--step", EVERY, "-n", ranks)
        needed = trajectory.stat().st_size * -(-frames // EVERY) // frames
        _report(web, trajectory, needed, f"every {EVERY}th frame")


def _report(web: "Web", trajectory: Path, needed: int, what: str) -> None:
    sent = web.sent[trajectory.name]
    report(f"{what}: bytes beside those needed", f"{sent / needed:.3f} times", f"{BYTES_BAR}")
    report(f"{what}: bytes, requests", f"{sent / 1e6:.1f} MB, {len(web.asked)}")


def _run(place: Path, store: str, *words: object) -> float:
    """Run over what is named and return the seconds of the whole command."""
    given = ["--cache", place / store, "--out", place / "out", "--force", "--quiet", *words]
    command = [sys.executable, "-P", "-m", "himach", "run", "rmsd", *map(str, given)]
    environ = {**os.environ, "TMPDIR": str(place), "SLURM_TMPDIR": str(place)}
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environ)
    return time.perf_counter() - began


class Web(http.server.ThreadingHTTPServer):
    """Serves the files of a folder, and counts what it sends.

    Attributes
    ----------
    sent
        Bytes of bodies, by path.
    asked
        Requests, as method, path and range.
    places
        Path, first byte and the one after the last of each answer.
    password, signature
        What a request must have: all of a head, a part of the address.
    redirects
        Where paths are sent on to.
    latency
        Seconds before an answer.
    matches
        Whether it looks at If-Match.
    fault
        Given the number of a request, returns which of `FAULTS` it has, or "".
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path, rate: float = 0.0) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.folder, self.rate, self.ranges = folder, rate, True
        self.sent: Counter[str] = Counter()
        self.asked: list[tuple[str, str, str]] = []
        self.places: list[tuple[str, int, int]] = []
        self.fault: Callable[[int, tuple[int, int]], str] = lambda number, place: ""
        self.password = self.signature = ""
        self.matches = True
        self.latency = 0.0
        self.redirects: dict[str, str] = {}
        self.lock = threading.Lock()
        self.free = 0.0

    def url(self, name: str, user: str = "") -> str:
        """Return the URL of a file."""
        return f"http://{user}127.0.0.1:{self.server_port}/{name}"

    def wait(self, n_bytes: int) -> None:
        """Wait until the link, which all connections share, has room for these bytes."""
        if not self.rate:
            return
        with self.lock:
            now = time.monotonic()
            self.free = max(self.free, now - 0.02) + n_bytes / self.rate
            until = self.free
        if until > now:
            time.sleep(until - now)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: who asks hangs up as he likes."""


class Answer(http.server.BaseHTTPRequestHandler):
    """Answers one request after the other of a connection."""

    protocol_version = "HTTP/1.1"
    server: Web

    def log_message(self, *words: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Give a range, or the whole, or what goes wrong."""
        web = self.server
        told = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        asked = None if told is None else (int(told[1]), int(told[2] or 1 << 62))
        with web.lock:
            number = len(web.asked)
            web.asked.append((self.command, self.path, self.headers.get("Range", "")))
        fault = web.fault(number, asked or (0, 0))
        time.sleep(web.latency)
        path = self.path.partition("?")[0].lstrip("/")
        if fault == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
        elif status := self._status(path, fault):
            self._refused(status)
        else:
            self._give(web.folder / path, path, asked, number, fault)

    do_HEAD = do_GET  # noqa: N815

    def _status(self, path: str, fault: str) -> int:
        """Return why there is no file for this request; 0 where there is."""
        web = self.server
        if path in web.redirects:
            return 302
        if web.password and self.headers.get("Authorization") != web.password:
            return 401
        if web.signature not in self.path.partition("?")[2]:
            return 403
        if fault.isdigit():
            return int(fault)
        return 0 if (web.folder / path).is_file() else 404

    def _give(self, file: Path, path: str, asked: tuple[int, int] | None, number: int, fault: str) -> None:
        status = file.stat()
        size = status.st_size
        state = hashlib.sha256(f"{status.st_ino} {size} {status.st_mtime_ns} {fault == 'changed'}".encode())
        tag = f'"{state.hexdigest()[:16]}"'
        if self.server.matches and self.headers.get("If-Match", tag) != tag:
            self._refused(412)
            return
        if asked is None or not self.server.ranges or fault in ("page", "whole"):
            content = b"<html>log in" if fault == "page" else file.read_bytes()
            place = (path, 0, len(content))
            self.send_response(200)
        elif asked[0] >= size:
            self._refused(416, f"bytes */{size}")
            return
        else:
            first, last = asked[0], min(asked[1], size - 1)
            with file.open("rb") as source:
                source.seek(first)
                content = source.read(last + 1 - first)
            place = (path, first, last + 1)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        if fault == "packed":
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Type", "text/html" if fault == "page" else "application/octet-stream")
        self.send_header("ETag", tag)
        self.send_header("Last-Modified", email.utils.formatdate(status.st_mtime, usegmt=True))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault == "cut":
            content = content[: random.Random(number).randrange(len(content))]
            self.close_connection = True
        self._send(path, place, content, fault)

    def _send(self, path: str, place: tuple[str, int, int], content: bytes, fault: str) -> None:
        web = self.server
        with web.lock:
            web.places.append(place)
        for begin in range(0, len(content), PIECE):
            piece = content[begin : begin + PIECE]
            web.wait(len(piece))
            if fault == "slow":
                time.sleep(0.05)
            self.wfile.write(piece)
            with web.lock:
                web.sent[path] += len(piece)

    def _refused(self, status: int, place: str = "") -> None:
        self.send_response(status)
        if status == 302:
            self.send_header("Location", self.server.redirects[self.path.partition("?")[0].lstrip("/")])
        if place:
            self.send_header("Content-Range", place)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextlib.contextmanager
def served(folder: Path, rate: float = 0.0) -> Iterator[Web]:
    """Serve a folder, by so many bytes a second for all that ask together; 0: as fast as it can."""
    web = Web(folder, rate)
    thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield web
    finally:
        web.shutdown()
        web.server_close()
