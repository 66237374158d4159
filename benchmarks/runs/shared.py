"""What nodes share, beside predictions, on virtual hosts: Zazen's rounds, and a second run after a host lost its cache.

Nothing is fitted to the rounds: the links' rate and latency are measured, and the closed forms do the rest. A lost
cache is predicted by what first and second runs on few hosts cost.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import himach
from himach.parallel.communicator import World
from himach.planning import tree
from himach.planning.fitting import Costs
from himach.planning.machine import Machine
from himach.planning.predict import Asked, Prediction, predict
from himach.zazen import InMemory, assign

from ..harness.disk import forget
from ..harness.figures import report
from ..harness.hosts import Hosts

__all__ = ["ROUNDS", "rounds_beside", "without_a_cache"]

#: Hosts on which rounds are timed, and frames, held at random, one in ten alien.
ROUNDS = (2, 4, 8, 16, 32)
FRAMES = 20_000_000
BAR = 0.03


def rounds_beside(hosts: Hosts, machine: Machine, combine: float, most: int, repeats: int) -> None:
    """Print what Zazen's rounds took on so many hosts beside what they were predicted to."""
    assert machine.network is not None
    assert machine.latency is not None
    for nodes in [count for count in ROUNDS if count <= most]:
        found = hosts.call(nodes, rounds_of, FRAMES, repeats)
        said = tree.zazen_seconds(nodes, FRAMES, machine.latency, machine.network, combine)
        middle = statistics.median(found)
        told(f"Zazen's rounds, {FRAMES:.0e} frames, {nodes} hosts", said, found, middle)


def rounds_of(world: World, frames: int, repeats: int) -> list[float]:
    """Return the seconds of all rounds, on the host that takes longest, each time (collective)."""
    random = np.random.default_rng(7)  # the same on every host
    home = random.integers(0, world.comm.size, frames, dtype=np.int16)
    alien = random.integers(0, 10, frames, dtype=np.int8) == 0
    mine = home == world.node_index
    cached = InMemory(np.flatnonzero(mine & ~alien), np.flatnonzero(mine & alien))
    found = []
    for _ in range(repeats):
        world.comm.barrier()
        share = assign(world, cached, range(frames))
        taken = world.comm.allgather(share.seconds)
        share.close()
        sets = max(each["sets"] for each in taken)
        found.append(max(each["sets"] + each["rounds"] for each in taken) - sets)
    return found


def without_a_cache(
    hosts: Hosts, machine: Machine, costs: Costs, name: str, topology: Path, trajectory: Path, nodes: int, repeats: int
) -> None:
    """Print what a second run took where one host's cache was lost, beside what it was predicted to."""
    found = hosts.call(nodes, lost, name, str(topology), str(trajectory), repeats)
    hosts.forget_disks()
    said = predict(costs, machine, Asked(nodes, 1, found["frames"], lost=1), "second")
    assert isinstance(said, Prediction), said
    middle = statistics.median(found["seconds"])
    told(f"{name}, second run, {nodes} hosts of which one lost its cache", said.total, found["seconds"], middle)


def lost(world: World, name: str, topology: str, trajectory: str, repeats: int) -> dict[str, Any]:
    """Return the seconds of second runs, each after the last host's cache was emptied (collective)."""
    from himach.benchmarks.analyses import calibrated
    from himach.runner.staging import StageJob, stage

    analysis = getattr(calibrated, name)
    found, frames = [], 0
    for turn in range(repeats):
        cache = Path(f"/mnt/lost-{turn}")
        cache.mkdir()
        stage(world, StageJob([Path(trajectory)], Path(topology), cache=str(cache), quiet=True))
        world.comm.barrier()
        if world.comm.rank == world.comm.size - 1:
            shutil.rmtree(cache)
            cache.mkdir()
            forget([Path(trajectory)])
            time.sleep(0.1)
        world.comm.barrier()
        record = himach.run(analysis(), trajectory, topology, cache=cache, progress=False).record
        frames = record["frames"]
        found.append(record["seconds"]["total"])
        world.comm.barrier()
        shutil.rmtree(cache)
    return {"frames": frames, "seconds": found}


def told(what: str, said: float, found: Sequence[float], middle: float) -> None:
    """Print a prediction beside what was measured."""
    error, spread = said / middle - 1, (max(found) - min(found)) / 2 / middle
    held = max(BAR, spread)
    value = f"{said:.2f} of {middle:.2f} s {error:+.1%} ± {spread:.1%}"
    report(what, value, f"{held:.1%}{'' if abs(error) <= held else ' MISSED'}")
