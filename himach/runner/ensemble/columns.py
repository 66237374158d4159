"""Roles of columns in members' tables, `Roles`: keys that identify rows, and figures that are compared."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from himach.analysis import FRAME, TIME
from himach.output.table import Role, Table

#: Columns of an `Estimate`, the result of some analyses: its value and its limits.
ESTIMATE = ("mean", "low", "high")


@dataclass(frozen=True)
class Roles:
    """Roles of the columns of a table."""

    in_time: bool  # whether rows are a time series: then members are compared by column means
    keys: list[str]  # columns that identify a row; empty for a time series
    values: list[str]  # columns of figures
    sure: bool = False  # whether the analysis gives uncertainties of `values`
    x: Sequence[str] = ()  # keys that all members share


def column_roles(tables: Sequence[Table]) -> Roles:
    """Return the roles of columns in one table of several members, as each `Column` declares them.

    Figures are the values with intervals, or all values if none has one. Keys are x, and the labels before the first
    figure. Rows are a time series if ``time_ps`` is x or there is a ``frame``, unless each has limits: that is a curve.
    """
    roles: dict[str, Role | None] = {}
    means: set[str] = set()
    for only_empty in (False, True):  # empty tables count only if all are
        for table in () if roles else tables:
            if only_empty or table.rows:
                roles.update({name: table.note(name).role for name in table if name not in roles})
                means.update(table.means)
    names = list(roles)
    limits = {f"{name}{end}" for name in names for end in ("_low", "_high") if f"{name}_low" in names}
    estimated = set(ESTIMATE) <= set(names)
    limits |= set(ESTIMATE[1:]) if estimated else set()
    values = [name for name in names if roles[name] == "value" and name not in limits]
    sure = [name for name in values if f"{name}_low" in limits or (estimated and name == ESTIMATE[0]) or name in means]
    values = sure or values
    if not limits and (roles.get(TIME) == "x" or FRAME in names):
        return Roles(True, [], values, bool(sure))
    leading = names[: names.index(values[0])] if values else []
    x = [name for name in names if roles[name] == "x" and values]
    keys = [name for name in names if name in x or (name in leading and roles[name] == "label")]
    return Roles(False, keys, values, bool(sure), x)


def hashable_cells(table: Table, name: str) -> list[Any]:
    """Return the cells of a column as keys: None if the table lacks it, a single nan object, texts for lists."""
    column = table.get(name, [None] * table.rows)
    cells = column.tolist() if isinstance(column, np.ndarray) else list(column)
    cells = [cell if isinstance(cell, Hashable) else repr(cell) for cell in cells]
    return [np.nan if isinstance(cell, float) and np.isnan(cell) else cell for cell in cells]
