"""How well plans have predicted what was measured, from the results that `himach bench plan` leaves."""

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from himach.planning.model import Accuracy

__all__ = ["BAR", "accuracy", "error", "is_held"]

#: What an error is held to, or the spread of the measurement, if that is more.
BAR = 0.03


def error(row: Mapping[str, Any]) -> float:
    """Return by which part of what was measured a prediction is more, or less."""
    return float(row["predicted"] / row["measured"] - 1)


def is_held(row: Mapping[str, Any]) -> bool:
    """Tell whether a prediction is within `BAR`, or the spread of the measurements.

    That is half of what lies between the least and the most of the repeats, as a part of their median.
    """
    return bool(abs(error(row)) <= max(BAR, row["spread"]))


def accuracy(path: Path) -> dict[str, Accuracy]:
    """Return what results say of each kind of prediction; a kind that was never looked at blind is not there.

    Kinds are those of predictions (`himach.planning.model.KINDS`), and parts of them: ``shuffle``,
    ``rounds`` (Zazen's).
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in json.loads(path.read_text())["rows"]:
        if row["blind"]:
            found.setdefault(row["kind"], []).append(row)
    return {kind: _of(rows) for kind, rows in found.items()}


def _of(rows: list[Mapping[str, Any]]) -> Accuracy:
    errors = [abs(error(row)) for row in rows]
    return Accuracy(statistics.median(errors), max(errors), len(rows), max(row["nodes"] for row in rows))
