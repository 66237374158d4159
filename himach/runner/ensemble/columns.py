"""Which columns of a table say what a row is of, and which are figures that members can be compared by: `Roles`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from himach.analysis import FRAME, TIME
from himach.output.table import Table

__all__ = ["Roles", "roles_of"]


@dataclass(frozen=True)
class Roles:
    """What the columns of a table are.

    Attributes
    ----------
    in_time
        Whether rows come in time: then members are compared by the means of their columns.
    keys
        Columns that tell a row from others; none of a table in time.
    values
        Columns of figures.
    """

    in_time: bool
    keys: list[str]
    values: list[str]


def roles_of(tables: Sequence[Table]) -> Roles:
    """Return the roles of columns in what is one table of several members.

    Figures are the columns that have intervals; where none has, those of floating-point numbers. Keys are the columns
    before the first of them, and where there is no interval at least the first column.
    """
    names = list(dict.fromkeys(name for table in tables for name in table))
    limits = {f"{name}{end}" for name in names for end in ("_low", "_high") if f"{name}_low" in names}
    plain = [name for name in names if name not in limits]
    in_time = bool(names) and (names[0] == TIME or names[-1] == FRAME)
    sure = [name for name in plain if f"{name}_low" in limits or any(name in table.means for table in tables)]
    candidates = plain if in_time else plain[1:] if len(plain) > 1 else plain
    values = sure or [name for name in candidates if name not in (TIME, FRAME) and _is_real(name, tables)]
    keys = plain[: plain.index(values[0])] if values and not in_time else []
    return Roles(in_time, keys, values)


def _is_real(name: str, tables: Sequence[Table]) -> bool:
    """Tell whether a column is of floating-point numbers in every member that has it."""
    cells = [table[name] for table in tables if name in table]
    return all(isinstance(column, np.ndarray) and column.dtype.kind == "f" for column in cells)
