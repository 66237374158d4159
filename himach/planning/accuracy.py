"""How well plans have predicted what was measured: `Accuracy`, from the results that `himach bench plan` leaves."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path

from himach.planning.predict import Kind

__all__ = ["MEASURED", "Accuracy", "accuracy"]

#: Written by ``himach bench plan --out``; part of the package.
MEASURED = Path(__file__).with_name("measured.json")


@dataclass(frozen=True)
class Accuracy:
    """How far predictions of a kind were from the medians of what was measured, as parts of these; and on what.

    `middle` and `worst` are of absolute errors, `spread` is the median spread of the measurements (half of what lies
    between the least and the most of the repeats), `nodes` are the most on which it was looked at.
    """

    middle: float
    worst: float
    spread: float
    nodes: int
    cases: int

    def __str__(self) -> str:
        return (
            f"{self.middle:.1%} at the median, {self.worst:.1%} at most, of {self.cases} cases up to {self.nodes} nodes"
        )


def accuracy(path: Path = MEASURED) -> dict[Kind, Accuracy]:
    """Return what is known of each kind of prediction; a kind that was never looked at is not there."""
    if not path.exists():
        return {}
    rows = json.loads(path.read_text())["rows"]
    found: dict[Kind, Accuracy] = {}
    for kind in dict.fromkeys(row["kind"] for row in rows):
        blind = [row for row in rows if row["kind"] == kind and row["blind"]]
        if not blind:
            continue
        errors = [abs(row["predicted"] / row["measured"] - 1) for row in blind]
        spread = statistics.median(row["spread"] for row in blind)
        found[kind] = Accuracy(
            statistics.median(errors), max(errors), spread, max(row["nodes"] for row in blind), len(blind)
        )
    return found
