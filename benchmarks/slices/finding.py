"""Which of very many frames are whole, by how many atoms virtual nodes have of each, beside the bare Allreduce.

Each node has pushed slices to a store of its own, and what it knows of them is as it was learned from there, as often
as it takes to have so many frames.
"""

import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from himach.io.push.held_slices import HeldSlices, RankSlices, find_slices
from himach.io.push.writer import Writer
from himach.io.store.store import Store
from himach.ranks.communicator import World
from himach.staging.complete_frames import CHUNK_FRAMES, totals

from ..harness.figures import report
from ..harness.ranks import on_ranks

__all__ = ["finding"]

N_ATOMS = 64
STORED = 1 << 16


def finding(place: Path, frames: int, nodes: int, repeats: int) -> None:
    """Time both in turn, and print the figures."""
    found = on_ranks(nodes, measure, str(place), frames, repeats, apart=True)
    what = f"{frames:.0e} frames, {nodes} virtual nodes"
    report(f"{what}: bare Allreduce", f"{statistics.median(found['bare']):.2f} s")
    report(f"{what}: finding those that are whole", f"{statistics.median(found['ours']):.2f} s")
    ratio = statistics.median(ours / bare for ours, bare in zip(found["ours"], found["bare"], strict=True))
    report(f"{what}: finding / bare", f"{ratio:.2f}", "2")
    learned = statistics.median(found["learned"]) / STORED
    report(f"{nodes} virtual nodes: learning how many atoms a new slice has", f"{learned * 1e6:.2f} us")


def measure(world: World, place: str, frames: int, repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each, one a turn (collective)."""
    nodes, node = world.comm.size, world.comm.rank
    own = Path(place, f"node{node}")
    _push(own, node, nodes)
    leaders = world.leaders
    assert leaders is not None
    took: dict[str, list[float]] = {"bare": [], "ours": [], "learned": []}
    for _ in range(repeats):
        (held,) = find_slices(Store(own), "bench").values()
        world.comm.barrier()
        began = time.perf_counter()
        held.refresh()
        world.comm.barrier()
        took["learned"].append(time.perf_counter() - began)
        numbers = np.arange(CHUNK_FRAMES)
        atoms = np.resize(held.count_atoms(numbers[:STORED]).astype(np.uint32), CHUNK_FRAMES)
        both = np.empty_like(atoms)
        world.comm.barrier()
        began = time.perf_counter()
        for first in range(0, frames, CHUNK_FRAMES):
            length = min(CHUNK_FRAMES, frames - first)
            leaders.Allreduce(atoms[:length], both[:length], op=world.sum)
        world.comm.barrier()
        took["bare"].append(time.perf_counter() - began)
        began = time.perf_counter()
        whole = 0
        again = _Again(RankSlices(node, held.datasets[0], 1, numbers, atoms), frames)
        for _, counts in totals(leaders, world.sum, again, N_ATOMS):
            whole += int(np.count_nonzero(counts >= N_ATOMS))
        world.comm.barrier()
        took["ours"].append(time.perf_counter() - began)
        lacking = np.count_nonzero(np.arange(STORED) % 1000 == 0)
        periods, rest = divmod(frames, STORED)
        expected = frames - (periods * lacking + -(-rest // 1000)) * (nodes > 1)
        assert whole == expected, (whole, expected)
    world.comm.barrier()
    shutil.rmtree(own)
    return took


class _Again(HeldSlices):
    """What a node has of some frames, again and again."""

    def __init__(self, known: RankSlices, frames: int) -> None:
        super().__init__([known])
        self._frames = frames

    @property
    def frames(self) -> BitMap64:
        return BitMap64(range(self._frames))

    def count_atoms(self, numbers: Any, kind: npt.DTypeLike = np.int64) -> npt.NDArray[Any]:
        return super().count_atoms(range(len(numbers)), kind)


def _push(store: Path, node: int, nodes: int) -> None:
    """Push this node's slices, of as many atoms as it has of each frame; of some one is missing."""
    rng = np.random.default_rng(0)  # the same on every node
    positions = np.zeros((N_ATOMS, 3), np.float32)
    with Writer("bench", N_ATOMS, cache=store, rank=node) as writer:
        for number in range(STORED):
            ends = np.sort(rng.permutation(N_ATOMS - 2)[: nodes - 1] + 2)
            first, last = (0, *ends, N_ATOMS)[node : node + 2]
            ids = np.arange(first + (node == 0 and nodes > 1 and number % 1000 == 0), last)
            writer.push_slice(number, ids, positions[: len(ids)], time=number)
