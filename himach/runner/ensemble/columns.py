"""Which columns of members' tables tell rows apart, and which are figures that members are compared by: `Roles`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from himach.analysis import FRAME, TIME
from himach.output.table import Table

#: Columns by which the results of analyses that return `Estimate` tell their limits.
ESTIMATE = ("mean", "low", "high")


@dataclass(frozen=True)
class Roles:
    """What the columns of a table are."""

    in_time: bool  # whether rows come in time: then members are compared by the means of their columns
    keys: list[str]  # columns that tell a row from others; none of a table in time
    values: list[str]  # columns of figures
    sure: bool = False  # whether these are those of which the analysis says how sure they are
    x: Sequence[str] = ()  # those keys that all members share


def column_roles(tables: Sequence[Table]) -> Roles:
    """Return the roles of columns in what is one table of several members, as the columns say them (`Column`).

    Figures are the values that have intervals; where none has, all values. Keys are x, and the labels before the first
    figure. Rows come in time where ``time_ps`` is x, or there is a ``frame``, unless they have limits each: that is a
    curve.
    """
    tables = [table for table in tables if table.rows] or tables
    roles = {name: table.note(name).role for table in reversed(tables) for name in table}
    names = list(dict.fromkeys(name for table in tables for name in table))
    limits = {f"{name}{end}" for name in names for end in ("_low", "_high") if f"{name}_low" in names}
    estimated = set(ESTIMATE) <= set(names)
    limits |= set(ESTIMATE[1:]) if estimated else set()
    values = [name for name in names if roles[name] == "value" and name not in limits]
    sure = [
        name
        for name in values
        if f"{name}_low" in limits or (estimated and name == ESTIMATE[0]) or any(name in own.means for own in tables)
    ]
    values = sure or values
    if not limits and (roles.get(TIME) == "x" or FRAME in names):
        return Roles(True, [], values, bool(sure))
    leading = names[: names.index(values[0])] if values else []
    x = [name for name in names if roles[name] == "x" and values]
    keys = [name for name in names if name in x or (name in leading and roles[name] == "label")]
    return Roles(False, keys, values, bool(sure), x)


def hashable_cells(table: Table, name: str) -> list[Any]:
    """Return the cells of a column as keys: None where the table lacks it, one and the same nan, texts for lists."""
    column = table.get(name, [None] * table.rows)
    cells = column.tolist() if isinstance(column, np.ndarray) else list(column)
    cells = [cell if isinstance(cell, Hashable) else repr(cell) for cell in cells]
    return [np.nan if isinstance(cell, float) and np.isnan(cell) else cell for cell in cells]
