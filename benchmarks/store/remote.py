"""Frames read from a server over TCP, beside a bare copy of as many bytes over a socket, in turns: loopback both."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt

from himach.io.frame_source import ReadOptions
from himach.io.server.admission import AdmissionListener, make_key, read_key
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
    """Read packed frames of AdK, all atoms and some, with and without MACs; print the shares of a bare copy.

    The bar is for records that are received and checked, packed as they lie, beside a bare copy of as many bytes, which
    come from as much memory. Unpacking them to positions, which himach.run() does, is told beside it.
    """
    _, path = adk(frames)
    with scratch(directory, 4 * path.stat().st_size) as place:
        dataset = _packed(path, place)
        n_atoms = next(iter(dataset.read([0]))).positions.shape[0]  # type: ignore[union-attr]
        third = np.arange(n_atoms // 3, 2 * n_atoms // 3)
        numbers = np.arange(frames)
        with _server(place) as (open_plain, open_sealed, server), _sender() as (copy, sender):
            plain, sealed = Client("beside", os.geteuid(), 60.0, connected=open_plain()), open_sealed()
            clients = {"without MACs": (plain, "70 %"), "with MACs": (sealed, "50 %")}
            for client, _ in clients.values():
                client.open("/bench")
            for what, atoms in (("all atoms", None), ("a third of the atoms", third)):
                nbytes = _read(plain, numbers, atoms, unpack=False)
                copy(nbytes)  # the sender makes them
                ways: dict[str, tuple[Callable[[], object], int]] = {"bare": (partial(copy, nbytes), sender)}
                for way, (client, _) in clients.items():
                    ways[way] = (partial(_read, client, numbers, atoms, unpack=False), server)
                    ways[f"{way}, unpacked"] = (partial(_read, client, numbers, atoms, unpack=True), server)
                wall = call_in_turn({way: work for way, (work, _) in ways.items()}, repeats)
                busy = {way: median(_busy(work, other) for _ in range(repeats)) for way, (work, other) in ways.items()}
                bare, spent = wall["bare"], busy["bare"]
                for way, (_, bar) in clients.items():
                    rate = nbytes / wall[way] / 1e9
                    report(f"from a server, {what}, {way} ({rate:.2f} GB/s)", f"{bare / wall[way]:.0%}", bar)
                    report("... by the processor time of both sides", f"{spent / busy[way]:.0%}")
                    report("... unpacked, too", f"{bare / wall[f'{way}, unpacked']:.0%}")
                    report("... by the processor time of both sides", f"{spent / busy[f'{way}, unpacked']:.0%}")
            plain.close()
            sealed.close()


def _busy(work: Callable[[], object], other: int) -> float:
    """Return the processor time, s, of this process and the other one together."""
    clock = (~other << 3) | 2  # of a process's time, as clock_getcpuclockid(3) gives it
    here, there = time.process_time(), time.clock_gettime(clock)
    work()
    return time.process_time() - here + time.clock_gettime(clock) - there


def _packed(path: Path, place: Path) -> Dataset:
    dataset = Store(place / "store").dataset("/bench")
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
def _server(place: Path) -> Iterator[tuple[Callable[[], int], Callable[[], Client], int]]:
    """Run a server that takes connections as they come, and those that have the key; give what connects in each way.

    It is a child of this process, so that the system gives both their time alike.
    """
    make_key(place / "key")
    plainly, sealed = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    child = PROCESSES.Process(target=_serve, args=(place, plainly, sealed), daemon=True)
    child.start()
    server = Server.from_address("{}:{}".format(*sealed.getsockname()), place / "key")

    def plain() -> int:
        connected = socket.create_connection(plainly.getsockname())
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setblocking(False)
        return connected.detach()

    try:
        assert child.pid is not None
        yield plain, partial(server.dial, 60.0), child.pid
    finally:
        child.kill()
        child.join()


def _serve(place: Path, plainly: socket.socket, sealed: socket.socket) -> None:
    """Serve a store to whoever connects, with nobody on the way, and to those who have the key."""
    handle = bodhi.ServerHandle(os.fsencode(place / "store"), -1)

    def accept() -> None:
        while True:
            handle.admit(plainly.accept()[0].detach())

    threading.Thread(target=accept, daemon=True).start()
    AdmissionListener(sealed, read_key(place / "key"), handle.admit).start()
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
