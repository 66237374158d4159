"""``himach bench scaling``: how the time of a run grows with frames, atoms, keys and ranks.

Each sweep varies one of these and keeps the others; its points are run in turn. All read from the cache. A table tells
the seconds of the phases, and the power of the varied number with which the phase that it bears on grows: 1 is linear,
0 constant.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

import himach.benchmarks
from himach.bench import limits
from himach.bench.contest import Contest, Question
from himach.bench.figures import markdown_table
from himach.bench.whole import Contender, Times
from himach.errors import UsageError, nearest
from himach.output.files import write_bytes

__all__ = ["SWEEPS", "Sweep", "main", "power"]

PHASES = ("map", "shuffle", "reduce", "total")
FULL_REPEATS = 3


@dataclass(frozen=True)
class Sweep:
    """One sweep: what is varied, what is kept, and the seconds of each point.

    Attributes
    ----------
    varied, kept
        In words.
    points
        The values of what is varied.
    times
        Seconds by point (as text) and phase.
    phase
        The phase that the varied number bears on.
    machine
        Where it was measured.
    trial
        Whether frames or turns were cut short.
    """

    varied: str
    kept: str
    points: Sequence[int]
    times: Times
    phase: str = "map"
    machine: str = field(default_factory=limits.machine)
    trial: bool = False

    def markdown(self) -> str:
        """Return the table of medians."""
        lines = [
            [f"{point:,}", *(f"{self.median(point, phase):.3f}" for phase in PHASES), self._spread(point)]
            for point in self.points
        ]
        head = [self.varied, *(f"{phase} (s)" for phase in PHASES), f"{self.phase}, spread"]
        turns = len(next(iter(self.times.values()))["map"])
        about = f"{self.kept}; {self.machine}; medians of {turns} turns."
        if self.trial:
            about += " **A trial**, with fewer frames or turns than are meant."
        parts = [f"### Time by {self.varied}", about, markdown_table(head, lines)]
        if len(self.points) > 1:
            middle = [self.median(point, self.phase) for point in self.points]
            parts.append(
                f"The {self.phase} phase grows with {self.varied} to the power {power(self.points, middle):.2f}."
            )
        return "\n\n".join(parts)

    def median(self, point: int, phase: str) -> float:
        """Return the median of a phase at a point."""
        return statistics.median(self.times[str(point)][phase])

    def _spread(self, point: int) -> str:
        values = self.times[str(point)][self.phase]
        return f"{min(values):.3f} to {max(values):.3f}"


def main(
    only: Sequence[str] = (),
    frames: int | None = None,
    repeats: int = 3,
    ranks: int = 2,
    out: Path | None = None,
    directory: Path | None = None,
) -> None:
    """Measure the sweeps, print their tables, and write ``scaling.md`` and ``scaling.json``.

    Parameters
    ----------
    only
        Names of the sweeps; all by default.
    frames
        The most frames that any sweep may use.
    repeats
        Turns behind each median.
    ranks
        Ranks of the sweeps that do not vary them.
    out
        Folder of the results; ``himach-bench`` in the current folder by default.
    directory
        Where stores are made; None for ``/var/tmp``. It needs 8 GB for all sweeps in full.

    Raises
    ------
    UsageError
        If there is no such sweep.
    """
    for name in only:
        if name not in SWEEPS:
            raise UsageError(f"there is no sweep {name!r}{nearest(name, SWEEPS)}; there are {', '.join(SWEEPS)}")
    out = out or Path("himach-bench")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory or "/var/tmp", prefix="himach-bench-") as place:
        contest = Contest(Path(place), {}, ranks, repeats, frames)
        sweeps = _load(out / "scaling.json")
        for name in only or SWEEPS:
            print(f"{name} ...", file=sys.stderr, flush=True)
            sweeps[name] = replace(SWEEPS[name](contest), trial=frames is not None or repeats < FULL_REPEATS)
            _save(out, sweeps)
    print((out / "scaling.md").read_text())


def power(points: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the power of a number with which a time grows, by least squares of the logarithms."""
    return float(np.polyfit(np.log(points), np.log(seconds), 1)[0])


def _frames(contest: Contest) -> Sweep:
    data = contest.data(10_000)
    points = sorted({max(data.frames // part, 2) for part in (16, 8, 4, 2, 1)})
    question = Question("rmsd", {"selection": "name CA"})
    sides = {n: contest.himach(str(n), question, data.first(n), contest.store(data), out=f"f{n}") for n in points}
    return _sweep("frames", f"C-alpha RMSD, {contest.ranks} ranks", contest, sides)


def _atoms(contest: Contest) -> Sweep:
    data = contest.data(1000)
    store = contest.store(data)
    sides = {
        n: contest.himach(str(n), Question("rmsd", {"selection": f"index 0:{n - 1}"}), data, store, out=f"a{n}")
        for n in (1_500, 3_000, 6_000, 12_000, 24_000, 47_681)
    }
    return _sweep("atoms", f"RMSD of the first atoms, {data.frames:,} frames, {contest.ranks} ranks", contest, sides)


def _keys(contest: Contest) -> Sweep:
    data = contest.data(1000)
    store = contest.store(data)
    script = str(himach.benchmarks.FOLDER / "analyses" / "keys.py")
    sides = {
        n: contest.himach(str(n), Question(script, {"keys": n}), data, store, out=f"k{n}")
        for n in (100, 1_000, 10_000, 100_000, 1_000_000)
    }
    kept = f"1,000 pairs of random keys and float32 values a frame, {data.frames:,} frames, {contest.ranks} ranks"
    return replace(_sweep("keys", kept, contest, sides), phase="reduce")


def _ranks(contest: Contest) -> Sweep:
    data = contest.data(1000)
    store = contest.store(data)
    question = Question("water-residence", {"water": "name OW", "tau_max": min(20, data.frames - 1)})
    cores = len(os.sched_getaffinity(0))
    sides = {
        n: contest.himach(str(n), question, data, store, ranks=n, out=f"r{n}") for n in sorted({1, 2, cores, 2 * cores})
    }
    return _sweep("ranks", f"Water residence, {data.frames:,} frames, {cores} cores", contest, sides)


#: The sweeps by name.
SWEEPS: Mapping[str, Callable[[Contest], Sweep]] = {
    "frames": _frames,
    "atoms": _atoms,
    "keys": _keys,
    "ranks": _ranks,
}


def _sweep(varied: str, kept: str, contest: Contest, sides: Mapping[int, Contender]) -> Sweep:
    # The frames were staged just now, so that a first round off the clock would make nothing warmer.
    return Sweep(varied, kept, list(sides), contest.run([replace(side, warm=False) for side in sides.values()]))


def _load(path: Path) -> dict[str, Sweep]:
    saved = json.loads(path.read_text()) if path.exists() else {}
    return {name: Sweep(**sweep) for name, sweep in saved.items()}


def _save(out: Path, sweeps: Mapping[str, Sweep]) -> None:
    page = "\n\n".join(sweeps[name].markdown() for name in SWEEPS if name in sweeps)
    saved = {name: asdict(sweep) for name, sweep in sweeps.items()}
    write_bytes(out / "scaling.md", f"{page}\n".encode())
    write_bytes(out / "scaling.json", f"{json.dumps(saved, indent=1)}\n".encode())
