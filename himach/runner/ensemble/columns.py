"""Which columns of a table say what a row is of, and which are figures that members can be compared by: `Roles`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from himach.analysis import FRAME, TIME
from himach.output.table import Table

__all__ = ["NEAR", "Roles", "cells_of", "roles_of"]

#: Columns by which the results of analyses that return `Estimate` tell their limits.
ESTIMATE = ("mean", "low", "high")
#: By how much of their mean the times between the rows of a series differ, at most: files round them.
EVEN = 0.01
#: By how much of themselves places differ, at most, that are meant to be one: files round times.
NEAR = 1e-5


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
    sure
        Whether these are those of which the analysis says how sure they are.
    """

    in_time: bool
    keys: list[str]
    values: list[str]
    sure: bool = False


def roles_of(tables: Sequence[Table]) -> Roles:
    """Return the roles of columns in what is one table of several members.

    Figures are the columns that have intervals. Where none has, they are those of floating-point numbers behind the
    first column, and integers that are not needed to tell rows apart. Keys are the columns before the first figure.
    Where each member has one row, columns that all members have alike are keys. There are no figures where keys do not
    tell rows apart: that is a list, of events for example. A column that is not to be compared (`Column`) is no figure.

    Rows come in time where the first column is ``time_ps`` or the last is ``frame``, unless they have limits each: that
    is a curve.
    """
    tables = [table for table in tables if table.rows] or tables
    names = list(dict.fromkeys(name for table in tables for name in table))
    limits = {f"{name}{end}" for name in names for end in ("_low", "_high") if f"{name}_low" in names}
    estimated = set(ESTIMATE) <= set(names)
    limits |= set(ESTIMATE[1:]) if estimated else set()
    plain = [name for name in names if name not in limits]
    sure = [
        name
        for name in plain
        if f"{name}_low" in limits or (estimated and name == ESTIMATE[0]) or any(name in each.means for each in tables)
    ]
    if names and not limits and (names[0] == TIME or names[-1] == FRAME):
        kinds = "fib" if _is_series(tables, names) else "f"
        others = [name for name in plain if name not in (TIME, FRAME) and _kind(name, tables) in kinds]
        return Roles(True, [], _compared(sure or others, tables), bool(sure))
    keys, values = _by_rows(tables, plain, sure)
    if keys and not all(_tell_apart(keys, table) for table in tables):
        values = []
    values = _compared(values, tables)
    return Roles(False, keys if values else [], values, bool(sure and values))


def _compared(names: Sequence[str], tables: Sequence[Table]) -> list[str]:
    """Return those of columns by which members are compared."""
    return [name for name in names if not any(name in table.uncompared for table in tables)]


def _by_rows(tables: Sequence[Table], plain: list[str], sure: list[str]) -> tuple[list[str], list[str]]:
    """Return keys and values of a table that is not in time."""
    kinds = {name: _kind(name, tables) for name in plain}
    if all(table.rows <= 1 for table in tables):
        texts = _behind_texts(plain, kinds)
        values = sure or [
            name for i, name in enumerate(plain) if i >= texts and kinds[name] in "fi" and not _same(plain, i, tables)
        ]
        before = plain[: plain.index(values[0])] if values else []
        return [name for name in before if kinds[name] == "O" or _alike(name, tables, NEAR)], values
    if sure:
        return plain[: plain.index(sure[0])], sure
    figures = [name for name in plain[1:] if kinds[name] == "f"] or [name for name in plain[1:] if kinds[name] == "i"][
        -1:
    ]
    if not figures:
        return [], [name for name in plain if len(plain) == 1 and kinds[name] in "fi"]
    before = plain[: plain.index(figures[0])]
    # Integers behind a text or an axis that tells rows apart count something; behind integers they may be a key's part.
    ends = (i for i, name in enumerate(before, 1) if kinds[name] != "i")
    n_keys = next((i for i in ends if all(_tell_apart(before[:i], table) for table in tables)), len(before))
    if not _share_rows(before[:n_keys], tables):  # the fewest that are the same in all: what is behind counts something
        some = (i for i in range(1, n_keys) if all(_tell_apart(before[:i], table) for table in tables))
        n_keys = next((i for i in some if all(_alike(name, tables) for name in before[:i])), n_keys)
    return plain[:n_keys], [name for name in plain[n_keys:] if kinds[name] in "fi"]


def cells_of(table: Table, name: str) -> list[Any]:
    """Return the cells of a column as keys: None where the table lacks it, one and the same nan, texts for lists."""
    column = table.get(name, [None] * table.rows)
    cells = column.tolist() if isinstance(column, np.ndarray) else list(column)
    cells = [cell if isinstance(cell, Hashable) else repr(cell) for cell in cells]
    return [np.nan if isinstance(cell, float) and np.isnan(cell) else cell for cell in cells]


def _behind_texts(plain: list[str], kinds: Mapping[str, str]) -> int:
    """Return the position behind texts that say what the row is of: integers before them say so, too."""
    letters = "".join(kinds[name] for name in plain)
    front = letters[: letters.find("f")] if "f" in letters else letters.rstrip("Ob")
    return front.rfind("O") + 1


def _same(plain: list[str], at: int, tables: Sequence[Table]) -> bool:
    """Tell whether a column in front of others says the same of all members, which there is no need to compare."""
    return at < len(plain) - 1 and _alike(plain[at], tables)


def _alike(name: str, tables: Sequence[Table], near: float = 0) -> bool:
    """Tell whether a column is the same in all members, numbers but for such a part of them."""
    first, *others = (cells_of(table, name) for table in tables)
    if near and _kind(name, tables) == "f":
        axes = np.array([first, *others], np.float64)
        return bool(np.allclose(axes, axes[0], rtol=near, atol=0, equal_nan=True))
    return all(cells == first for cells in others)


def _tell_apart(keys: Sequence[str], table: Table) -> bool:
    rows = list(zip(*(cells_of(table, name) for name in keys), strict=True))
    return len(set(rows)) == len(rows)


def _share_rows(keys: Sequence[str], tables: Sequence[Table]) -> bool:
    """Tell whether any two members have a row of the same keys."""
    rows = [row for table in tables for row in set(zip(*(cells_of(table, name) for name in keys), strict=True))]
    return len(set(rows)) < len(rows) or len(tables) == 1


def _is_series(tables: Sequence[Table], names: Sequence[str]) -> bool:
    """Tell whether there is a row a frame, rather than one an event: numbers in them are no names then."""
    if names[-1] == FRAME:
        return True
    gaps = [np.diff(np.asarray(table[TIME], np.float64)) for table in tables if TIME in table and table.rows > 2]
    return bool(gaps) and all(float(np.ptp(gap)) <= EVEN * abs(float(gap.mean())) for gap in gaps)


def _kind(name: str, tables: Sequence[Table]) -> str:
    """Return what a column is of in all members: "f" or "i" for numbers, "b" for truth values, "O" for others."""
    kinds = {_kind_of(table[name]) for table in tables if name in table and len(table[name])}
    return kinds.pop() if len(kinds) == 1 else "f" if kinds == {"f", "i"} else "O"


def _kind_of(column: Any) -> str:
    if isinstance(column, np.ndarray):
        return {"u": "i"}.get(column.dtype.kind, column.dtype.kind if column.dtype.kind in "fib" else "O")
    there = [cell for cell in column if cell is not None]
    numbers = there and all(isinstance(cell, int | float | np.number) and not isinstance(cell, bool) for cell in there)
    return "f" if numbers else "O"
