"""Comparison of groups of members: `group_table()`, with the mean of each group and the differences of groups.

`Roles` of columns in members' tables say which are keys that identify rows, and which are figures to compare.
"""

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.analysis import FRAME, TIME
from himach.errors import UsageError
from himach.io.datasets.member import Member
from himach.output.table import Column, Note, Role, Table
from himach.uncertainty import difference, holm, replicas

#: Columns of an `Estimate`, the result of some analyses: its value and its limits.
ESTIMATE = ("mean", "low", "high")
#: Group of all members if none has a group.
EVERYONE = "all"
#: Columns of group tables; a key with such a name is renamed.
FIGURES = ("mean", "low", "high", "p")
COLUMNS = ("group", "column", "n", *FIGURES)
#: Places of two members are the same if they differ by at most this fraction of the axis's smallest step.
ROUNDING = 1e-3
#: Places are the same if they differ by at most this fraction of their values: files round times.
NEAR = 1e-5

Floats = npt.NDArray[np.float64]
#: The keys of a row.
Key = tuple[Any, ...]


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


def group_positions(members: Sequence[Member]) -> dict[str, list[int]]:
    """Return the positions of each group's members, groups in order of first appearance."""
    if not any(member.group for member in members):
        return {EVERYONE: list(range(len(members)))}
    groups: dict[str, list[int]] = {}
    for position, member in enumerate(members):
        if member.group:
            groups.setdefault(member.group, []).append(position)
    return groups


def group_table(members: Sequence[Member], tables: Sequence[Table], roles: Roles, level: float) -> Table | None:
    """Return the comparison of groups by a table's figures; None if no two members have a figure in the same row."""
    groups = group_positions(members)
    tables = [tables[at] for positions in groups.values() for at in positions]
    bounds = np.cumsum([0, *map(len, groups.values())])
    spans = {group: slice(*bounds[i : i + 2]) for i, group in enumerate(groups)}
    if roles.values and not roles.in_time:
        _check_rows(tables, roles)
    keys, figures = member_values(tables, roles)
    counts = [np.isfinite(values).sum(axis=0).max(initial=0) for values in figures.values()]
    if max(counts, default=0) < min(2, len(tables)):
        return None
    rows: list[dict[str, Any]] = []
    for name, values in figures.items():
        within = _note(tables, name).within
        rows += [{"column": name, "group": key, **average(values[span], level, within)} for key, span in spans.items()]
        pairs = [
            {"column": name, "group": f"{b} - {a}", **_difference(values[spans[a]], values[spans[b]], level)}
            for a, b in itertools.combinations(spans, 2)
        ]
        if pairs:
            corrected = np.split(holm(np.concatenate([pair["p"] for pair in pairs])), len(pairs))
            for pair, p_values in zip(pairs, corrected, strict=True):
                pair["p"] = p_values
        rows += pairs
    return _as_table(rows, keys, tables, roles, level)


def _check_rows(tables: Sequence[Table], roles: Roles) -> None:
    """Raise UsageError if members' rows have different places along x, or nothing identifies them."""
    for name in roles.x:
        axes = common_places([np.asarray(table[name], np.float64) for table in tables if name in table])
        longest = max(axes, key=len, default=np.empty(0))
        other = next((axis for axis in axes if not np.array_equal(axis, longest[: len(axis)], equal_nan=True)), None)
        if other is not None:
            first, second = (f"{len(axis)} from {axis[0]:g} to {axis[-1]:g}" for axis in (longest, other))
            raise UsageError(
                f"members' {name} differ ({first}; {second}): give all of them the same selection of frames and the "
                "same bins or lags, or, if it is no axis, Column(..., role='label')"
            )
    rows = [list(zip(*(hashable_cells(table, name) for name in roles.keys), strict=True)) for table in tables]
    if roles.keys and any(len(set(keys_of_table)) < len(keys_of_table) for keys_of_table in rows):
        raise UsageError(
            f"rows of a member have the same {', '.join(roles.keys)}: say role='label' of the columns that tell them "
            "apart, or of all columns of a list"
        )
    if not roles.keys and len({table.rows for table in tables if table.rows}) > 1:
        raise UsageError(
            "members have different numbers of rows, and no column tells these apart: say which one by "
            "Column(..., role='x') or role='label'"
        )


def member_values(tables: Sequence[Table], roles: Roles) -> tuple[dict[str, list[Any]], dict[str, Floats]]:
    """Return the keys of all rows, by column, and figures (members, rows); absent ones are `Note.absent` or nan."""
    if roles.in_time:
        means = np.array([[_mean(table, name) for name in roles.values] for table in tables])
        return {}, {name: means[:, [i]] for i, name in enumerate(roles.values)}
    names, table_rows = _rows(tables, roles.keys)
    row_numbers = {row: i for i, row in enumerate(_all_rows(table_rows))}
    figures = {}
    for name in roles.values:
        absent = _note(tables, name).absent
        figures[name] = np.full((len(tables), len(row_numbers)), np.nan if absent is None else absent, np.float64)
        for values, table, rows in zip(figures[name], tables, table_rows, strict=True):
            if name in table:
                values[[row_numbers[row] for row in rows]] = np.asarray(table[name], np.float64)
    return {name: [row[i] for row in row_numbers] for i, name in enumerate(names)}, figures


def common_places(axes: Sequence[npt.ArrayLike]) -> list[Floats]:
    """Return the places of several members' rows; make places equal that differ by rounding alone, such as lags."""
    places = [np.array(axis, np.float64) for axis in axes]
    distinct = [np.unique(axis[np.isfinite(axis)]) for axis in places]
    all_places = np.unique(np.concatenate(distinct)) if distinct else np.empty(0)
    if not len(all_places):
        return places
    steps = np.concatenate([np.diff(axis) for axis in distinct])
    rounding = ROUNDING * steps.min() if len(steps) else NEAR * np.abs(all_places).max()
    starts = np.diff(all_places, prepend=-np.inf) > rounding
    common = all_places[starts][np.cumsum(starts) - 1]
    for axis in places:
        finite = np.isfinite(axis)
        axis[finite] = common[np.searchsorted(all_places, axis[finite])]
    return places


def _note(tables: Sequence[Table], name: str) -> Note:
    return next((table.note(name) for table in tables if name in table), Note())


def _rows(tables: Sequence[Table], keys: Sequence[str]) -> tuple[list[str], list[list[Key]]]:
    """Return the names of the keys, and the keys of each table's rows."""
    if not keys:
        several = any(table.rows > 1 for table in tables)
        return ["row"] if several else [], [[(i,) if several else () for i in range(table.rows)] for table in tables]
    columns = {name: [hashable_cells(table, name) for table in tables] for name in keys}
    for name in keys:
        axes = [column for table in tables if isinstance(column := table.get(name), np.ndarray)]
        if len(axes) == len(tables) and any(axis.dtype.kind == "f" for axis in axes):
            columns[name] = [
                [np.nan if np.isnan(place) else place for place in axis.tolist()] for axis in common_places(axes)
            ]
    return list(keys), [list(zip(*row_keys, strict=True)) for row_keys in zip(*columns.values(), strict=True)]


def _all_rows(table_rows: Sequence[Sequence[Key]]) -> list[Key]:
    """Return the distinct keys of all members' rows: sorted if each member's are, else in order of appearance."""
    distinct = list(dict.fromkeys(row for rows in table_rows for row in rows))
    try:
        ordered = all(list(rows) == sorted(rows) for rows in table_rows)
        return sorted(distinct) if ordered else distinct
    except TypeError:  # keys of several types, such as texts and None
        return distinct


def _mean(table: Table, name: str) -> float:
    if name in table.means:
        return float(table.means[name].value)
    values = np.asarray(table.get(name, np.empty(0)), np.float64)
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else np.nan


def average(values: Floats, level: float, within: tuple[float, float] = (-np.inf, np.inf)) -> dict[str, Any]:
    """Return means over members, limits clipped to `within`, and counts, (members, rows) -> (rows,) each."""
    row = _empty_row(values)
    for rows, present in _by_presence(values):
        estimate = replicas(present, level)
        row["mean"][rows] = estimate.value
        row["low"][rows], row["high"][rows] = np.clip(estimate.low, *within), np.clip(estimate.high, *within)
    return row


def _difference(first: Floats, second: Floats, level: float) -> dict[str, Any]:
    """Return the difference of the means of two groups, (rows,) each."""
    row = _empty_row(first, second)
    for rows, *present in _by_presence(first, second):
        estimate = difference(present[0], present[1], level)
        row["mean"][rows], row["low"][rows], row["high"][rows] = estimate.value, estimate.low, estimate.high
        row["p"][rows] = estimate.p
    return row


def _empty_row(*groups: Floats) -> dict[str, Any]:
    n = sum(np.isfinite(values).sum(axis=0) for values in groups)
    return {"n": n, **{name: np.full(groups[0].shape[1], np.nan) for name in FIGURES}}


def _by_presence(*groups: Floats) -> Iterator[tuple[Any, ...]]:
    """Yield positions of rows with equal counts of values, and each group's values, (members, positions)."""
    counts = np.array([np.isfinite(values).sum(axis=0) for values in groups])
    ordered = [
        np.take_along_axis(values, np.argsort(~np.isfinite(values), axis=0, kind="stable"), 0) for values in groups
    ]
    for n_present in np.unique(counts, axis=1).T if counts.size else ():
        if n_present.all():
            rows = np.flatnonzero((n_present == counts.T).all(axis=1))
            yield rows, *(values[:n, rows] for values, n in zip(ordered, n_present, strict=True))


def _as_table(
    rows: Sequence[Mapping[str, Any]],
    keys: Mapping[str, list[Any]],
    tables: Sequence[Table],
    roles: Roles,
    level: float,
) -> Table:
    n, compared = len(rows[0]["n"]), len({row["group"] for row in rows}) > 1
    columns: dict[str, Any] = {name: [row[name] for row in rows for _ in range(n)] for name in ("group", "column")}
    for name, cells in keys.items():
        columns[f"{name}_2" if name in COLUMNS else name] = Column(cells * len(rows), _unit(tables, [name]))
    unit = _unit(tables, roles.values)
    for name in ("mean", "low", "high", "n", *(("p",) if compared else ())):
        figures = np.concatenate([row[name] for row in rows])
        columns[name] = Column(figures, unit) if name in FIGURES[:3] else figures
    table = Table(columns)
    table.level = level
    return table


def _unit(tables: Sequence[Table], names: Sequence[str]) -> str:
    """Return the common unit of all figures; "" if units differ."""
    units = {next((table.units[name] for table in tables if name in table.units), "") for name in names}
    return units.pop() if len(units) == 1 else ""
