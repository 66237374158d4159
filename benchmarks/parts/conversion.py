"""``himach bench convert``: trajectories written anew, beside gmx trjconv's passes and MDAnalysis's transformations."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

from ..harness.data import adk, samples
from ..harness.figures import report
from ..harness.interleave import scratch
from ..harness.options import DIRECTORY, RANKS, only
from ..harness.results import chosen

__all__ = ["main"]

STEPS = ["--whole", "--center", "protein", "--wrap", "molecules", "--fit", "name CA"]
#: Of trjconv, by the step: options, and the groups that it asks for.
PASSES = {
    "whole": (["-pbc", "whole"], "System"),
    "center": (["-center", "-pbc", "mol"], "Protein System"),
    "fit": (["-fit", "rot+trans"], "C-alpha System"),
}
GMX_BARS = {"first": 3, "cached": 5}
PEER_BAR, WHOLE_BAR = 20, 100
FEW = 4  # frames from which MDAnalysis's time is scaled up


@only("speed, whole, kills")
@click.option(
    "--frames", type=click.IntRange(min=FEW), default=10_000, show_default=True, help="Frames of AdK in water."
)
@click.option(
    "--kills", type=click.IntRange(min=1), default=200, show_default=True, help="Moments at which it is killed."
)
@RANKS
@DIRECTORY
def main(only: Sequence[str], frames: int, kills: int, ranks: int, directory: Path | None) -> None:
    """Time a conversion of AdK in water (47,681 atoms): whole, centred, wrapped, fitted in one pass; kill others."""
    parts: Mapping[str, Callable[[Path], None]] = {
        "speed": lambda place: _speed(place, frames, ranks),
        "whole": lambda place: _whole(),
        "kills": lambda place: _kills(place, kills, ranks),
    }
    with scratch(directory) as place:
        for name in chosen("part", only, parts):
            parts[name](place)


def _speed(place: Path, frames: int, ranks: int) -> None:
    """Time whole commands: over the trajectory, over cached frames; those of the peers."""
    trajectory, store = adk(frames)[1], place / "store"
    first, n_bytes = _command(place, trajectory, ranks, "off")
    staged = _himach("stage", trajectory, "-s", samples()[0], "-n", ranks, "--cache", store, "-q")
    assert staged.wait() == 0, "it cannot be staged"
    times = {"first": first, "cached": _command(place, trajectory, ranks, store)[0]}
    shutil.rmtree(store)
    print(f"{frames:,} frames of AdK in water, {n_bytes / 1e6:,.0f} MB, {ranks} ranks; whole, centred, wrapped, fitted")
    peers = {"MDAnalysis, scaled from few frames": (_mdanalysis(place, trajectory, frames), dict.fromkeys(times, 20))}
    if shutil.which("gmx"):
        peers["gmx trjconv, a pass for each step"] = _gmx(place, trajectory), GMX_BARS
    for name, seconds in times.items():
        report(f"{name}: seconds", f"{seconds:.1f} s, {n_bytes / 1e6 / seconds:.0f} MB/s")
    for peer, (seconds, bars) in peers.items():
        report(peer, f"{seconds:.1f} s")
        for name, own in times.items():
            report(f"{name}: beside {peer.partition(',')[0]}", f"{seconds / own:.1f} times as fast", f"{bars[name]}")


def _himach(*words: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "himach", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def _convert(place: Path, trajectory: Path, ranks: int, cache: object) -> subprocess.Popen[bytes]:
    given = [trajectory, "-s", samples()[1], "--out", place / "out.xtc", "--force", "-n", ranks, "--cache", cache]
    return _himach("convert", *given, "-q", *STEPS)


def _command(place: Path, trajectory: Path, ranks: int, cache: object) -> tuple[float, int]:
    """Return how long it took, and the bytes of what it wrote, which is deleted."""
    began = time.perf_counter()
    assert _convert(place, trajectory, ranks, cache).wait() == 0, "the conversion failed"
    seconds = time.perf_counter() - began
    n_bytes = (place / "out.xtc").stat().st_size
    (place / "out.xtc").unlink()
    return seconds, n_bytes


def _gmx(place: Path, trajectory: Path) -> float:
    """Return the seconds of trjconv's passes, each of what the one before wrote."""
    source, seconds = trajectory, 0.0
    for name, (words, groups) in PASSES.items():
        target = place / f"{name}.xtc"
        command = ["gmx", "trjconv", "-f", str(source), "-s", samples()[1], "-o", str(target), *words]
        began = time.perf_counter()
        subprocess.run(command, input="\n".join(groups.split()).encode(), check=True, capture_output=True)
        seconds += time.perf_counter() - began
        if source != trajectory:
            source.unlink()
        source = target
    source.unlink()
    return seconds


def _mdanalysis(place: Path, trajectory: Path, frames: int) -> float:
    """Return the seconds of MDAnalysis's transformations and its writer for so many frames, by a few of them."""
    import MDAnalysis as mda
    from MDAnalysis import transformations

    warnings.simplefilter("ignore")
    universe = mda.Universe(samples()[1], str(trajectory))
    atoms = universe.atoms
    atoms.masses = np.maximum(atoms.masses, 1e-9)  # of sites without any
    fitted = atoms.select_atoms("name CA")
    universe.trajectory.add_transformations(
        transformations.unwrap(atoms),
        transformations.center_in_box(atoms.select_atoms("protein")),
        transformations.wrap(atoms, compound="fragments"),
        transformations.fit_rot_trans(fitted, fitted.copy()),
    )
    began = time.perf_counter()
    with mda.Writer(str(place / "peer.xtc"), atoms.n_atoms) as writer:
        for _ in universe.trajectory[:FEW]:
            writer.write(atoms)
    return (time.perf_counter() - began) * frames / FEW


def _whole() -> None:
    """Time what makes the molecules of a frame whole, beside MDAnalysis's unwrap."""
    import MDAnalysis as mda
    from MDAnalysis import transformations

    from himach.transformations import Whole

    warnings.simplefilter("ignore")
    _, topology, trajectory = samples()
    universe = mda.Universe(topology, trajectory)
    ts = universe.trajectory.ts
    own, peer = Whole(universe.atoms), transformations.unwrap(universe.atoms)

    def seconds(step: Callable[[Any], Any], times: int) -> float:
        found = []
        for _ in range(times):
            some = ts.copy()
            began = time.perf_counter()
            step(some)
            found.append(time.perf_counter() - began)
        return median(found)

    ours, theirs = seconds(own, 20), seconds(peer, 1)
    n_atoms = universe.atoms.n_atoms
    report("--whole, an atom", f"{1e9 * ours / n_atoms:.1f} ns")
    report("MDAnalysis's unwrap, an atom", f"{1e9 * theirs / n_atoms:.0f} ns")
    report("--whole beside it", f"{theirs / ours:.0f} times as fast", f"{WHOLE_BAR}")


def _kills(place: Path, kills: int, ranks: int) -> None:
    """Kill conversions at random moments; count what they leave that is wrong, and compare what the last one writes."""
    trajectory = adk(200)[1]
    before = trajectory.read_bytes()
    began = time.perf_counter()
    assert _convert(place, trajectory, ranks, "off").wait() == 0, "the conversion failed"
    seconds, chance = time.perf_counter() - began, random.Random(30)
    peace = (place / "out.xtc").read_bytes()
    halves = 0
    for _ in range(kills):
        (place / "out.xtc").unlink(missing_ok=True)
        with _convert(place, trajectory, ranks, "off") as process:
            time.sleep(chance.uniform(0, seconds))
            os.killpg(process.pid, signal.SIGKILL)
        halves += (place / "out.xtc").exists() and (place / "out.xtc").read_bytes() != peace
    report(f"half files after kills at {kills} moments", str(halves), "0")
    assert _convert(place, trajectory, ranks, "off").wait() == 0, "the conversion failed"
    rest = [path for path in place.iterdir() if path.name not in ("out.xtc", "out.pdb")]
    differ = (place / "out.xtc").read_bytes() != peace
    report("files left after one in peace, and bytes that differ", f"{len(rest)}, {int(differ)}", "0, 0")
    report("inputs that changed", str(int(trajectory.read_bytes() != before)), "0")
