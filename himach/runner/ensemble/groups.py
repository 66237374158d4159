"""Groups of members compared: `group_table()`, means over the members of each group, and how groups differ."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.opening.member import Member
from himach.output.table import Column, Table
from himach.runner.ensemble.columns import Roles
from himach.uncertainty import difference, holm, replicas

__all__ = ["EVERYONE", "group_table", "groups_of", "member_values"]

#: The group of all members where none has a group.
EVERYONE = "all"

Floats = npt.NDArray[np.float64]


def groups_of(members: Sequence[Member]) -> dict[str, list[int]]:
    """Return the positions of the members of each group, in the order in which groups come first."""
    if not any(member.group for member in members):
        return {EVERYONE: list(range(len(members)))}
    found: dict[str, list[int]] = {}
    for at, member in enumerate(members):
        if member.group:
            found.setdefault(member.group, []).append(at)
    return found


def group_table(members: Sequence[Member], tables: Sequence[Table], roles: Roles, level: float) -> Table | None:
    """Return what groups of members say of a table's figures; None if it has none.

    Parameters
    ----------
    members, tables
        Each member's table.
    roles
        Of the columns of the tables.
    level
        Confidence of the intervals.

    Returns
    -------
    Table
        ``group``, ``column`` (which figure it is), the keys of the row, ``mean``, ``low`` and ``high`` over the members
        of the group (Student's t), ``n`` (members that have a value). Of two groups and more also a row of each pair of
        them, ``"B - A"``, with the difference of their means and Welch's interval; with ``p`` (Welch) and ``p_exact``
        (by permutations of the members, where there are few), both as Holm corrects them for all such rows of the
        figure.
    """
    if not roles.values:
        return None
    keys, figures = member_values(tables, roles)
    if not next(iter(figures.values())).size:
        return None
    groups = groups_of(members)
    rows: list[dict[str, Any]] = []
    for name, values in figures.items():
        found = [_of_group(group, values[of], level) for group, of in groups.items()]
        pairs = [
            _of_pair(f"{second} - {first}", values[groups[first]], values[groups[second]], level)
            for first, second in itertools.combinations(groups, 2)
        ]
        for p in ("p", "p_exact") if pairs else ():
            corrected = iter(np.split(holm(np.concatenate([pair[p] for pair in pairs])), len(pairs)))
            for pair in pairs:
                pair[p] = next(corrected)
        rows += [{"column": name, **row} for row in (*found, *pairs)]
    return _as_table(rows, keys, len(groups) > 1, _unit(tables, roles.values))


def member_values(tables: Sequence[Table], roles: Roles) -> tuple[dict[str, list[Any]], dict[str, Floats]]:
    """Return the keys of all members' rows, by column, and each figure as (members, rows): nan where there is none.

    Of a table in time, there is one row, of the means.
    """
    if roles.in_time:
        means = {name: np.array([[_mean(table, name)] for table in tables]) for name in roles.values}
        return {}, means
    rows_of = [_rows(table, roles.keys) for table in tables]
    at = {row: i for i, row in enumerate(dict.fromkeys(row for rows in rows_of for row in rows))}
    figures = {name: np.full((len(tables), len(at)), np.nan) for name in roles.values}
    for i, (table, rows) in enumerate(zip(tables, rows_of, strict=True)):
        places = [at[row] for row in rows]
        for name in roles.values:
            if name in table:
                figures[name][i, places] = np.asarray(table[name], np.float64)
    return {name: [row[i] for row in at] for i, name in enumerate(roles.keys)}, figures


def _rows(table: Table, keys: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the keys of a table's rows; a row without keys goes by its number, if there are several."""
    columns = [_plain(table[name]) for name in keys if name in table]
    if not columns:
        return [(None,) * len(keys)] if table.rows == 1 else [(at,) * max(len(keys), 1) for at in range(table.rows)]
    return list(zip(*columns, strict=True))


def _plain(cells: Any) -> list[Any]:
    return cells.tolist() if isinstance(cells, np.ndarray) else list(cells)


def _mean(table: Table, name: str) -> float:
    if name in table.means:
        return float(table.means[name].value)
    values = np.asarray(table.get(name, np.empty(0)), np.float64)
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else np.nan


def _of_group(group: str, values: Floats, level: float) -> dict[str, Any]:
    """Return the means of a group, (members, rows) -> (rows,), with limits."""
    n = np.isfinite(values).sum(axis=0)
    row: dict[str, Any] = {"group": group, "n": n, **_empty(len(n), "mean", "low", "high", "p", "p_exact")}
    for which, some in _by_presence(values):
        found = replicas(some, level)
        row["mean"][which], row["low"][which], row["high"][which] = found.value, found.low, found.high
    return row


def _of_pair(name: str, first: Floats, second: Floats, level: float) -> dict[str, Any]:
    """Return how the means of two groups differ."""
    n = np.isfinite(first).sum(axis=0) + np.isfinite(second).sum(axis=0)
    row: dict[str, Any] = {"group": name, "n": n, **_empty(len(n), "mean", "low", "high", "p", "p_exact")}
    for which, some in _by_presence(np.concatenate([first, second]), len(first)):
        found = difference(some[0], some[1], level)
        row["mean"][which], row["low"][which], row["high"][which] = found.value, found.low, found.high
        row["p"][which], row["p_exact"][which] = found.p, found.p_exact
    return row


def _empty(n: int, *names: str) -> dict[str, Floats]:
    return {name: np.full(n, np.nan) for name in names}


def _by_presence(values: Floats, first: int | None = None) -> Any:
    """Yield rows that the same members have, as positions and as values (members, positions).

    With `first`, values of so many members and of the others apart, where both have some.
    """
    present = np.isfinite(values)
    patterns, of = np.unique(present, axis=1, return_inverse=True)
    for at in range(patterns.shape[1]):
        there, which = patterns[:, at], np.flatnonzero(np.ravel(of) == at)
        if first is None:
            if there.any():
                yield which, values[there][:, which]
        elif there[:first].any() and there[first:].any():
            yield which, (values[:first][there[:first]][:, which], values[first:][there[first:]][:, which])


def _as_table(rows: Sequence[Mapping[str, Any]], keys: Mapping[str, list[Any]], compared: bool, unit: str) -> Table:
    n = len(rows[0]["n"])
    columns: dict[str, Any] = {
        "group": [row["group"] for row in rows for _ in range(n)],
        "column": [row["column"] for row in rows for _ in range(n)],
    }
    for name, cells in keys.items():
        columns[name if name not in columns else f"{name}_2"] = cells * len(rows)
    for name in ("mean", "low", "high"):
        columns[name] = Column(np.concatenate([row[name] for row in rows]), unit)
    columns["n"] = np.concatenate([row["n"] for row in rows])
    for name in ("p", "p_exact") if compared else ():
        columns[name] = np.concatenate([row[name] for row in rows])
    return Table(columns)


def _unit(tables: Sequence[Table], names: Sequence[str]) -> str:
    """Return the unit that all figures have; "" where they differ."""
    units = {next((table.units[name] for table in tables if name in table.units), "") for name in names}
    return units.pop() if len(units) == 1 else ""
