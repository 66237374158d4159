"""Slices pushed by several ranks, beside each rank's own plain file, and beside one file that all write (N-1, strided).

Every rank has some atoms, in any order, of which one in a hundred moves to another rank from frame to frame. What is
counted is bytes of positions a second; the plain file and the shared one have nothing else, and atoms keep their place
in them. All are on disk after every 16 MB of a rank, and at the end; opening and closing count, a new store's making
too. Slices and plain files are some batches of 16 MB a rank. The shared file, of which every write is collective, has
fewer frames. It is on a disk of this machine, where no lock manager of a parallel file system stands between the ranks:
so it is at its best.
"""

import os
import shutil
import statistics
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from himach.io.push.writer import Writer
from himach.ranks.communicator import World

from ..harness.figures import report
from ..harness.ranks import on_ranks

__all__ = ["pushing"]

BATCH_BYTES = 16 << 20
KEPT = 16  # frames that are made up, again and again


def pushing(
    place: Path, ranks: int, n_atoms: int, frames: tuple[int, int], repeats: int, bars: tuple[float, float]
) -> None:
    """Time the three in turn, and print the figures.

    `frames` are those of slices and plain files, and of the shared one; `bars` are for plain files and for the shared
    one.
    """
    took = on_ranks(ranks, measure, str(place), n_atoms, frames, repeats)
    sizes = {"slices": frames[0], "plain": frames[0], "shared": frames[1]}
    found = {name: [12 * n_atoms * sizes[name] / seconds for seconds in times] for name, times in took.items()}
    what = f"{ranks} ranks, {12 * n_atoms / ranks / 1e3:.0f} kB a slice"
    for name, told in (("slices", "slices"), ("plain", "plain files"), ("shared", "Write_at_all, one file")):
        report(f"{what}: {told}", f"{statistics.median(found[name]) / 1e6:.0f} MB/s")
    beside_plain, beside_shared = (
        statistics.median(own / other for own, other in zip(found["slices"], found[name], strict=True))
        for name in ("plain", "shared")
    )
    report(f"{what}: slices / plain files", f"{beside_plain:.0%}", f"{bars[0]:.0%}" if bars[0] else "none")
    report(f"{what}: slices / Write_at_all", f"{beside_shared:.2f}", f"{bars[1]:g}" if bars[1] else "none")


def measure(world: World, place: str, n_atoms: int, frames: tuple[int, int], repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each way, one a turn, on the ranks of `world` (collective)."""
    kept = _made_up(world, n_atoms)
    names = count()
    store = Path(place, f"store-{world.comm.rank if len(world.nodes) > 1 else 0}")
    ways: dict[str, Callable[[], None]] = {
        "slices": lambda: _slices(world, store, n_atoms, frames[0], kept, f"bench{next(names)}"),
        "plain": lambda: _plain(world, Path(place), frames[0], kept),
        "shared": lambda: _shared(world, Path(place), n_atoms, frames[1], kept),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats + 1):
        for name, way in ways.items():
            world.comm.barrier()
            began = time.perf_counter()
            way()
            world.comm.barrier()
            if turn:  # the first warms up
                took[name].append(max(world.comm.allgather(time.perf_counter() - began)))
            _clear(world, Path(place))
    return took


def _made_up(world: World, n_atoms: int) -> list[tuple[Any, Any]]:
    """Return what this rank has of some frames: ids and positions."""
    rng = np.random.default_rng(0)  # the same on every rank
    owner = rng.integers(0, world.comm.size, n_atoms)
    kept = []
    for _ in range(KEPT):
        moves = rng.random(n_atoms) < 0.01
        owner[moves] = rng.integers(0, world.comm.size, moves.sum())
        ids = np.random.default_rng(1).permutation(np.flatnonzero(owner == world.comm.rank))
        kept.append((ids, np.random.default_rng(2).uniform(0, 80, (len(ids), 3)).astype(np.float32)))
    return kept


def _clear(world: World, place: Path) -> None:
    world.comm.barrier()
    if world.comm.rank == 0:
        for path in place.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        os.sync()  # so that nothing else waits for the disk
    world.comm.barrier()


def _slices(world: World, store: Path, n_atoms: int, frames: int, kept: list[tuple[Any, Any]], name: str) -> None:
    with Writer(name, n_atoms, cache=store, rank=world.comm.rank, durable=True, batch_bytes=BATCH_BYTES) as writer:
        for number in range(frames):
            ids, positions = kept[number % KEPT]
            writer.push_slice(number, ids, positions, time=number)


def _plain(world: World, place: Path, frames: int, kept: list[tuple[Any, Any]]) -> None:
    fd = os.open(place / f"plain-{world.comm.rank}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    unsynced = 0
    for number in range(frames):
        _, positions = kept[number % KEPT]
        unsynced += os.write(fd, positions)
        if unsynced >= BATCH_BYTES:
            os.fdatasync(fd)
            unsynced = 0
    os.fdatasync(fd)
    os.close(fd)


def _shared(world: World, place: Path, n_atoms: int, frames: int, kept: list[tuple[Any, Any]]) -> None:
    from mpi4py import MPI

    comm: Any = world.comm
    file = MPI.File.Open(comm, str(place / "shared"), MPI.MODE_CREATE | MPI.MODE_WRONLY)
    counts = world.comm.allgather([len(ids) for ids, _ in kept])
    before = np.cumsum([np.zeros(KEPT, np.int64), *map(np.array, counts)], axis=0)[world.comm.rank]
    unsynced = 0
    for number in range(frames):
        _, positions = kept[number % KEPT]
        file.Write_at_all(12 * (number * n_atoms + int(before[number % KEPT])), positions)
        unsynced += 12 * n_atoms // world.comm.size
        if unsynced >= BATCH_BYTES:
            file.Sync()
            unsynced = 0
    file.Sync()
    file.Close()
