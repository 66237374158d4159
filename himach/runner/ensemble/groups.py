"""Groups of members compared: `group_table()`, means over the members of each group, and how groups differ."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.opening.member import Member
from himach.output.table import Column, Table
from himach.runner.ensemble.columns import NEAR, Roles, cells_of
from himach.uncertainty import difference, holm, replicas

__all__ = ["EVERYONE", "common_places", "group_table", "groups_of", "means_of", "member_values"]

#: The group of all members where none has a group.
EVERYONE = "all"
#: Columns that tables of groups have; a key of such a name gets another.
COLUMNS = ("group", "column", "mean", "low", "high", "n", "p", "p_exact")
#: By how much of the least step of an axis places of two members differ, at most, that are meant to be one.
ROUNDING = 1e-3

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
    """Return what groups of members say of a table's figures; None if no two members have one of the same row.

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
    groups = groups_of(members)
    tables = [tables[at] for of in groups.values() for at in of]
    bounds = np.cumsum([0, *map(len, groups.values())])
    spans = {group: slice(*bounds[i : i + 2]) for i, group in enumerate(groups)}
    keys, figures = member_values(tables, roles)
    seen = [np.isfinite(values).sum(axis=0).max(initial=0) for values in figures.values()]
    if max(seen, default=0) < min(2, len(tables)):
        return None
    rows: list[dict[str, Any]] = []
    for name, values in figures.items():
        found = [{"group": group, **means_of(values[of], level)} for group, of in spans.items()]
        pairs = [
            _of_pair(f"{second} - {first}", values[spans[first]], values[spans[second]], level)
            for first, second in itertools.combinations(spans, 2)
        ]
        for p in ("p", "p_exact") if pairs else ():
            corrected = iter(np.split(holm(np.concatenate([pair[p] for pair in pairs])), len(pairs)))
            for pair in pairs:
                pair[p] = next(corrected)
        rows += [{"column": name, **row} for row in (*found, *pairs)]
    return _as_table(rows, keys, tables, roles, level)


def member_values(tables: Sequence[Table], roles: Roles) -> tuple[dict[str, list[Any]], dict[str, Floats]]:
    """Return the keys of all members' rows, by column, and each figure as (members, rows).

    Where a member has no such row, it is what the column says of absent ones, else nan. Of a table in time, there is
    one row, of the means. Rows without keys go by their number, if there are several.
    """
    if roles.in_time:
        means = {name: np.array([[_mean(table, name)] for table in tables]) for name in roles.values}
        return {}, means
    names, rows_of = _rows(tables, roles.keys)
    at = {row: i for i, row in enumerate(_all_rows(rows_of))}
    absent = {name: value for table in tables for name, value in table.absent.items()}
    figures = {name: np.full((len(tables), len(at)), absent.get(name, np.nan), np.float64) for name in roles.values}
    for i, (table, rows) in enumerate(zip(tables, rows_of, strict=True)):
        places = [at[row] for row in rows]
        for name in roles.values:
            if name in table:
                figures[name][i, places] = np.asarray(table[name], np.float64)
    return {name: [row[i] for row in at] for i, name in enumerate(names)}, figures


def common_places(axes: Sequence[npt.ArrayLike]) -> list[Floats]:
    """Return the places of several members' rows, with those the same that differ by rounding alone.

    Lags are multiples of the time between frames, which files round.
    """
    places = [np.array(axis, np.float64) for axis in axes]
    each = [np.unique(axis[np.isfinite(axis)]) for axis in places]
    steps = np.concatenate([np.diff(axis) for axis in each])
    every = np.unique(np.concatenate(each))
    if not len(every):
        return places
    rounding = ROUNDING * steps.min() if len(steps) else NEAR * np.abs(every).max()
    begins = np.diff(every, prepend=-np.inf) > rounding
    found = every[begins][np.cumsum(begins) - 1]
    for axis in places:
        known = np.isfinite(axis)
        axis[known] = found[np.searchsorted(every, axis[known])]
    return places


def _rows(tables: Sequence[Table], keys: Sequence[str]) -> tuple[list[str], list[list[tuple[Any, ...]]]]:
    """Return the names of the keys, and the keys of each table's rows."""
    if not keys:
        several = any(table.rows > 1 for table in tables)
        return ["row"] if several else [], [[(at,) if several else () for at in range(table.rows)] for table in tables]
    columns = {name: [cells_of(table, name) for table in tables] for name in keys}
    for name in keys:
        axes = [column for table in tables if isinstance(column := table.get(name), np.ndarray)]
        if len(axes) == len(tables) and any(axis.dtype.kind == "f" for axis in axes):
            columns[name] = [_one_nan(axis) for axis in common_places(axes)]
    return list(keys), [list(zip(*of, strict=True)) for of in zip(*columns.values(), strict=True)]


def _all_rows(rows_of: Sequence[Sequence[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
    """Return the keys of all members' rows, each once: in order if each member's are, else as they first come."""
    found = list(dict.fromkeys(row for rows in rows_of for row in rows))
    try:
        ordered = all(list(rows) == sorted(rows) for rows in rows_of)
        return sorted(found) if ordered else found
    except TypeError:  # of texts and None, for example
        return found


def _mean(table: Table, name: str) -> float:
    if name in table.means:
        return float(table.means[name].value)
    values = np.asarray(table.get(name, np.empty(0)), np.float64)
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else np.nan


def means_of(values: Floats, level: float) -> dict[str, Any]:
    """Return means over members with their limits, and how many have a value, (members, rows) -> (rows,) each."""
    n = np.isfinite(values).sum(axis=0)
    row: dict[str, Any] = {"n": n, **_empty(len(n), "mean", "low", "high", "p", "p_exact")}
    for which, some in _by_presence(values):
        found = replicas(some, level)
        row["mean"][which], row["low"][which], row["high"][which] = found.value, found.low, found.high
    return row


def _of_pair(name: str, first: Floats, second: Floats, level: float) -> dict[str, Any]:
    """Return how the means of two groups differ."""
    n = np.isfinite(first).sum(axis=0) + np.isfinite(second).sum(axis=0)
    row: dict[str, Any] = {"group": name, "n": n, **_empty(len(n), "mean", "low", "high", "p", "p_exact")}
    for which, *both in _by_presence(first, second):
        found = difference(both[0], both[1], level)
        row["mean"][which], row["low"][which], row["high"][which] = found.value, found.low, found.high
        row["p"][which] = found.p
        # What is the same in all members is no test, such as g(r) where no atom can be: it would cost others power.
        row["p_exact"][which] = np.where((found.value == 0) & (found.error == 0), np.nan, found.p_exact)
    return row


def _one_nan(places: Floats) -> list[float]:
    return [np.nan if np.isnan(place) else place for place in places.tolist()]


def _empty(n: int, *names: str) -> dict[str, Floats]:
    return {name: np.full(n, np.nan) for name in names}


def _by_presence(*groups: Floats) -> Iterator[tuple[Any, ...]]:
    """Yield rows of which as many members have a value: their positions, and of each group (members, positions).

    Which members these are makes no difference. Rows that a group lacks are left out.
    """
    counts = np.array([np.isfinite(values).sum(axis=0) for values in groups])
    first = [
        np.take_along_axis(values, np.argsort(~np.isfinite(values), axis=0, kind="stable"), 0) for values in groups
    ]
    for there in np.unique(counts, axis=1).T if counts.size else ():
        if there.all():
            which = np.flatnonzero((there == counts.T).all(axis=1))
            yield which, *(values[:n, which] for values, n in zip(first, there, strict=True))


def _as_table(
    rows: Sequence[Mapping[str, Any]],
    keys: Mapping[str, list[Any]],
    tables: Sequence[Table],
    roles: Roles,
    level: float,
) -> Table:
    n, compared = len(rows[0]["n"]), len({row["group"] for row in rows}) > 1
    columns: dict[str, Any] = {
        "group": [row["group"] for row in rows for _ in range(n)],
        "column": [row["column"] for row in rows for _ in range(n)],
    }
    for name, cells in keys.items():
        columns[f"{name}_2" if name in COLUMNS else name] = Column(cells * len(rows), _unit(tables, [name]))
    unit = _unit(tables, roles.values)
    for name in ("mean", "low", "high"):
        columns[name] = Column(np.concatenate([row[name] for row in rows]), unit)
    columns["n"] = np.concatenate([row["n"] for row in rows])
    for name in ("p", "p_exact") if compared else ():
        columns[name] = np.concatenate([row[name] for row in rows])
    table = Table(columns)
    table.level = level
    return table


def _unit(tables: Sequence[Table], names: Sequence[str]) -> str:
    """Return the unit that all figures have; "" where they differ."""
    units = {next((table.units[name] for table in tables if name in table.units), "") for name in names}
    return units.pop() if len(units) == 1 else ""
