"""What is measured on virtual hosts for plans: runs, staging, Zazen's rounds; in turns, as lines of JSON.

The hosts have links and an origin of set rates (`..harness.hosts`), and analyses that sleep (`..analyses.calibrated`),
so that sixteen of them fit on few cores. All numbers of hosts have equally many frames a host. Their rates are about
`SCALE` times less than those of nodes, and so are the bytes that himach reads ahead or at once; trajectories are
`SHORT` times shorter, and so is what himach reads of them to know them again.

A turn is one of everything, so that a machine whose speed drifts drifts for all of them alike. What was measured is
kept when it is there; measuring goes on where it was ended.
"""

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import himach
from himach.errors import HimachError
from himach.ranks.communicator import World
from himach.zazen import InMemory, assign

from ..harness.disk import forget
from ..harness.hosts import Hosts
from ..harness.interleave import scratch
from .machine import link, reading

__all__ = ["BLIND", "CASES", "FITTED", "FRAMES", "ROUNDS", "ROUND_FRAMES", "Lines", "measure"]

FITTED, BLIND = (1, 2, 4), (8, 16)
CASES = ("LightMap", "HeavyMap", "HeavyReduce")
FRAMES = 320  # of each host
ATOMS = 1000
#: Bytes a second of a host's link, and of the origin for all.
NETWORK, ORIGIN = 3.125e6, 12e6
SCALE, SHORT = 32, 1024
#: Hosts on which Zazen's rounds are timed, frames that they hold at random, one in ten alien, and links.
ROUNDS = (2, 4, 8, 16, 32, 64)
ROUND_FRAMES, ROUND_NETWORK = 1_000_000, 312_500


class Lines:
    """What was measured, as lines of a file, each written when it is known.

    A line has ``turn`` and ``machine``, or ``turn``, ``hosts`` and ``found``, or ``rounds``, ``machine`` and
    ``seconds``.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.lines: list[dict[str, Any]] = []
        if path is not None and path.exists():
            whole = path.read_text().rpartition("\n")[0]  # without what was being written when it was ended
            self.lines = [json.loads(text) for text in whole.splitlines()]
            path.write_text(whole and f"{whole}\n")

    def add(self, line: dict[str, Any]) -> None:
        """Keep a line."""
        self.lines.append(line)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def found(self, case: str, hosts: int, kind: str) -> list[Any]:
        """Return what was measured of a kind: records of runs, seconds of staging."""
        each = [line["found"].get(case, {}) for line in self.lines if line.get("hosts") == hosts]
        return [one[kind] for one in each if kind in one]

    def machines(self) -> Iterator[dict[str, float]]:
        """Yield what hosts' links and origin were measured to give."""
        return (line["machine"] for line in self.lines if "turn" in line and "machine" in line)


def measure(
    lines: Lines, cases: Sequence[str], repeats: int, fitted: int, rounds: bool, end: float, directory: Path | None
) -> None:
    """Measure what is not there yet: so many turns, of few hosts `fitted` ones; none that would not `end` in time."""
    longest = 0.0
    for turn in range(repeats):
        began = time.monotonic()
        if began + longest > end:
            print(f"ended after {turn} turns, as there was no time for more", flush=True)
            break
        _turn(lines, cases, turn, [*(FITTED if turn < fitted else ()), *BLIND], directory)
        if turn == 0 and rounds:
            longest = time.monotonic() - began
            _rounds(lines, min(repeats, 3), directory)
        longest = max(longest, 0.8 * (time.monotonic() - began))


def _turn(lines: Lines, cases: Sequence[str], turn: int, wanted: Sequence[int], directory: Path | None) -> None:
    """Measure one of everything, or what is missing of it."""
    todo = {hosts: [name for name in cases if not _there(lines, turn, hosts, name)] for hosts in wanted}
    todo = {hosts: names for hosts, names in todo.items() if names}
    if not todo:
        return
    with scratch(directory) as place, Hosts(max(2, *todo), place, NETWORK, ORIGIN) as hosts:
        topology = _topology(place)
        if not any(one.get("turn") == turn and "machine" in one for one in lines.lines):
            trajectory = _trajectory(place, topology, FRAMES * max(BLIND))
            with _told():
                lines.add({"turn": turn, "machine": hosts.call(2, machine_of, str(trajectory))})
        for count, names in todo.items():
            trajectory = _trajectory(place, topology, FRAMES * count)
            with _told():
                found = hosts.call(count, runs_of, names, str(topology), str(trajectory))
                lines.add({"turn": turn, "hosts": count, "found": found})
            hosts.forget_disks()


def _there(lines: Lines, turn: int, hosts: int, name: str) -> bool:
    return any(one.get("turn") == turn and one.get("hosts") == hosts and name in one["found"] for one in lines.lines)


def _rounds(lines: Lines, repeats: int, directory: Path | None) -> None:
    todo = [count for count in ROUNDS if all(line.get("rounds") != count for line in lines.lines)]
    if not todo:
        return
    with _told(), scratch(directory) as place, Hosts(max(todo), place, ROUND_NETWORK) as hosts:
        network, latency = hosts.call(2, link, int(ROUND_NETWORK), 3)
        machine = {"network": network, "latency": latency}
        for count in todo:
            with _told():
                seconds = hosts.call(count, rounds_of, ROUND_FRAMES, repeats)
                lines.add({"rounds": count, "machine": machine, "seconds": seconds})


@contextmanager
def _told() -> Iterator[None]:
    """Say what could not be measured, and go on: the next call measures it."""
    try:
        yield
    except HimachError as error:
        print(f"not measured: {error}", flush=True)


def _topology(place: Path) -> Path:
    topology = place / "many.gro"
    lines = [f"{i % 99999 + 1:5d}{'ATOM':5}{'AR':>5}{i % 99999 + 1:5d}" + 3 * f"{0:8.3f}" for i in range(ATOMS)]
    topology.write_text("\n".join(["atoms", str(ATOMS), *lines, 3 * f"{1:10.5f}", ""]))
    return topology


def _trajectory(place: Path, topology: Path, frames: int) -> Path:
    """Write frames of many atoms, of which nothing can be left out, unless they are there."""
    import MDAnalysis as mda

    trajectory = place / f"many-{frames}.dcd"
    if trajectory.exists():
        return trajectory
    universe = mda.Universe(str(topology))
    random = np.random.default_rng(2026)
    with mda.Writer(str(trajectory), ATOMS) as writer:
        for _ in range(frames):
            universe.atoms.positions = random.random((ATOMS, 3), dtype=np.float32)
            writer.write(universe.atoms)
    return trajectory


def machine_of(world: World, trajectory: str) -> dict[str, float]:
    """Return what the hosts' network and origin give (collective, two ranks)."""
    network, latency = link(world, int(NETWORK), 3)
    forget([Path(trajectory)])
    rate, at_once = reading(Path(trajectory), int(3 * ORIGIN)) if world.comm.rank == 0 else (0.0, 0.0)
    world.comm.barrier()
    return {"network": network, "latency": latency, "origin": rate, "origin_at_once": at_once}


def runs_of(world: World, names: Sequence[str], topology: str, trajectory: str) -> dict[str, dict[str, Any]]:
    """Return, by analysis, records of a first and a second run, and seconds of staging (collective)."""
    _to_scale()
    from himach.benchmarks.analyses import calibrated
    from himach.staging.options import StageOptions
    from himach.staging.stage import stage

    found: dict[str, dict[str, Any]] = {}
    for name in names:
        analysis = getattr(calibrated, name)
        himach.run(analysis(), trajectory, topology, stop=2 * world.comm.size, cache="off", progress=False)  # imports
        cache = Path(f"/mnt/{name}")
        cache.mkdir()
        _start_cold(world, trajectory)
        first = himach.run(analysis(), trajectory, topology, cache="off", progress=False).record
        _start_cold(world, trajectory)
        began = time.time()
        stage(world, StageOptions([Path(trajectory)], Path(topology), cache=str(cache), quiet=True))
        staged = time.time() - began
        _start_cold(world, trajectory)
        second = himach.run(analysis(), trajectory, topology, cache=cache, progress=False).record
        found[name] = {"first": first, "second": second, "stage": max(world.comm.allgather(staged))}
        world.comm.barrier()
        shutil.rmtree(cache)
    return found


def _to_scale() -> None:
    """Read fewer bytes ahead, at once and beforehand, as these hosts and trajectories are smaller than real ones."""
    from himach.io.datasets import origin_stamp
    from himach.io.trajectories import dcd_file, readahead

    for module, name, times in (
        (readahead, "BATCH_BYTES", SCALE), (dcd_file, "BLOCK_BYTES", SCALE),
        (origin_stamp, "DIGEST_BYTES", SHORT),
    ):  # fmt: skip
        setattr(module, name, getattr(module, name) // times)


def _start_cold(world: World, trajectory: str) -> None:
    """Have all ranks begin at once, with nothing of the origin in memory (collective)."""
    world.comm.barrier()
    if world.comm.rank == 0:
        forget([Path(trajectory)])
    world.comm.barrier()


def rounds_of(world: World, frames: int, repeats: int) -> list[float]:
    """Return the seconds of all of Zazen's rounds, on the host that takes longest, each time (collective)."""
    random = np.random.default_rng(7)  # the same on every host
    home = random.integers(0, world.comm.size, frames, dtype=np.int16)
    alien = random.integers(0, 10, frames, dtype=np.int8) == 0
    mine = home == world.node_index
    few = np.flatnonzero(mine[: frames // 100])
    assign(world, InMemory(few, few[:0]), range(frames // 100))  # those that talk to each other are connected
    cached = InMemory(np.flatnonzero(mine & ~alien), np.flatnonzero(mine & alien))
    found = []
    for _ in range(repeats):
        world.comm.barrier()
        share = assign(world, cached, range(frames))
        taken = world.comm.allgather(share.seconds)
        sets = max(each["sets"] for each in taken)
        found.append(max(each["sets"] + each["rounds"] for each in taken) - sets)
    return found
