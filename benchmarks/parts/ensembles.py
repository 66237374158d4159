"""``himach bench ensemble``: many short simulations at once, beside a loop over MDAnalysis and one long simulation."""

import os
import random
import resource
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

import himach

from ..harness.data import folder
from ..harness.figures import report
from ..harness.interleave import scratch
from ..harness.options import DIRECTORY, RANKS, only
from ..harness.results import chosen

__all__ = ["main"]

FRAMES = 100  # of a member
SHAPE = f"{Path(__file__).parent.parent / 'analyses' / 'shape.py'}:Shape"
FIRST, SECOND = 60.0, 8.0  # seconds
FASTER = (4, 20)  # times as fast as the loop, at first and then
MAP_BAR = 1.15
MEMORY_BAR = 400e6
TOPOLOGIES, SHORT = 40, 5  # of the many members, and their frames


@only("speed, map, memory, kills")
@click.option(
    "--members", type=click.IntRange(min=2), default=1000, show_default=True, help="Trajectories of 100 frames."
)
@click.option(
    "--many", type=click.IntRange(min=50), default=10_000, show_default=True, help="Members for their memory."
)
@click.option(
    "--kills", type=click.IntRange(min=1), default=50, show_default=True, help="Moments at which a run is killed."
)
@RANKS
@DIRECTORY
def main(only: Sequence[str], members: int, many: int, kills: int, ranks: int, directory: Path | None) -> None:
    """Time an ensemble of AdK (3,341 atoms): RMSD and radius of gyration, first and cached; its memory; kills."""
    parts: Mapping[str, Callable[[Path], None]] = {
        "speed": lambda place: _speed(place, members, ranks),
        "map": lambda place: _map(place, members, ranks),
        "memory": lambda place: _memory(place, many, ranks),
        "kills": lambda place: _kills(place, members, kills, ranks),
    }
    with scratch(directory) as place:
        for name in chosen("part", only, parts):
            parts[name](place)


def _speed(place: Path, members: int, ranks: int) -> None:
    """Time the command, the first time and over cached frames, beside the loop; all three in turn tell the same."""
    pattern, topology = simulations(members)
    loop, found = _loop(pattern, topology, ranks)
    times = {name: _command(place, pattern, topology, ranks, name) for name in ("first", "second")}
    written = np.genfromtxt(place / "second" / "Shape.csv", delimiter=",", names=True)
    worst = float(np.abs(written["rmsd"] - found[:, 0]).max()), float(np.abs(written["rg"] - found[:, 1]).max())
    print(f"{members:,} members of {FRAMES} frames, {ranks} ranks; the loop over MDAnalysis in {ranks} processes")
    report("largest difference from MDAnalysis, Å", f"rmsd {worst[0]:.1e}, rg {worst[1]:.1e}")
    report("loop over MDAnalysis", f"{loop:.1f} s")
    for name, bar, faster in (("first", FIRST, FASTER[0]), ("second", SECOND, FASTER[1])):
        report(f"{name} run", f"{times[name]:.1f} s", f"{bar * members / 1000:g} s")
        report(f"{name} run beside the loop", f"{loop / times[name]:.2f} times as fast", f"{faster}")


def _command(place: Path, pattern: str, topology: Path, ranks: int, name: str) -> float:
    words = ["run", SHAPE, "--ensemble", pattern, "-s", topology, "-n", ranks, "--cache", place / "store", "-q"]
    began = time.perf_counter()
    _himach(*words, "--out", place / name)
    return time.perf_counter() - began


def _himach(*words: object) -> None:
    subprocess.run([sys.executable, "-P", "-m", "himach", *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def _loop(pattern: str, topology: Path, processes: int) -> tuple[float, Any]:
    """Return how long the loop over MDAnalysis took, and RMSD and radius of gyration of each frame, (frames, 2)."""
    files = [str(path) for path in sorted(Path(pattern).parent.glob(Path(pattern).name))]
    began = time.perf_counter()
    with get_context("fork").Pool(processes) as pool:
        found = pool.starmap(_of_one, [(file, str(topology)) for file in files], chunksize=4)
    return time.perf_counter() - began, np.concatenate(found)


def _of_one(file: str, topology: str) -> Any:
    import MDAnalysis as mda
    from MDAnalysis.analysis.rms import RMSD

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        universe = mda.Universe(topology, file)
        deviations = RMSD(universe.atoms).run().results.rmsd[:, 2]
        return np.stack([deviations, [universe.atoms.radius_of_gyration() for _ in universe.trajectory]], axis=1)


def _map(place: Path, members: int, ranks: int) -> None:
    """Compare the map phases of an ensemble and of one trajectory of the same frames, both cached, in turn."""
    pattern, topology = simulations(members)
    whole = _whole(pattern, topology, members)
    store = place / "mapped"
    seconds: dict[str, list[float]] = {"ensemble": [], "one": []}
    with himach.Ranks(ranks) as stay:
        for turn in range(4):
            given: dict[str, Any] = {"cache": str(store), "ranks": stay, "progress": False}
            one = himach.run(SHAPE, whole, topology, **given)
            many = himach.run(SHAPE, ensemble=pattern, topology=topology, **given)
            if turn:  # the first one fills the cache
                seconds["one"].append(one.record["seconds"]["map"])
                seconds["ensemble"].append(many.record["seconds"]["map"])
    found = {name: median(each) for name, each in seconds.items()}
    beside = f"{found['ensemble']:.2f} s / {found['one']:.2f} s = {found['ensemble'] / found['one']:.2f}"
    report("map phase beside that of one trajectory", beside, f"{MAP_BAR:g}")


def _memory(place: Path, many: int, ranks: int) -> None:
    """Tell the memory of a rank that runs very many members of a few topologies."""
    table = _variants(place, many)
    _himach("run", SHAPE, "--ensemble", table, "-n", ranks, "--cache", "off", "-q", "--out", place / "many")
    largest = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    report(
        f"largest rank of {many:,} members, {TOPOLOGIES} topologies",
        f"{largest / 1e6:.0f} MB",
        f"{MEMORY_BAR / 1e6:.0f} MB",
    )


def _kills(place: Path, members: int, kills: int, ranks: int) -> None:
    """Kill a run at random moments, going on each time, and compare what the last one leaves with a run in peace."""
    pattern, topology = simulations(min(members, 100))
    words = ["run", SHAPE, "--ensemble", pattern, "-s", topology, "-n", ranks, "--cache", "off", "-q"]
    began = time.perf_counter()
    _himach(*words, "--out", place / "peace")
    seconds, chance = time.perf_counter() - began, random.Random(7)
    differing = 0
    for number in range(kills):
        out, pairs = place / f"killed{number}", place / f"pairs{number}"
        command = [sys.executable, "-P", "-m", "himach", *map(str, [*words, "--pairs", pairs, "--out", out])]
        with subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL) as run:
            time.sleep(chance.uniform(0, seconds))
            os.killpg(run.pid, signal.SIGKILL)
        _himach(*words, "--pairs", pairs, "--out", out)
        differing += _content(out) != _content(place / "peace")
    report(f"outcomes that differ after kills at {kills} moments", str(differing), "0")


def _content(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir() if path.name != "run.json"}


# -- simulations -------------------------------------------------------------------------------------------------------


def simulations(members: int) -> tuple[str, Path]:
    """Return a pattern of that many XTC files of AdK, and their topology; they are made once."""
    place = folder() / f"adk-members-{members}"
    topology = place / "adk.psf"
    if not (place / "done").exists():
        place.mkdir(exist_ok=True)
        universe, frames = _adk()
        topology.write_bytes(Path(universe.filename).read_bytes())
        chance = np.random.default_rng(28)
        for number in range(members):
            _write(place / f"r{number:05}.xtc", universe.atoms, frames, number, FRAMES, chance)
        (place / "done").touch()
    return str(place / "r*.xtc"), topology


def _adk() -> tuple[Any, list[Any]]:
    import MDAnalysis as mda

    try:
        from MDAnalysisTests.datafiles import DCD, PSF
    except ImportError:
        raise himach.UsageError("this benchmark needs the AdK trajectory: pip install MDAnalysisTests") from None
    universe = mda.Universe(PSF, DCD)
    return universe, [ts.positions.copy() for ts in universe.trajectory]


def _write(path: Path, atoms: Any, frames: Sequence[Any], begin: int, n_frames: int, chance: Any) -> None:
    """Write an XTC of frames in a cycle, with a little noise."""
    import MDAnalysis as mda

    with mda.Writer(str(path), atoms.n_atoms) as writer:
        for number in range(n_frames):
            positions = frames[(begin + number) % len(frames)][: atoms.n_atoms]
            atoms.positions = positions + chance.normal(scale=0.05, size=positions.shape).astype(np.float32)
            ts = atoms.universe.trajectory.ts
            ts.time, ts.frame = 10.0 * number, number
            writer.write(atoms)


def _whole(pattern: str, topology: Path, members: int) -> Path:
    """Return one XTC of the frames of all members."""
    import MDAnalysis as mda

    path = folder() / f"adk-members-{members}.xtc"
    if not path.exists():
        temporary = path.with_suffix(".tmp.xtc")
        at = 0
        with mda.Writer(str(temporary), mda.Universe(topology).atoms.n_atoms) as writer:
            for file in sorted(Path(pattern).parent.glob(Path(pattern).name)):
                universe = mda.Universe(topology, str(file))
                for ts in universe.trajectory:
                    ts.time, ts.frame, at = 10.0 * at, at, at + 1
                    writer.write(universe.atoms)
        temporary.rename(path)
    return path


def _variants(place: Path, many: int) -> Path:
    """Return a table of very many members, which are a few short simulations, each of a topology of its own."""
    universe, frames = _adk()
    chance = np.random.default_rng(29)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a PDB has and a PSF has not
        for number in range(TOPOLOGIES):
            atoms = universe.atoms[: universe.atoms.n_atoms - number]
            atoms.write(str(place / f"top{number}.pdb"))
            _write(place / f"v{number}.xtc", atoms, frames, number, SHORT, chance)
    rows = [f"m{number},v{number % TOPOLOGIES}.xtc,top{number % TOPOLOGIES}.pdb" for number in range(many)]
    table = place / "many.csv"
    table.write_text("\n".join(["name,trajectory,topology", *rows]))
    return table
