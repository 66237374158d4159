"""What it costs to watch that map() leaves unchanged what setup() left, beside the map phase without.

`main` prints it for water residence and the RMSD of C-alpha atoms over cached frames: runs with and without, in turn in
this process, and of those with it the time inside of `himach.engine.state_guard.Snapshot`.
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import click

import himach
from himach.analysis import Analysis
from himach.engine import mapping
from himach.engine.state_guard import Snapshot
from himach.errors import StateError
from himach.examples import load

from ..harness.contest import Contest, Data
from ..harness.interleave import scratch
from ..harness.options import DIRECTORY, repeats

if TYPE_CHECKING:
    from MDAnalysis import Universe

__all__ = ["main"]

#: At most this part of a short map phase.
BAR = 0.03
QUESTIONS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "water residence": ("water-residence", {"water": "name OW", "solute": "protein"}),
    "RMSD of C-alpha": ("rmsd", {"selection": "name CA"}),
}


class Timed(Snapshot):
    """Adds up the seconds inside."""

    seconds = 0.0
    looks = 0

    def __init__(self, analysis: Analysis, universe: "Universe | None") -> None:
        begun = perf_counter()
        super().__init__(analysis, universe)
        Timed.seconds += perf_counter() - begun

    def change(self) -> StateError | None:
        """Look as a snapshot does."""
        begun = perf_counter()
        found = super().change()
        Timed.seconds += perf_counter() - begun
        Timed.looks += 1
        return found


class Blind(Snapshot):
    """Watches nothing."""

    def __init__(self, analysis: Analysis, universe: "Universe | None") -> None:
        pass

    @property
    def due(self) -> bool:
        """Never."""
        return False

    def change(self) -> None:
        """See nothing."""


@click.option("--frames", type=click.IntRange(min=10), default=10_000, show_default=True, help="Frames of AdK.")
@repeats(9)
@DIRECTORY
def main(frames: int, repeats: int, directory: Path | None) -> None:
    """Time what it costs to see that map() keeps nothing, beside the map phase without."""
    with scratch(directory) as place:
        contest = Contest(place, {}, ranks=1)
        data = contest.data(frames)
        store = contest.store(data)
        for name, (analysis, parameters) in QUESTIONS.items():
            measure(name, load(analysis)(**parameters), data, store, repeats)


def measure(name: str, analysis: Analysis, data: Data, store: Path, repeats: int) -> None:
    """Print the cost of watching in one analysis."""
    seconds: dict[type[Snapshot], list[float]] = {Timed: [], Blind: []}
    inside, looks = [], []
    for turn in range(repeats + 1):
        for kind, found in seconds.items() if turn % 2 else reversed(seconds.items()):
            Timed.seconds, Timed.looks = 0.0, 0
            with patch.object(mapping, "Snapshot", kind):
                result = himach.run(analysis, data.trajectory, data.topology, cache=str(store), progress=False)
            if turn:
                found.append(result.record["seconds"]["map"])
            if turn and kind is Timed:
                inside.append(Timed.seconds / found[-1])
                looks.append(Timed.looks)
    pairs = [watched / blind - 1 for watched, blind in zip(seconds[Timed], seconds[Blind], strict=True)]
    part = median(inside)
    print(f"{name}: {data.frames:,} cached frames, map phase {median(seconds[Blind]):.3f} s without watching")
    print(f"  {part:.3%} of it is watching, {median(looks):g} looks ({'holds' if part <= BAR else 'above'} {BAR:.0%})")
    print(f"  runs with it are slower by {median(pairs):+.2%} ({min(pairs):+.2%} to {max(pairs):+.2%}, pair by pair)")
