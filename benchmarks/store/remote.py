"""Frames read from a server over TCP, beside a bare copy of as many bytes over a socket, in turns: loopback both."""

import multiprocessing
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt

from himach.io.frame_source import ReadOptions
from himach.io.server.admission import make_key, read_key
from himach.io.server.client import Client
from himach.io.server.survey import Server
from himach.io.store import bodhi
from himach.io.store.store import Dataset, Store
from himach.io.trajectories.origin import open_origin

from ..harness.data import adk
from ..harness.figures import report
from ..harness.interleave import call_in_turn, scratch

__all__ = ["reading"]

BUFFER = 1 << 20
PROCESSES = multiprocessing.get_context("fork")


def reading(frames: int, repeats: int, directory: Path | None) -> None:
    """Read packed frames of AdK, all atoms and some; print the shares of a bare copy.

    The bar is for records that are received and checked, packed as they lie, beside a bare copy of as many bytes, which
    come from as much memory. Unpacking them to positions, which himach.run() does, is told beside it.
    """
    _, path = adk(frames)
    with scratch(directory, 4 * path.stat().st_size) as place:
        dataset = _packed(path, place)
        n_atoms = next(iter(dataset.read([0]))).positions.shape[0]  # type: ignore[union-attr]
        third = np.arange(n_atoms // 3, 2 * n_atoms // 3)
        numbers = np.arange(frames)
        with _server(place) as (client, server), _sender() as (copy, sender):
            client.open("bench")
            for what, atoms in (("all atoms", None), ("a third of the atoms", third)):
                nbytes = _read(client, numbers, atoms, unpack=False)
                copy(nbytes)  # the sender makes them
                ways: dict[str, tuple[Callable[[], object], int]] = {
                    "bare": (partial(copy, nbytes), sender),
                    "packed": (partial(_read, client, numbers, atoms, unpack=False), server),
                    "unpacked": (partial(_read, client, numbers, atoms, unpack=True), server),
                }
                wall = call_in_turn({way: work for way, (work, _) in ways.items()}, repeats)
                busy = {way: median(_busy(work, other) for _ in range(repeats)) for way, (work, other) in ways.items()}
                rate = nbytes / wall["packed"] / 1e9
                report(f"from a server, {what} ({rate:.2f} GB/s)", f"{wall['bare'] / wall['packed']:.0%}", "50 %")
                report("... by the processor time of both sides", f"{busy['bare'] / busy['packed']:.0%}")
                report("... unpacked, too", f"{wall['bare'] / wall['unpacked']:.0%}")
                report("... by the processor time of both sides", f"{busy['bare'] / busy['unpacked']:.0%}")
            client.close()


def _busy(work: Callable[[], object], other: int) -> float:
    """Return the processor time, s, of this process and the other one together."""
    clock = (~other << 3) | 2  # of a process's time, as clock_getcpuclockid(3) gives it
    here, there = time.process_time(), time.clock_gettime(clock)
    work()
    return time.process_time() - here + time.clock_gettime(clock) - there


def _packed(path: Path, place: Path) -> Dataset:
    dataset = Store(place / "store").dataset("bench")
    origin = open_origin([path])
    for frame in origin.read(np.arange(origin.n_frames)):
        dataset.write(frame.number, frame.time, frame.box, frame.positions)
    dataset.close()
    return dataset


def _read(client: Client, numbers: npt.NDArray[np.int64], atoms: npt.NDArray[np.int64] | None, *, unpack: bool) -> int:
    """Read frames; return the bytes of their records that came."""
    reading = client.read(numbers, ReadOptions(atoms, bodhi.POSITIONS, unpack=unpack))
    if sum(frame is None for frame in reading):
        raise AssertionError(f"frames of the benchmark were misses: {reading.misses}")
    return reading.nbytes


@contextmanager
def _server(place: Path) -> Iterator[tuple[Client, int]]:
    """Run a server that takes connections of those that have the key; give one.

    It is a child of this process, so that the system gives both their time alike.
    """
    make_key(place / "key")
    listener = socket.create_server(("127.0.0.1", 0))
    child = PROCESSES.Process(target=_serve, args=(place, listener), daemon=True)
    child.start()
    try:
        assert child.pid is not None
        yield Server.from_address("{}:{}".format(*listener.getsockname()), place / "key").dial(60.0), child.pid
    finally:
        child.kill()
        child.join()


def _serve(place: Path, listener: socket.socket) -> None:
    """Serve a store to those who have the key."""
    listener.setblocking(False)
    key = read_key(place / "key")
    handle = bodhi.ServerHandle(os.fsencode(place / "store"), -1, remote=listener.fileno(), key=key)
    handle.run()


@contextmanager
def _sender() -> Iterator[tuple[Callable[[int], None], int]]:
    """Run a process that sends as many bytes as it is asked for; give what asks for some and takes them."""
    ours, theirs = _pair()
    child = PROCESSES.Process(target=_send, args=(theirs,), daemon=True)
    child.start()
    into = bytearray(BUFFER)

    def copy(nbytes: int) -> None:
        ours.sendall(nbytes.to_bytes(8, "little"))
        while nbytes > 0:
            nbytes -= ours.recv_into(into)

    try:
        assert child.pid is not None
        yield copy, child.pid
    finally:
        child.kill()
        child.join()


def _pair() -> Sequence[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    for one in (ours, theirs):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ours, theirs


def _send(theirs: socket.socket) -> None:
    """Send as many bytes as are asked for, each from a place of its own, as those of a store are."""
    data = memoryview(b"")
    while asked := theirs.recv(8):
        size = int.from_bytes(asked, "little")
        if size > len(data):
            data = memoryview(secrets.token_bytes(size))
        for at in range(0, size, BUFFER):
            theirs.sendall(data[at : min(at + BUFFER, size)])
