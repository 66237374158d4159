"""How well plans have predicted what was measured: `Accuracy`, from the results that `himach bench plan` leaves."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path

__all__ = ["BAR", "MEASURED", "Accuracy", "accuracy"]

#: Written by ``himach bench plan --out``; part of the package.
MEASURED = Path(__file__).with_name("measured.json")
#: What an error is held to, or the spread of the measurement, if that is more.
BAR = 0.03


@dataclass(frozen=True)
class Accuracy:
    """How far predictions of a kind were from the medians of what was measured, as parts of these; and on what.

    `middle` and `worst` are of absolute errors, `spread` is the median spread of the measurements (half of what lies
    between the least and the most of the repeats), `nodes` are the most on which it was looked at; `held` of the
    `cases` were within `BAR` or their spread.
    """

    middle: float
    worst: float
    spread: float
    nodes: int
    cases: int
    held: int

    def __str__(self) -> str:
        return (
            f"{self.middle:.1%} at the median, {self.worst:.1%} at most, of {self.cases} cases up to {self.nodes} nodes"
        )


def accuracy(path: Path = MEASURED) -> dict[str, Accuracy]:
    """Return what is known of each kind of prediction; a kind that was never looked at is not there.

    Kinds are those of predictions (`himach.planning.predict.KINDS`), and parts of them: ``shuffle``, ``lost`` (a second
    run where a node has lost its cache), ``rounds`` (Zazen's).
    """
    if not path.exists():
        return {}
    rows = json.loads(path.read_text())["rows"]
    found: dict[str, Accuracy] = {}
    for kind in dict.fromkeys(row["kind"] for row in rows):
        blind = [row for row in rows if row["kind"] == kind and row["blind"]]
        if not blind:
            continue
        errors = [abs(row["predicted"] / row["measured"] - 1) for row in blind]
        spread = statistics.median(row["spread"] for row in blind)
        held = sum(error <= max(BAR, row["spread"]) for error, row in zip(errors, blind, strict=True))
        nodes = max(row["nodes"] for row in blind)
        found[kind] = Accuracy(statistics.median(errors), max(errors), spread, nodes, len(blind), held)
    return found
