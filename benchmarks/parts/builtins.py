"""``himach bench builtins``: built-in analyses beside MDTraj and MDAnalysis, each, and as the set of an archive."""

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt

import himach
from himach.errors import HimachError
from himach.examples import load

from ..harness.data import adk, folder, samples
from ..harness.figures import report
from ..harness.interleave import checked, scratch
from ..harness.options import DIRECTORY, RANKS, only
from ..harness.results import chosen

__all__ = ["main"]

PEER = Path(__file__).parent.parent / "peers" / "builtins.py"
PROTEIN, ALPHAS = "protein", "protein and name CA"
CLUSTER_SECONDS, CLUSTER_MEMORY = 40.0, 500e6


class Question(NamedTuple):
    """One analysis beside its peers: its parameters, how its answer is read, how much faster it shall be."""

    name: str
    parameters: Mapping[str, Any]
    #: Table and columns whose sum is one number a frame, or one of an atom.
    answer: Callable[[himach.Result], npt.NDArray[np.float64]]
    bar: float
    #: What a number may differ by.
    tolerance: float
    peers: Sequence[str] = ("MDTraj", "MDAnalysis")


def column(table: str, name: str) -> Callable[[himach.Result], npt.NDArray[np.float64]]:
    """Return what reads one column of a table."""
    return lambda result: np.asarray(result[table][name], dtype=np.float64)


def angles(result: himach.Result) -> npt.NDArray[np.float64]:
    """Return the sum of all angles of each frame."""
    table = result["geometry"]
    columns = [np.asarray(table[name], dtype=np.float64) for name in table if name != "time_ps"]
    return np.asarray(np.sum(columns, axis=0))


QUESTIONS = {
    "sasa": Question("sasa", {"selection": PROTEIN}, column("sasa", "sasa"), 12, 15.0, ("MDTraj",)),
    "dssp": Question("secondary-structure", {"selection": PROTEIN}, column("content", "H"), 2, 0.02),
    "contacts": Question("contacts", {"a": PROTEIN, "b": PROTEIN}, column("counts", "contacts"), 5, 0.5),
    "rg": Question("radius-of-gyration", {"selection": PROTEIN, "weights": "none"}, column("rg", "rg"), 5, 1e-3),
    "rmsf": Question("rmsf", {"selection": ALPHAS, "reference": "first"}, column("rmsf", "rmsf"), 10, 5e-3),
    "dihedrals": Question("geometry", {"dihedrals": ["phi:protein", "psi:protein"]}, angles, 3, 0.5),
}
#: Analyses and parameters of the archive's set.
ARCHIVE: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("rmsd", {"selection": ALPHAS}),
    ("radius-of-gyration", {"selection": PROTEIN}),
    ("rmsf", {"selection": ALPHAS}),
    ("sasa", {"selection": PROTEIN}),
    ("hydrogen-bonds", {}),
    ("secondary-structure", {}),
    ("contacts", {"a": PROTEIN, "b": PROTEIN}),
    ("pca", {"selection": ALPHAS}),
)


@only(f"{', '.join(QUESTIONS)}, clusters or archive")
@click.option("--frames", type=click.IntRange(min=10), default=10_000, show_default=True, help="Frames of AdK.")
@RANKS
@DIRECTORY
def main(only: Sequence[str], frames: int, ranks: int, directory: Path | None) -> None:
    """Time built-ins over AdK (3,341 atoms of protein), cached, on one core beside MDTraj and MDAnalysis.

    Then clusters, and the set of eight analyses that an archive runs, on all ranks.
    """
    parts: dict[str, Callable[[Path], None]] = {
        name: lambda place, question=question, which=name: _beside(place, which, question, frames)  # type: ignore[misc]
        for name, question in QUESTIONS.items()
    }
    parts |= {
        "clusters": lambda place: _clusters(place, frames, ranks),
        "archive": lambda place: _archive(place, frames, ranks),
    }
    print(f"{frames:,} frames of AdK; peers read the protein alone")
    with scratch(directory) as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in chosen("part", only, parts):
            parts[name](place)


def protein(frames: int) -> tuple[Path, Path]:
    """Return topology (PDB) and trajectory (XTC) of the protein alone, whole, made at the first call."""
    xtc = folder() / f"adk-protein-{frames}.xtc"
    pdb = xtc.with_suffix(".pdb")
    if not xtc.exists():
        _, tpr, _ = samples()
        trajectory = adk(frames)[1]
        himach.convert(trajectory, tpr, out=xtc, select=PROTEIN, whole=True, cache="off", progress=False, force=True)
    return pdb, xtc


def peer(place: Path, tool: str, question: str, frames: int, workers: int = 1) -> tuple[float, Any]:
    """Return the seconds of a peer and its answer."""
    topology, trajectory = protein(frames)
    answer = place / "answer.txt"
    words = [sys.executable, "-P", PEER, tool, question, topology, trajectory, workers, answer]
    output = checked([str(word) for word in words], tool)
    return float(output.split()[-1]), np.loadtxt(answer)


def _beside(place: Path, which: str, question: Question, frames: int) -> None:
    """Time one analysis over cached frames, all but its start, beside its peers; compare the answers."""
    topology, trajectory = protein(frames)
    analysis = load(question.name)(**question.parameters)
    given: dict[str, Any] = {"cache": str(place / "store"), "progress": False}
    himach.run(analysis, trajectory, topology, **given)  # the first fills the cache
    result = himach.run(analysis, trajectory, topology, **given)
    seconds = result.record["seconds"]
    ours, found = seconds["total"] - seconds["startup"], question.answer(result)
    times = {}
    for tool in question.peers:
        times[tool], answer = peer(place, tool, which, frames)
        worst = float(np.abs(answer - found).max())
        allowed = f"{question.tolerance:g}" if tool == "MDTraj" else "none"
        report(f"{question.name}: largest difference from {tool}", f"{worst:.2g}", allowed)
        report(f"{question.name}: {tool}", f"{1e6 * times[tool] / frames:,.0f} µs a frame")
    report(f"{question.name}: himach", f"{1e6 * ours / frames:,.0f} µs a frame")
    report(f"{question.name}: beside the fastest", f"{min(times.values()) / ours:.1f} times", f"{question.bar:g}")


def _run(place: Path, words: Sequence[object]) -> tuple[float, float]:
    """Return the seconds of a whole run, and the bytes of its largest rank."""
    began = time.perf_counter()
    command = [sys.executable, "-P", "-m", "himach", "run", *map(str, words), "-q", "--cache", str(place / "store")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)  # of it and its ranks alone
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise HimachError(f"himach run ended with the exit code {process.returncode}")
    return time.perf_counter() - began, 1024 * used.ru_maxrss


def _clusters(place: Path, frames: int, ranks: int) -> None:
    """Time clusters of all frames by the deviation of C-alpha atoms."""
    topology, trajectory = adk(frames)
    words = ["clusters", "-t", trajectory, "-s", topology, "-p", f"selection={ALPHAS}", "-p", "cutoff=1", "-n", ranks]
    seconds, largest = _run(place, [*words, "--out", place / "clusters"])
    report(f"clusters: {frames:,} frames, {ranks} ranks", f"{seconds:.1f} s", f"{CLUSTER_SECONDS:g} s")
    report("clusters: largest rank", f"{largest / 1e6:.0f} MB", f"{CLUSTER_MEMORY / 1e6:.0f} MB")


def _archive(place: Path, frames: int, ranks: int) -> None:
    """Time the archive's set over all frames in one pass, beside its peers over the frames that it allows them."""
    topology, trajectory = adk(frames)
    words: list[object] = [name for name, _ in ARCHIVE]
    for name, parameters in ARCHIVE:
        for key, value in parameters.items():
            words += ["-p", f"{name}.{key}={value}"]
    words += ["-t", trajectory, "-s", topology, "-n", ranks]
    theirs, each = peer(place, "all", "archive", frames, ranks)
    report(f"the set by MDTraj and MDAnalysis, {ranks} processes", f"{theirs:.1f} s")
    report("of one process", f"{float(np.sum(each)):.1f} s")
    for turn in ("first", "second"):
        seconds, _ = _run(place, [*words, "--out", place / turn])
        report(f"the set over all frames, {turn} run, {ranks} ranks", f"{seconds:.1f} s", f"{theirs:.1f} s")
