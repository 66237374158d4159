"""Which of very many frames are whole, by how many atoms virtual nodes have of each, beside the bare Allreduce."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.parallel.communicator import World
from himach.runner.assembling.totals import AT_ONCE, totals

from ..harness.figures import report
from ..harness.ranks import on_ranks

__all__ = ["finding"]

N_ATOMS = 47_681


def finding(frames: int, nodes: int, repeats: int) -> None:
    """Time both in turn, and print the figures."""
    found = on_ranks(nodes, measure, frames, repeats, apart=True)
    what = f"{frames:.0e} frames, {nodes} virtual nodes"
    report(f"{what}: bare Allreduce", f"{statistics.median(found['bare']):.2f} s")
    report(f"{what}: finding those that are whole", f"{statistics.median(found['ours']):.2f} s")
    ratio = statistics.median(ours / bare for ours, bare in zip(found["ours"], found["bare"], strict=True))
    report(f"{what}: finding / bare", f"{ratio:.2f}", "2")


def measure(world: World, frames: int, repeats: int) -> dict[str, list[float]]:
    """Return the seconds of both, one a turn (collective)."""
    nodes, node = world.comm.size, world.comm.rank
    period = min(AT_ONCE, frames)
    base = N_ATOMS // nodes
    extra = np.random.default_rng(0).integers(-50, 50, (nodes, period))  # atoms move; the same on every node
    extra[0] -= extra.sum(axis=0) - (N_ATOMS - base * nodes)
    mine = (base + extra[node]).astype(np.uint32)
    if node == 1:
        mine[::1000] -= 1  # of these an atom is missing

    def count(first: int, counts: npt.NDArray[Any]) -> None:
        counts += mine[: len(counts)]

    leaders = world.leaders
    assert leaders is not None
    took: dict[str, list[float]] = {"bare": [], "ours": []}
    one, both = mine.copy(), np.empty_like(mine)
    for _ in range(repeats):
        world.comm.barrier()
        began = time.perf_counter()
        for first in range(0, frames, AT_ONCE):
            length = min(AT_ONCE, frames - first)
            leaders.Allreduce(one[:length], both[:length], op=world.sum)
        world.comm.barrier()
        took["bare"].append(time.perf_counter() - began)
        began = time.perf_counter()
        whole = 0
        for _, atoms in totals(leaders, world.sum, count, (0, frames - 1), N_ATOMS):
            whole += int(np.count_nonzero(atoms >= N_ATOMS))
        world.comm.barrier()
        took["ours"].append(time.perf_counter() - began)
        lacking = sum(len(range(0, min(AT_ONCE, frames - first), 1000)) for first in range(0, frames, AT_ONCE))
        assert whole == frames - lacking * (nodes > 1), (whole, frames, lacking)
    return took
