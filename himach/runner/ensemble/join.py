"""Joint outcome of members: `join()` concatenates their tables and compares groups of members."""

from __future__ import annotations

import warnings
from collections.abc import Container, Mapping, Sequence
from functools import partial
from itertools import chain, count
from operator import itemgetter
from typing import Any

import numpy as np

from himach.errors import UsageError
from himach.io.datasets.member import Lazy, Member
from himach.output.parts import parts
from himach.output.table import Note, Table
from himach.runner.ensemble.groups import column_roles, group_table

MEMBER, GROUP = "member", "group"
#: Suffix of a table's name for the table of its groups.
GROUPS = "_groups"
#: Cells of so many members are joined at a time.
TOGETHER = 1000


def join(label: str, members: Sequence[Member], outcomes: Sequence[Any], level: float | None) -> dict[str, Any]:
    """Return an analysis's outcome over an ensemble: members' tables concatenated, each with a table of groups."""
    lazily = Lazy(outcomes, lambda outcome: dict(parts(outcome, label)))
    by_member = lazily if isinstance(outcomes, Lazy) else [*lazily]
    joint: dict[str, Any] = {}
    places: dict[str, list[int]] = {}
    kinds: dict[str, set[type]] = {}
    for at, member_parts in enumerate(by_member):
        for name, thing in member_parts.items():
            places.setdefault(name, []).append(at)
            kinds.setdefault(name, set()).add(type(thing))
    for name, own in places.items():
        owners, things = [members[at] for at in own], Lazy(Lazy(own, by_member.__getitem__), itemgetter(name))
        if all(issubclass(kind, bool | int | float | str | np.generic) for kind in kinds[name]):
            things = Lazy(things, partial(_table_of, name))
        elif not all(issubclass(kind, Table) for kind in kinds[name]):
            joint.update({f"{name}-{member.name}": thing for member, thing in zip(owners, things, strict=True)})
            continue
        joint[name] = _concatenate(owners, things, own_columns(members))
        try:
            groups = None if level is None else group_table(owners, things, column_roles(things), level)
        except UsageError as error:
            warnings.warn(f"there is no {name}{GROUPS}: {error}", stacklevel=2)
            continue
        if groups is not None:
            joint[_unused_name(f"{name}{GROUPS}", places)] = groups
    return joint


def own_columns(members: Sequence[Member]) -> list[str]:
    """Return the columns that describe a member, besides its name."""
    groups = [GROUP] if any(member.group for member in members) else []
    return [*groups, *dict.fromkeys(name for member in members for name in member.metadata)]


def _concatenate(members: Sequence[Member], tables: Sequence[Table], extra: Sequence[str]) -> Table:
    """Return the concatenated tables, with columns that describe the members at the front."""
    rows: list[int] = []
    cells: dict[str, list[tuple[Any, int]]] = {}  # with the number of rows; None where a member lacks the column
    units: dict[str, str] = {}
    notes: dict[str, Note] = {}
    filled: set[str] = set()  # columns whose note is that of a table with rows
    level = None
    for table in tables:
        cells.update({name: [(None, n) for n in rows] for name in table if name not in cells})
        for name, own in cells.items():
            own.append((table.get(name), table.rows))
            if len(rows) % TOGETHER == TOGETHER - 1:
                own[-TOGETHER:] = _merged(own[-TOGETHER:])
        new = [name for name in table if name not in notes or (table.rows and name not in filled)]
        notes.update({name: table.note(name) for name in new})
        filled.update(table if table.rows else ())
        units = table.units | units
        level = table.level if level is None else level
        rows.append(table.rows)
    columns: dict[str, Any] = {MEMBER: _repeat([member.name for member in members], rows)}
    for name in extra:
        values = [member.group if name == GROUP else member.metadata.get(name) for member in members]
        # A table's own column keeps its name.
        column = name if name == GROUP or name not in cells else _unused_name(f"{MEMBER}_{name}", {**cells, **columns})
        columns[column] = _repeat(values, rows)
    front = [*columns]
    renamed = {name: name if name not in front else _unused_name(name, {**cells, **columns}) for name in cells}
    for name, column in renamed.items():
        columns[column] = _column(*zip(*cells.pop(name), strict=True))
    joint = Table(columns)
    joint.notes = {column: notes[name] for name, column in renamed.items()}
    joint.units = {column: units[name] for name, column in renamed.items() if units.get(name)}
    joint.level = level
    return joint


def _table_of(name: str, value: Any) -> Table:
    return Table({name: [value]})


def _merged(cells: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
    """Join arrays of one type: many small ones take several times the memory."""
    types = {column.dtype if isinstance(column, np.ndarray) and n else None for column, n in cells}
    if len(types) > 1 or None in types:
        return cells
    return [(np.concatenate([column for column, _ in cells]), sum(n for _, n in cells))]


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
