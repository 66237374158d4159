"""``himach bench intervals``: what intervals cost, of every built-in analysis, beside a run without them."""

import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

import click

import himach
from himach.examples import load, sample

from ..harness.data import folder
from ..harness.figures import report
from ..harness.options import only

__all__ = ["main"]

BAR = 1.05
#: Of analyses whose map() or reduce() adds up what intervals need: the same without it.
PLAIN = {"rdf": "PlainRdf", "msd": "PlainMsd"}
#: Sample and parameters of each built-in.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "water-residence": ("nanopore", {"solute": "name K"}),
    "ion-permeation": ("nanopore", {"top": "resname GRA and prop z > 26", "bottom": "resname GRA and prop z < 20"}),
    "rmsd": ("villin", {}),
    "rdf": ("nanopore", {"a": "name K"}),
    "msd": ("nanopore", {"selection": "name K"}),
    "hydrogen-bonds": ("villin", {}),
    "rmsf": ("villin", {}),
    "radius-of-gyration": ("villin", {}),
    "geometry": ("villin", {"distances": ["ends=resid 1; resid 35"]}),
    "sasa": ("villin", {"by": "residue"}),
    "contacts": ("villin", {}),
    "secondary-structure": ("villin", {}),
    "clusters": ("villin", {"cutoff": 0.9}),
    "pairwise-rmsd": ("villin", {}),
    "native-contacts": ("villin", {}),
    "pca": ("villin", {}),
    "density": ("nanopore", {}),
    "dipole-orientation": ("water", {"charges": ["name OW = -0.8476", "name HW1 HW2 = 0.4238"]}),
    "persistence-length": ("villin", {"longest": 10}),
    "dielectric": ("water", {"charges": ["name OW = -0.8476", "name HW1 HW2 = 0.4238"]}),
    "velocity-autocorrelation": ("argon", {"selection": "all", "tau_max": 60}),
    "lipid-order": ("membrane", {}),
    "membrane": ("membrane", {}),
}


class Seconds(NamedTuple):
    """Of a run: its map phase, its reduce phase, all of it."""

    map: float
    reduce: float
    whole: float


@only(", ".join(CASES))
@click.option("--frames", type=click.IntRange(min=100), default=10_000, show_default=True, help="Frames of each run.")
@click.option("--repeats", type=click.IntRange(min=1), default=7, show_default=True, help="Pairs of runs.")
def main(only: Sequence[str], frames: int, repeats: int) -> None:
    """Time every built-in with intervals and without, in turn: map phase, reduce phase, whole run.

    What rdf adds up in map(), and msd in reduce(), stands beside the same without it (plain).
    """
    print(f"{frames:,} frames, one rank, medians of {repeats} runs in turn")
    for name in only or CASES:
        which, parameters = CASES[name]
        trajectory, topology = repeated(which, frames)
        usual = partial(load(name), **parameters)
        runs: dict[str, Callable[[], himach.Analysis]] = {"0.95": usual, "off": usual}
        if name in PLAIN:
            runs["plain"] = partial(
                getattr(import_module("himach.benchmarks.analyses.plain"), PLAIN[name]), **parameters
            )
        times: dict[str, list[Seconds]] = {kind: [] for kind in runs}
        for _ in range(repeats):
            for kind, make in runs.items():
                times[kind].append(timed(make(), trajectory, topology, None if kind == "0.95" else "off"))
        for phase in Seconds._fields:
            found = {kind: median(getattr(one, phase) for one in of) for kind, of in times.items()}
            for other in [*runs][1:] if phase == "map" else [*runs][-1:]:
                beside = f"{found['0.95']:.3f} s / {found[other]:.3f} s = {found['0.95'] / found[other]:.3f}"
                report(f"{name}: {phase} beside {other}", beside, f"{BAR:g}" if phase == "map" else "none")


def timed(analysis: himach.Analysis, trajectory: Path, topology: Path, confidence: Literal["off"] | None) -> Seconds:
    """Return how long a run took."""
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of passages that are none where the sample begins anew
        record = himach.run(analysis, trajectory, topology, cache="off", confidence=confidence, progress=False).record
    return Seconds(record["seconds"]["map"], record["seconds"]["reduce"], time.perf_counter() - began)


def repeated(which: str, frames: int) -> tuple[Path, Path]:
    """Return trajectory and topology of a sample, over and over to so many frames; the trajectory is made once."""
    import MDAnalysis as mda

    trajectory, topology = sample(which)
    path = folder() / f"{which}-{frames}.{'trr' if which == 'argon' else 'xtc'}"  # argon has velocities
    if not path.exists():
        source = mda.Universe(topology)
        source.load_new(str(trajectory), refresh_offsets=False)
        temporary = path.with_stem(f"{path.stem}-partial")
        with mda.Writer(str(temporary), source.atoms.n_atoms) as writer:
            for i in range(frames):
                ts = source.trajectory[i % len(source.trajectory)]
                ts.time = float(i)
                writer.write(source.atoms)
        temporary.rename(path)
    return path, topology
