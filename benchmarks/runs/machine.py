"""What a plan must know of a machine, measured: `main()` writes it to a file, `himach.planning.machine` reads it.

Disk and memory on one node; network and latency between the first ranks of two nodes where there are several, else by
loopback, which is told; the origin by reading a file of it.
"""

import contextlib
import os
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt

from himach.planning.machine import Machine
from himach.ranks.communicator import Communicator, World
from himach.runner.commands import on_ranks

from ..harness.disk import forget
from ..harness.options import DIRECTORY, PATH

__all__ = ["link", "main", "reading"]

MESSAGE = 1 << 23
PINGS = 200
#: Bytes of the file by which a disk is measured, and of one read.
FILE, REQUEST = 1 << 28, 1 << 22
#: Reads that the operating system is asked for ahead, so that it never waits for who reads.
AHEAD = 4


@click.option(
    "--out",
    "-o",
    type=PATH,
    default="machine.toml",
    show_default=True,
    metavar="FILE",
    help="What 'himach plan --machine' reads.",
)
@click.option(
    "--origin", type=click.Path(path_type=Path, exists=True), metavar="PATH", help="A large file of the origin."
)  # fmt: skip
@DIRECTORY
def main(out: Path, origin: Path | None, directory: Path | None) -> None:
    """Measure what a plan must know: disk, cores, memory, origin; the network between nodes, else loopback."""

    def work(world: World) -> None:
        found = measure(world, origin, directory)
        if world.comm.rank == 0:
            found.write(out)
            between = "between nodes" if len(world.nodes) > 1 else "to itself (loopback): no network"
            print(f"{out.read_text()}# network and latency: {between}", end="\n")

    on_ranks(work)


def measure(world: World, origin: Path | None, directory: Path | None) -> Machine:
    """Return what this machine is (collective)."""
    place = directory or Path(os.environ.get("TMPDIR") or "/var/tmp")
    read, write = disk(place)
    free = os.statvfs(place)
    network, latency = link(world) if len(world.nodes) > 1 else loopback()
    world.comm.barrier()
    found = reading(origin, FILE) if origin is not None and world.comm.rank == 0 else (None, None)
    rate, at_once = world.comm.bcast(found)
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        disk_read=read,
        disk_write=write,
        disk=free.f_bavail * free.f_frsize // 2,  # as of a store whose quota nobody sets
        network=network,
        latency=latency,
        combine=combining(),
        origin=rate,
        origin_at_once=at_once or None,
    )


def disk(place: Path) -> tuple[float, float]:
    """Return the bytes a second that come from and go to a disk, past memory where it can be."""
    data = os.urandom(REQUEST)
    with tempfile.NamedTemporaryFile(dir=place, prefix="machine-") as file:
        began = time.perf_counter()
        for _ in range(FILE // REQUEST):
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
        write = FILE / (time.perf_counter() - began)
        return reading(Path(file.name), FILE)[0], write


def reading(path: Path, most: int) -> tuple[float, float]:
    """Return the bytes a second at which a file, or the largest of a folder, is read, `most` of it; and more at once.

    Where there are several reads, the first one does not count for the rate. What came before its time are the bytes
    that an idle server gives at once.
    """
    if path.is_dir():
        path = max((one for one in path.rglob("*") if one.is_file()), key=lambda one: one.stat().st_size)
    forget([path])
    buffer = bytearray(REQUEST)
    done = asked = first = 0
    began = then = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while done < most:
            while asked < min(most, done + AHEAD * REQUEST):
                os.posix_fadvise(file.fileno(), asked, min(REQUEST, most - asked), os.POSIX_FADV_WILLNEED)
                asked += REQUEST
            got = file.readinto(memoryview(buffer)[: most - done])
            if not got:
                break
            done += got
            if not first:
                first, then = got, time.perf_counter()
    end = time.perf_counter()
    if done == first:
        return done / (end - began), 0.0
    rate = (done - first) / (end - then)
    return rate, max(0.0, first - rate * (then - began))


def combining() -> float:
    """Return the bytes a second at which a core combines two bitmaps."""
    a, b = np.ones(1 << 20, np.uint64), np.ones(1 << 20, np.uint64)
    np.bitwise_or(a, b, out=b)
    began = time.perf_counter()
    for _ in range(8):
        np.bitwise_or(a, b, out=b)
    return 8 * a.nbytes / (time.perf_counter() - began)


def link(world: World, message: int = MESSAGE, passes: int = 5) -> tuple[float, float]:
    """Return bytes a second from the first rank to one of another node, and seconds of a small message (collective).

    One way at a time: libraries differ in what large messages that cross do to each other.
    """
    comm = world.comm
    names = comm.allgather(world.name)
    other = next(rank for rank, name in enumerate(names) if name != names[0])
    found = None
    if comm.rank in (0, other):
        peer = other if comm.rank == 0 else 0
        small, large = np.zeros(1, np.uint8), np.zeros(message, np.uint8)
        _swap(comm, peer, small, 10)
        latency = _swap(comm, peer, small, PINGS)
        _pass(comm, peer, large, 1)
        found = (message / _pass(comm, peer, large, passes), latency)
    both: tuple[float, float] = comm.bcast(found)
    return both


def _swap(comm: Communicator, peer: int, data: npt.NDArray[np.uint8], times: int) -> float:
    """Return the median seconds of sending to a peer while it sends here."""
    into = np.empty_like(data)
    found = []
    for _ in range(times):
        began = time.perf_counter()
        requests = [comm.Irecv(into, source=peer, tag=7), comm.Isend(data, dest=peer, tag=7)]
        for request in requests:
            request.Wait()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def _pass(comm: Communicator, peer: int, data: npt.NDArray[np.uint8], times: int) -> float:
    """Return the median seconds until data have gone from the first rank to its peer, which says so."""
    word = np.zeros(1, np.uint8)
    found = []
    for _ in range(times):
        began = time.perf_counter()
        if comm.rank == 0:
            steps = [comm.Isend(data, dest=peer, tag=8), comm.Irecv(word, source=peer, tag=9)]
        else:
            comm.Irecv(np.empty_like(data), source=peer, tag=8).Wait()
            steps = [comm.Isend(word, dest=peer, tag=9)]
        for step in steps:
            step.Wait()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def loopback() -> tuple[float, float]:
    """Return the same of a socket to this host itself."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_echo, args=(server,))
        thread.start()
        with socket.create_connection(server.getsockname()[:2]) as one:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            began = time.perf_counter()
            for _ in range(PINGS):
                one.sendall(b"x")
                one.recv(1)
            latency = (time.perf_counter() - began) / PINGS / 2
            began = time.perf_counter()
            one.sendall(bytes(16 * MESSAGE))
            one.shutdown(socket.SHUT_WR)
            one.recv(1)
            network = 16 * MESSAGE / (time.perf_counter() - began)
        thread.join()
    return network, latency


def _echo(server: socket.socket) -> None:
    """Send back as many bytes as are pings; then take all there is, unless a signal has ended the other end."""
    peer, _ = server.accept()
    with peer, contextlib.suppress(ConnectionError):
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(PINGS):
            peer.sendall(peer.recv(1))
        while peer.recv(1 << 20):
            pass
