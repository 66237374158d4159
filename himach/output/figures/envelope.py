"""Tables that are too long to be drawn as they are: `thinned()` gives plot() what a picture can show of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from himach.analysis import TIME
from himach.output.table import Table

__all__ = ["BINS", "thinned"]

#: Bins of the rows of such a table: more than a picture has columns.
BINS = 2000


def thinned(outcome: Any) -> Any:
    """Return an outcome in which tables that are too long for one rank are envelopes.

    Of each of many bins of rows there are two: the first has the least of each column of numbers, the second the most;
    both have the first cell of times and of what are no numbers.
    """
    if isinstance(outcome, Table):
        return _envelope(outcome) if outcome.long is not None else outcome
    if not isinstance(outcome, Mapping):
        return outcome
    long = {name: thing for name, thing in outcome.items() if isinstance(thing, Table) and thing.long is not None}
    return {**outcome, **{name: _envelope(table) for name, table in long.items()}} if long else outcome


def _envelope(table: Table) -> Table:
    columns: dict[str, Any] = {}
    for name, cells in table.items():
        found = cells.bins(BINS)
        sides = (found.firsts, found.firsts) if name == TIME or found.means is None else (found.least, found.most)
        both = [cell for pair in zip(*sides, strict=True) for cell in pair]
        columns[name] = both if found.means is None else np.array(both, cells.dtype)
    drawn = Table(columns)
    drawn.units, drawn.level, drawn.means = dict(table.units), table.level, dict(table.means)
    return drawn
