"""Plans beside what they predict: runs on virtual hosts, some to fit to and the widest predicted blind.

The hosts have links and an origin of set rates (`..harness.hosts`), and analyses that sleep (`..analyses.calibrated`),
so that sixteen of them fit on few cores. All numbers of hosts have equally many frames a host. A plan is fitted to the
records of first and second runs on few hosts and never sees those on many, nor any staging.

First runs keep no frames: opening a trajectory for a cache reads some 64 MB of it, to know it again, after which so
short a one would be in memory.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import himach
from himach.parallel.communicator import World
from himach.planning.fitting import Costs, fit
from himach.planning.machine import Machine
from himach.planning.predict import Asked, Prediction, predict
from himach.planning.records import observe

from ..harness.disk import forget
from ..harness.figures import report
from ..harness.hosts import Hosts
from ..harness.turns import scratch
from .machine import combining, link, reading
from .shared import rounds_beside, without_a_cache

__all__ = ["main", "measure", "others"]

FITTED, BLIND = (1, 2, 4), (8, 16)
#: Bytes a second of a host's link, and of the origin for all.
NETWORK, ORIGIN = 12.5e6, 12e6
ATOMS = 2000
CASES = ("LightMap", "HeavyMap", "HeavyReduce")
FRAMES = 400  # of each host
KINDS = ("first", "second", "stage")
BAR = 0.03


def main(
    repeats: int, fitted: int, only: Sequence[str], records: Path | None, out: Path | None, directory: Path | None
) -> None:
    """Print predictions beside measurements; leave them in a file, if one is named.

    Where `records` is a file, what was measured is taken from it; else it is left there.
    """
    cases = [name for name in CASES if not only or name in only]
    if records is not None and records.exists():
        told = json.loads(records.read_text())
        machine, found = told["machine"], told["found"]
    else:
        machine, found = _measured(cases, repeats, fitted, directory)
        if records is not None:
            records.write_text(json.dumps({"machine": machine, "found": found}))
    known = Machine(cores=2, network=machine["network"], latency=machine["latency"], origin=machine["origin"],
                    one_host=True)  # fmt: skip
    rows = [row for name in cases for row in _compared(name, found, known)] if found else []
    _print(rows, known)
    if out is not None:
        out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


def _fitted(name: str, found: dict[str, list[Any]], machine: Machine) -> Costs:
    """Return what runs on few hosts cost."""
    turns = [(f"{name} {nodes}", turn) for nodes in FITTED for turn in found[f"{name} {nodes}"]]
    return fit([observe(record, where) for where, turn in turns for record in turn[:2]], machine)


def others(directory: Path | None, records: Path, most: int, repeats: int) -> None:
    """Print Zazen's rounds on 2 to `most` hosts, and second runs of which one host lost its cache, beside predictions.

    `records` are what `main` has left.
    """
    told = json.loads(records.read_text())
    with scratch(directory) as place, Hosts(most, place, NETWORK, ORIGIN) as hosts:
        topology = _topology(place)
        trajectory = {nodes: _trajectory(place, topology, FRAMES * nodes) for nodes in (8, 16)}
        machine = hosts.call(2, machine_of, str(trajectory[16]))
        known = Machine(cores=2, **machine, one_host=True)
        for name in CASES[1:]:
            costs = _fitted(name, told["found"], known)
            for nodes, path in trajectory.items():
                without_a_cache(hosts, known, costs, name, topology, path, nodes, repeats)
        rounds_beside(hosts, known, combining(), most, repeats)


def _measured(
    cases: Sequence[str], repeats: int, fitted: int, directory: Path | None
) -> tuple[dict[str, float], dict[str, list[Any]]]:
    """Return what the hosts' network and origin give, and what was measured by analysis and number of hosts."""
    with scratch(directory) as place, Hosts(max(BLIND), place, NETWORK, ORIGIN) as hosts:
        topology = _topology(place)
        trajectories = {nodes: _trajectory(place, topology, FRAMES * nodes) for nodes in (*FITTED, *BLIND)}
        machine = hosts.call(2, machine_of, str(trajectories[max(BLIND)]))
        found: dict[str, list[Any]] = {}
        for nodes in (*FITTED, *BLIND):
            times = repeats if nodes in BLIND else fitted
            for name in cases:
                found[f"{name} {nodes}"] = hosts.call(
                    nodes, measure, name, str(topology), str(trajectories[nodes]), times
                )
                hosts.forget_disks()
    return machine, found


def _topology(place: Path) -> Path:
    topology = place / "many.gro"
    lines = [f"{i % 99999 + 1:5d}{'ATOM':5}{'AR':>5}{i % 99999 + 1:5d}" + 3 * f"{0:8.3f}" for i in range(ATOMS)]
    topology.write_text("\n".join(["atoms", str(ATOMS), *lines, 3 * f"{1:10.5f}", ""]))
    return topology


def _trajectory(place: Path, topology: Path, frames: int) -> Path:
    """Write frames of many atoms, of which nothing can be left out."""
    import MDAnalysis as mda

    trajectory = place / f"many-{frames}.dcd"
    universe = mda.Universe(str(topology))
    random = np.random.default_rng(2026)
    with mda.Writer(str(trajectory), ATOMS) as writer:
        for _ in range(frames):
            universe.atoms.positions = random.random((ATOMS, 3), dtype=np.float32)
            writer.write(universe.atoms)
    return trajectory


def machine_of(world: World, trajectory: str) -> dict[str, float]:
    """Return what the hosts' network and origin give (collective, two ranks)."""
    network, latency = link(world)
    forget([Path(trajectory)])
    rate = reading(Path(trajectory), int(2 * ORIGIN)) if world.comm.rank == 0 else 0.0
    world.comm.barrier()
    return {"network": network, "latency": latency, "origin": rate}


def measure(world: World, name: str, topology: str, trajectory: str, repeats: int) -> list[Any]:
    """Return records of first and second runs, and seconds of staging, each time (collective)."""
    from himach.benchmarks.analyses import calibrated
    from himach.runner.staging import StageJob, stage

    analysis = getattr(calibrated, name)
    himach.run(analysis(), trajectory, topology, stop=2 * world.comm.size, cache="off", progress=False)  # imports
    found = []
    for turn in range(repeats):
        cache = Path(f"/mnt/{turn}")
        cache.mkdir()
        _start_cold(world, trajectory)
        first = himach.run(analysis(), trajectory, topology, cache="off", progress=False).record
        _start_cold(world, trajectory)
        began = time.time()
        stage(world, StageJob([Path(trajectory)], Path(topology), cache=str(cache), quiet=True))
        staged = time.time() - began
        _start_cold(world, trajectory)
        second = himach.run(analysis(), trajectory, topology, cache=cache, progress=False).record
        world.comm.barrier()
        shutil.rmtree(cache)
        found.append([first, second, max(world.comm.allgather(staged))])
    return found


def _start_cold(world: World, trajectory: str) -> None:
    """Have all ranks begin at once, with nothing of the origin in memory (collective)."""
    world.comm.barrier()
    if world.comm.rank == 0:
        forget([Path(trajectory)])
    world.comm.barrier()


def _compared(name: str, found: dict[str, list[Any]], machine: Machine) -> list[dict[str, Any]]:
    """Return predictions for each number of hosts beside what was measured, fitted to those on few."""
    costs = _fitted(name, found, machine)
    rows = []
    for nodes in (*FITTED, *BLIND):
        measured = {
            "first": [turn[0]["seconds"]["total"] for turn in found[f"{name} {nodes}"]],
            "second": [turn[1]["seconds"]["total"] for turn in found[f"{name} {nodes}"]],
            "stage": [turn[2] for turn in found[f"{name} {nodes}"]],
        }
        for kind in KINDS:
            one = predict(costs, machine, Asked(nodes, 1, FRAMES * nodes), kind)  # type: ignore[arg-type]
            assert isinstance(one, Prediction), one
            middle = statistics.median(measured[kind])
            rows.append({
                "analysis": name, "kind": kind, "nodes": nodes, "blind": nodes in BLIND,
                "predicted": round(one.total, 4), "measured": round(middle, 4),
                "spread": round((max(measured[kind]) - min(measured[kind])) / 2 / middle, 4),
                "repeats": len(measured[kind]), "limit": one.limit,
                "phases": {phase: round(value, 4) for phase, value in one.phases.items()},
                "seen": _seen(found[f"{name} {nodes}"], kind),
            })  # fmt: skip
    return rows


def _seen(turns: Sequence[Any], kind: str) -> dict[str, float]:
    """Return the median of each measured phase."""
    if kind == "stage":
        return {}
    which = KINDS.index(kind)
    phases = turns[0][which]["seconds"]
    return {phase: round(statistics.median(turn[which]["seconds"][phase] for turn in turns), 4) for phase in phases}


def _print(rows: Sequence[dict[str, Any]], machine: Machine) -> None:
    print(f"hosts' links {machine.network or 0:.3g} B/s, origin {machine.origin or 0:.3g} B/s, measured")
    for row in rows:
        error = row["predicted"] / row["measured"] - 1
        held = max(BAR, row["spread"])
        what = f"{row['analysis']}, {row['kind']}, {row['nodes']} nodes{'' if row['blind'] else ' (fitted)'}"
        if not row["blind"] and row["kind"] == "stage":
            what = what.replace("fitted", "blind too")
        value = f"{row['predicted']:.2f} of {row['measured']:.2f} s {error:+.1%}"
        report(what, f"{value} ± {row['spread']:.1%}", f"{held:.1%}{'' if abs(error) <= held else ' MISSED'}")
