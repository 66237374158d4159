"""``himach bench scaling``: how the time of a run grows with frames, atoms, keys and ranks.

Each sweep varies one of these and keeps the others; its points are run in turn. All read from the cache. A table tells
the seconds of the phases, and the power of the varied number with which the phase that it bears on grows: 1 is linear,
0 constant.
"""

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from .. import FOLDER
from ..harness import limits
from ..harness.contest import Contest, Data, Question
from ..harness.figures import markdown_table
from ..harness.interleave import Times, scratch
from ..harness.options import DIRECTORY, OUT, RANKS, only, repeats
from ..harness.results import chosen, keep, kept, trial

__all__ = ["SWEEPS", "Sweep", "main", "power"]

PHASES = ("map", "shuffle", "reduce", "total")


@dataclass(frozen=True)
class Sweep:
    """One sweep: what is varied and what is kept, in words; the values of what is varied; seconds by value and phase.

    `phase` is the one that the varied number bears on; `trial` tells whether frames or turns were cut short.
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
            grows = power(self.points, [self.median(point, self.phase) for point in self.points])
            parts.append(f"The {self.phase} phase grows with {self.varied} to the power {grows:.2f}.")
        return "\n\n".join(parts)

    def median(self, point: int, phase: str) -> float:
        """Return the median of a phase at a point."""
        return statistics.median(self.times[str(point)][phase])

    def _spread(self, point: int) -> str:
        values = self.times[str(point)][self.phase]
        return f"{min(values):.3f} to {max(values):.3f}"


@only("frames, atoms, keys or ranks")
@click.option("--frames", type=click.IntRange(min=3), help="Use no more frames than that in any sweep.")
@repeats(3)
@RANKS
@DIRECTORY
@OUT
def main(only: Sequence[str], frames: int | None, repeats: int, ranks: int, out: Path, directory: Path | None) -> None:
    """Tell how the time of a run grows with frames, atoms, keys and ranks."""
    names = chosen("sweep", only, SWEEPS)
    saved = kept(out, "scaling")
    with scratch(directory) as place:
        contest = Contest(place, {}, ranks, repeats, frames)

        def measure(name: str) -> None:
            saved[name] = asdict(replace(SWEEPS[name](contest), trial=trial(frames, repeats)))

        keep(out, "scaling", saved, names, measure, page)


def page(saved: Mapping[str, Any]) -> str:
    """Return the tables of all sweeps that were kept."""
    return "\n\n".join(Sweep(**saved[name]).markdown() for name in SWEEPS if name in saved)


def power(points: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the power of a number with which a time grows, by least squares of the logarithms."""
    return float(np.polyfit(np.log(points), np.log(seconds), 1)[0])


def _frames(contest: Contest) -> Sweep:
    data = contest.data(10_000)
    contest.store(data)  # of all frames, before any point asks for some
    points = sorted({max(data.frames // part, 2) for part in (16, 8, 4, 2, 1)})
    sides = {n: (Question("rmsd", {"selection": "name CA"}), data.first(n), contest.ranks) for n in points}
    return _sweep("frames", f"C-alpha RMSD, {contest.ranks} ranks", contest, sides)


def _atoms(contest: Contest) -> Sweep:
    data = contest.data(1000)
    points = (1_500, 3_000, 6_000, 12_000, 24_000, 47_681)
    sides = {n: (Question("rmsd", {"selection": f"index 0:{n - 1}"}), data, contest.ranks) for n in points}
    return _sweep("atoms", f"RMSD of the first atoms, {data.frames:,} frames, {contest.ranks} ranks", contest, sides)


def _keys(contest: Contest) -> Sweep:
    data = contest.data(1000)
    script = str(FOLDER / "analyses" / "keys.py")
    points = (100, 1_000, 10_000, 100_000, 1_000_000)
    sides = {n: (Question(script, {"keys": n}), data, contest.ranks) for n in points}
    kept = f"1,000 pairs of random keys and float32 values a frame, {data.frames:,} frames, {contest.ranks} ranks"
    return _sweep("keys", kept, contest, sides, "reduce")


def _ranks(contest: Contest) -> Sweep:
    data = contest.data(1000)
    question = Question("water-residence", {"water": "name OW", "tau_max": min(20, data.frames - 1)})
    cores = len(os.sched_getaffinity(0))
    sides = {n: (question, data, n) for n in sorted({1, 2, cores, 2 * cores})}
    return _sweep("ranks", f"Water residence, {data.frames:,} frames, {cores} cores", contest, sides)


#: The sweeps by name.
SWEEPS = {"frames": _frames, "atoms": _atoms, "keys": _keys, "ranks": _ranks}


def _sweep(
    varied: str, kept: str, contest: Contest, points: Mapping[int, tuple[Question, Data, int]], phase: str = "map"
) -> Sweep:
    """Time a question about data on so many ranks for each value of what is varied."""
    sides = [
        # The frames were staged just now, so that a first round off the clock would make nothing warmer.
        replace(contest.himach(str(n), question, data, ranks=ranks, out=f"{varied}{n}"), warm=False)
        for n, (question, data, ranks) in points.items()
    ]
    return Sweep(varied, kept, list(points), contest.run(sides), phase)
