"""MDAnalysis's own analyses on himach's ranks, beside its multiprocessing with as many workers; reading by himach://.

Each is a whole process, from Python's start to the last result, run in turns; both must give the same bytes. Beside
the bar stands the ceiling: how fast MDAnalysis's multiprocessing would be if reading took no time, that is the process
with nearly no frames, and the analysis's own code over frames that lie in memory. To be faster takes other code.
"""

import hashlib
import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from time import perf_counter

import click

from ..harness.data import adk
from ..harness.interleave import scratch
from ..harness.options import DIRECTORY, RANKS, only, repeats

__all__ = ["main"]

#: What each question makes of a Universe `u`, how many frames it is asked of, and the bars: cached, from the file.
QUESTIONS: Mapping[str, tuple[str, int, float, float]] = {
    "RMSD": ("from MDAnalysis.analysis.rms import RMSD as A; a = A(u)", 10_000, 3.0, 1.0),
    "InterRDF": (
        "from MDAnalysis.analysis.rdf import InterRDF as A; "
        "o = u.select_atoms('name OW and resid 1-1500'); a = A(o, o)",
        1000, 1.0, 1.0,
    ),
    "HydrogenBondAnalysis": (
        "from MDAnalysis.analysis.hydrogenbonds import HydrogenBondAnalysis as A; "
        "a = A(u, donors_sel='protein and name N', hydrogens_sel='protein and name H', "
        "acceptors_sel='protein and name O')",
        1000, 1.0, 1.0,
    ),
    "Ramachandran": (
        "from MDAnalysis.analysis.dihedrals import Ramachandran as A; a = A(u.select_atoms('protein'))", 1000, 1.0, 1.0,
    ),
    "DSSP": ("from MDAnalysis.analysis.dssp import DSSP as A; a = A(u.select_atoms('protein'))", 500, 1.0, 1.0),
}  # fmt: skip

IN_MEMORY_FRAMES = 50  # of the ceiling: 29 MB

SCRIPT = """
import sys, warnings
warnings.simplefilter("ignore")
import MDAnalysis as mda
how, topology, trajectory, stop, workers = sys.argv[1:6]
u = mda.Universe(topology, trajectory)
{make}
if __name__ == "__main__":
    if how == "himach":
        import himach.mdanalysis
        himach.mdanalysis.run(a, stop=int(stop), ranks=int(workers), progress=False)
    else:
        a.run(stop=int(stop), backend="multiprocessing", n_workers=int(workers))
    import hashlib, numpy as np
    for name in sorted(a.results):
        value = a.results[name]
        if isinstance(value, np.ndarray):
            print(name, hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest())
"""

IN_MEMORY = """
import sys, time, warnings
warnings.simplefilter("ignore")
import MDAnalysis as mda
topology, trajectory, stop = sys.argv[1:4]
u = mda.Universe(topology, trajectory)
u.transfer_to_memory(stop=int(stop))
{make}
a.run(stop=1)  # what is done once
times = []
for _ in range(3):
    begun = time.process_time()
    a.run()
    times.append(time.process_time() - begun)
print(min(times) / int(stop))
"""

READING = """
import sys, warnings, resource
warnings.simplefilter("ignore")
import MDAnalysis as mda
import himach.mdanalysis
topology, trajectory, repeats = sys.argv[1:4]
def seconds(u):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    for ts in u.trajectory:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
xtc, cached = mda.Universe(topology, trajectory), mda.Universe(topology, "himach://" + trajectory)
seconds(cached)
for _ in range(int(repeats)):
    print(seconds(xtc), seconds(cached))
"""


@click.option("--frames", type=click.IntRange(min=3), help="Use no more frames than that.")
@repeats(3)
@only("RMSD, InterRDF, HydrogenBondAnalysis, Ramachandran, DSSP or reading")
@RANKS
@DIRECTORY
def main(frames: int | None, repeats: int, ranks: int, only: tuple[str, ...], directory: Path | None) -> None:
    """MDAnalysis's own analyses on ranks, beside its multiprocessing; reading by himach:// beside XTC."""
    with scratch(directory) as place:
        for name, (make, usual, bar, bar_from_file) in QUESTIONS.items():
            if not only or name in only:
                _ask(place, name, make, min(usual, frames or usual), (bar, bar_from_file), repeats, ranks)
        if not only or "reading" in only:
            _read(place, min(1000, frames or 1000), repeats)


def _ask(place: Path, name: str, make: str, frames: int, bars: tuple[float, float], repeats: int, ranks: int) -> None:
    """Print how much faster an analysis is, whole process: wall time, and processor time of all its processes."""
    topology, trajectory = adk(frames)
    script = place / f"{name}.py"
    script.write_text(SCRIPT.format(make=make))
    words = [str(topology), str(trajectory), str(frames), str(ranks)]
    wall: dict[str, list[float]] = {"stock": [], "first": [], "cached": []}
    spent: dict[str, list[float]] = {"stock": [], "first": [], "cached": []}
    answers = set()
    for turn in range(repeats):
        store = place / f"store-{name}-{turn}"
        for kind, times in wall.items():
            how = "stock" if kind == "stock" else "himach"
            if kind == "cached":
                _keep_all(trajectory, store)
            seconds, processor, told = _timed([sys.executable, str(script), how, *words], store)
            times.append(seconds)
            spent[kind].append(processor)
            answers.add(told)
        subprocess.run(["rm", "-rf", str(store)], check=True)
    if len(answers) > 1:
        raise click.ClickException(f"{name}: the numbers are not the same")
    click.echo(f"{name}, {frames:,} frames, {ranks} ranks beside {ranks} workers; the same bytes")
    start, start_spent, _ = _timed([sys.executable, str(script), "stock", *words[:2], str(ranks), str(ranks)], place)
    own = frames * _own_time(place, name, make, words[:2], frames)
    ceilings = median(wall["stock"]) / (start + own / ranks), median(spent["stock"]) / (start_spent + own)
    click.echo(
        f"  ceiling, the analysis's own code over frames in memory: {ceilings[0]:.2f} times as fast; processor time "
        f"{ceilings[1]:.2f} times less"
    )
    for kind, bar in (("cached", bars[0]), ("first", bars[1])):
        ratio = median(wall["stock"]) / median(wall[kind])
        processors = median(spent["stock"]) / median(spent[kind])
        said = "met" if ratio >= bar else "missed"
        click.echo(
            f"  {'cached' if kind == 'cached' else 'from XTC, kept on the way'}: {median(wall[kind]):.2f} s beside "
            f"{median(wall['stock']):.2f} s, {ratio:.2f} times as fast (bar {bar:g}: {said}); "
            f"processor time {processors:.2f} times less"
        )


def _keep_all(trajectory: Path, store: Path) -> None:
    """Have the store hold every frame, on the disk: the first run keeps what a slow disk takes in its time."""
    environ = {**os.environ, "HIMACH_CACHE": str(store)}
    command = [sys.executable, "-m", "himach", "stage", str(trajectory), "-q"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(done.stderr)
    os.sync()


def _own_time(place: Path, name: str, make: str, files: list[str], frames: int) -> float:
    """Return the processor time that an analysis takes for a frame that lies in memory, s."""
    script = place / f"{name}-in-memory.py"
    script.write_text(IN_MEMORY.format(make=make))
    command = [sys.executable, str(script), *files, str(min(IN_MEMORY_FRAMES, frames))]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise click.ClickException(done.stderr)
    return float(done.stdout)


def _timed(command: list[str], store: Path) -> tuple[float, float, str]:
    """Run a command; return its wall time, the processor time of it and its children, and a digest of what it said."""
    environ = {**os.environ, "HIMACH_CACHE": str(store), "OMP_NUM_THREADS": "1"}
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    seconds, after = perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise click.ClickException(done.stderr)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, spent, hashlib.sha256(done.stdout.encode()).hexdigest()


def _read(place: Path, frames: int, repeats: int) -> None:
    """Print how much faster a script reads every frame, in one process."""
    topology, trajectory = adk(frames)
    script = place / "reading.py"
    script.write_text(READING)
    environ = {**os.environ, "HIMACH_CACHE": str(place / "store-reading")}
    command = [sys.executable, str(script), str(topology), str(trajectory), str(repeats)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(done.stderr)
    pairs = [tuple(map(float, line.split())) for line in done.stdout.splitlines()]
    ratio = median(theirs / ours for theirs, ours in pairs)
    ours, theirs = median(ours for _, ours in pairs), median(theirs for theirs, _ in pairs)
    click.echo(
        f"for ts in u.trajectory, {frames:,} frames, one core: himach:// {1e3 * ours / frames:.3f} ms a frame beside "
        f"XTC {1e3 * theirs / frames:.3f} ms (user time), {ratio:.1f} times as fast "
        f"(bar 8: {'met' if ratio >= 8 else 'missed'})"
    )
