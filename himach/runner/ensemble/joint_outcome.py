"""Joint outcome of members: `join()` concatenates their tables and compares groups of members."""

import warnings
from collections.abc import Container, Mapping, Sequence
from itertools import chain, count
from typing import Any

import numpy as np

from himach.errors import UsageError
from himach.io.datasets.member import Member
from himach.output.parts import parts
from himach.output.table import Table
from himach.runner.ensemble.groups import column_roles, group_table

MEMBER, GROUP = "member", "group"
#: Suffix of a table's name for the table of its groups.
GROUPS = "_groups"


def join(label: str, members: Sequence[Member], outcomes: Sequence[Any], level: float | None) -> dict[str, Any]:
    """Return an analysis's outcome over an ensemble: members' tables concatenated, each with a table of groups."""
    by_member = [dict(parts(outcome, label)) for outcome in outcomes]
    joint: dict[str, Any] = {}
    names = list(dict.fromkeys(name for member_parts in by_member for name in member_parts))
    for name in names:
        own = [at for at, member_parts in enumerate(by_member) if name in member_parts]
        owners, things = [members[at] for at in own], [by_member[at][name] for at in own]
        if all(isinstance(thing, bool | int | float | str | np.generic) for thing in things):
            things = [Table({name: [thing]}) for thing in things]
        elif not all(isinstance(thing, Table) for thing in things):
            joint.update({f"{name}-{member.name}": thing for member, thing in zip(owners, things, strict=True)})
            continue
        joint[name] = _concatenate(owners, things, own_columns(members))
        try:
            groups = None if level is None else group_table(owners, things, column_roles(things), level)
        except UsageError as error:
            warnings.warn(f"there is no {name}{GROUPS}: {error}", stacklevel=2)
            continue
        if groups is not None:
            joint[_unused_name(f"{name}{GROUPS}", names)] = groups
    return joint


def own_columns(members: Sequence[Member]) -> list[str]:
    """Return the columns that describe a member, besides its name."""
    groups = [GROUP] if any(member.group for member in members) else []
    return [*groups, *dict.fromkeys(name for member in members for name in member.metadata)]


def _concatenate(members: Sequence[Member], tables: Sequence[Table], extra: Sequence[str]) -> Table:
    """Return the concatenated tables, with columns that describe the members at the front."""
    rows = [table.rows for table in tables]
    names = dict.fromkeys(name for table in tables for name in table)
    cells = {name: [table.get(name) for table in tables] for name in names}  # None where a member lacks the column
    # Columns of empty tables have no reliable notes.
    ordered = sorted(tables, key=lambda table: table.rows == 0)
    notes = {name: next(table.note(name) for table in ordered if name in table) for name in names}
    units = {name: next((table.units[name] for table in tables if name in table.units), "") for name in names}
    columns: dict[str, Any] = {MEMBER: _repeat([member.name for member in members], rows)}
    for name in extra:
        values = [member.group if name == GROUP else member.metadata.get(name) for member in members]
        # A table's own column keeps its name.
        column = name if name == GROUP or name not in cells else _unused_name(f"{MEMBER}_{name}", {**cells, **columns})
        columns[column] = _repeat(values, rows)
    front = [*columns]
    renamed = {name: name if name not in front else _unused_name(name, {**cells, **columns}) for name in cells}
    for name, column in renamed.items():
        columns[column] = _column(cells[name], rows)
    joint = Table(columns)
    joint.notes = {column: notes[name] for name, column in renamed.items()}
    joint.units = {column: units[name] for name, column in renamed.items() if units[name]}
    joint.level = next((table.level for table in tables if table.level is not None), None)
    return joint


def _unused_name(name: str, taken: Container[str]) -> str:
    names = chain([name], (f"{name}_{number}" for number in count(2)))
    return next(candidate for candidate in names if candidate not in taken)


def _repeat(cells: Sequence[Any], rows: Sequence[int]) -> list[Any]:
    return [cell for cell, n in zip(cells, rows, strict=True) for _ in range(n)]


def _column(cells: Sequence[Any], rows: Sequence[int]) -> Any:
    """Return the concatenated columns of members; nan or None replaces a member's missing column."""
    present = [column for column in cells if column is not None]
    nonempty = [column for column in present if len(column)] or present  # an empty column has no reliable type
    kinds = {column.dtype.kind if isinstance(column, np.ndarray) else "O" for column in nonempty}
    is_float = "f" in kinds and kinds <= set("iuf")
    if is_float or (len(kinds) == 1 and "O" not in kinds and len(present) == len(cells)):
        filled = [np.full(n, np.nan) if column is None else column for column, n in zip(cells, rows, strict=True) if n]
        return np.concatenate(filled or nonempty)
    return [
        cell
        for column, n in zip(cells, rows, strict=True)
        for cell in ([None] * n if column is None else _as_list(column))
    ]


def _as_list(column: Mapping[str, Any] | Any) -> list[Any]:
    return column.tolist() if isinstance(column, np.ndarray) else list(column)
