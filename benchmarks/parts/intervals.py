"""``himach bench intervals``: what intervals cost, of every built-in analysis, beside a run without them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, Literal

import click

import himach
from himach.examples import load, sample

from ..harness.data import folder
from ..harness.figures import report
from ..harness.options import only

__all__ = ["main"]

BAR = 1.05
#: Sample and parameters of each built-in.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "water-residence": ("nanopore", {"solute": "name K"}),
    "ion-permeation": ("nanopore", {"top": "resname GRA and prop z > 26", "bottom": "resname GRA and prop z < 20"}),
    "rmsd": ("villin", {}),
    "rdf": ("nanopore", {"a": "name K"}),
    "msd": ("nanopore", {"selection": "name K"}),
    "hydrogen-bonds": ("villin", {}),
}


@only(", ".join(CASES))
@click.option("--frames", type=click.IntRange(min=100), default=10_000, show_default=True, help="Frames of each run.")
@click.option("--repeats", type=click.IntRange(min=1), default=7, show_default=True, help="Pairs of runs.")
def main(only: Sequence[str], frames: int, repeats: int) -> None:
    """Time the map phase of every built-in with intervals and without, and the whole runs, in turn.

    That of rdf is beside one that adds all frames up in one sum, too.
    """
    print(f"{frames:,} frames, one rank, medians of {repeats} runs in turn")
    for name in only or CASES:
        which, parameters = CASES[name]
        trajectory, topology = repeated(which, frames)
        usual = partial(load(name), **parameters)
        runs: dict[str, Callable[[], himach.Analysis]] = {"0.95": usual, "off": usual}
        if name == "rdf":
            runs["one sum"] = partial(import_module("himach.benchmarks.analyses.summed").Summed, **parameters)
        times: dict[str, list[tuple[float, float]]] = {level: [] for level in runs}
        for _ in range(repeats):
            for level, make in runs.items():
                times[level].append(timed(make(), trajectory, topology, None if level == "0.95" else "off"))
        mapping, whole = ({level: median(one[i] for one in of) for level, of in times.items()} for i in range(2))
        for other in list(runs)[1:]:
            beside = f"{mapping['0.95']:.3f} s / {mapping[other]:.3f} s = {mapping['0.95'] / mapping[other]:.3f}"
            report(f"{name}: map phase beside {other}", beside, f"{BAR:g}")
        beside = f"{whole['0.95']:.3f} s / {whole['off']:.3f} s = {whole['0.95'] / whole['off']:.3f}"
        report(f"{name}: whole run beside off", beside)


def timed(
    analysis: himach.Analysis, trajectory: Path, topology: Path, confidence: Literal["off"] | None
) -> tuple[float, float]:
    """Return seconds of the map phase and of the whole run."""
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of passages that are none where the sample begins anew
        result = himach.run(analysis, trajectory, topology, cache="off", confidence=confidence, progress=False)
    return result.record["seconds"]["map"], time.perf_counter() - began


def repeated(which: str, frames: int) -> tuple[Path, Path]:
    """Return trajectory and topology of a sample, over and over to so many frames; the trajectory is made once."""
    import MDAnalysis as mda

    trajectory, topology = sample(which)
    path = folder() / f"{which}-{frames}.xtc"
    if not path.exists():
        source = mda.Universe(topology)
        source.load_new(str(trajectory), refresh_offsets=False)
        temporary = path.with_suffix(".tmp.xtc")
        with mda.Writer(str(temporary), source.atoms.n_atoms) as writer:
            for i in range(frames):
                ts = source.trajectory[i % len(source.trajectory)]
                ts.time = float(i)
                writer.write(source.atoms)
        temporary.rename(path)
    return path, topology
