"""Assembling on two nodes, beside what any way must take: the frames' bytes written, or sent from node to node."""

import os
import shutil
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from himach.io.push.writer import Writer
from himach.io.store.store import Store
from himach.ranks.communicator import World
from himach.staging.assemble import assemble, send_all

from ..harness.disk import forget
from ..harness.figures import report
from ..harness.ranks import on_ranks

__all__ = ["assembling"]

N_ATOMS = 47_681
BATCH_BYTES = 16 << 20


def assembling(place: Path, frames: int, repeats: int, nodes: int = 2) -> None:
    """Time all in turn, and print the figures."""
    found = on_ranks(nodes, measure, str(place), frames, repeats, apart=True)
    nbytes = 12 * N_ATOMS * frames
    for name, told in (
        ("disk", "bytes of the frames written, durable every 16 MB"),
        ("both", "the same written while as many bytes are read that are not in memory"),
        ("sent", "bytes of the slices, Alltoallv"),
        ("assembled", "assembled"),
    ):
        report(f"{nodes} nodes: {told}", f"{nbytes / statistics.median(found[name]) / 1e6:.0f} MB/s")
    for title, peers, bar in (
        ("the slower of writing and sending", ("disk", "sent"), "60%"),
        ("the slower of reading cold slices while writing, and sending", ("both", "sent"), "none"),
    ):
        turns = zip(*(found[name] for name in (*peers, "assembled")), strict=True)
        ratio = statistics.median(max(others) / own for *others, own in turns)
        report(f"{nodes} nodes: assembled / {title}", f"{ratio:.0%}", bar)


def measure(world: World, place: str, frames: int, repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each, one a turn (collective)."""
    own = Path(place, f"node{world.comm.rank}")
    took: dict[str, list[float]] = {"disk": [], "both": [], "sent": [], "assembled": []}
    for turn in range(repeats + 1):
        _push(world, own / "store", frames)
        for name, seconds in took.items():
            if name == "both":
                forget([own / "plain"])
            world.comm.barrier()
            began = time.perf_counter()
            if name == "disk":
                _write(own / "plain", frames // world.comm.size)
            elif name == "both":
                with ThreadPoolExecutor(1) as reader:
                    read = reader.submit(_read, own / "plain")
                    _write(own / "plain2", frames // world.comm.size)
                    read.result()
            elif name == "sent":
                _send(world, frames)
            else:
                done = assemble(world, Store(own / "store"), "bench")
                assert done.frames == frames, done
            world.comm.barrier()
            if turn:
                seconds.append(time.perf_counter() - began)
        shutil.rmtree(own)
        os.sync()
        world.comm.barrier()
    return took


def _push(world: World, store: Path, frames: int) -> None:
    """Push this node's slices, of a random part of the atoms."""
    rng = np.random.default_rng(0)  # the same on every node
    owner = rng.integers(0, world.comm.size, N_ATOMS)
    positions = rng.uniform(0, 80, (N_ATOMS, 3)).astype(np.float32)
    with Writer("bench", N_ATOMS, cache=store, rank=world.comm.rank, durable=True) as writer:
        for number in range(frames):
            moves = rng.random(N_ATOMS) < 0.01
            owner[moves] = rng.integers(0, world.comm.size, moves.sum())
            ids = np.flatnonzero(owner == world.comm.rank)
            writer.push_slice(number, ids, positions[ids], time=number)


def _write(path: Path, frames: int) -> None:
    data = np.zeros(12 * N_ATOMS, np.uint8)
    data[:] = np.random.default_rng(0).integers(0, 256, len(data))
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    unsynced = 0
    for _ in range(frames):
        unsynced += os.write(fd, data)
        if unsynced >= BATCH_BYTES:
            os.fdatasync(fd)
            unsynced = 0
    os.fdatasync(fd)
    os.close(fd)


def _read(path: Path) -> None:
    buffer = bytearray(1 << 20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def _send(world: World, frames: int) -> None:
    """Send to each node what it would get of the slices."""
    size = world.comm.size
    each = 12 * N_ATOMS * frames // size // size
    piece = np.zeros(min(each, 8 << 20), np.uint8)
    for done in range(0, each, len(piece)):
        length = min(len(piece), each - done)
        send_all(world.comm, [piece[:length]] * size, [length] * size)
