"""Outcomes of members as one: `joined()` puts their tables below one another and compares groups of members."""

from __future__ import annotations

import warnings
from collections.abc import Container, Mapping, Sequence
from itertools import chain, count
from typing import Any

import numpy as np

from himach.errors import UsageError
from himach.opening.member import Member
from himach.output.parts import parts
from himach.output.table import Note, Table
from himach.runner.ensemble.columns import roles_of
from himach.runner.ensemble.groups import group_table

MEMBER, GROUP = "member", "group"
#: What is put to a table's name for that of its groups.
GROUPS = "_groups"


def joined(label: str, members: Sequence[Member], outcomes: Sequence[Any], level: float | None) -> dict[str, Any]:
    """Return an analysis's outcome over an ensemble: members' tables below one another, and beside each its groups."""
    named = [dict(parts(outcome, label)) for outcome in outcomes]
    joint: dict[str, Any] = {}
    every = dict.fromkeys(name for of_member in named for name in of_member)
    for name in every:
        owned = [(member, things[name]) for member, things in zip(members, named, strict=True) if name in things]
        owners, things = [member for member, _ in owned], [thing for _, thing in owned]
        if all(isinstance(thing, bool | int | float | str | np.generic) for thing in things):
            things = [Table({name: [thing]}) for thing in things]
        if not all(isinstance(thing, Table) for thing in things):
            joint.update({f"{name}-{member.name}": thing for member, thing in owned})
            continue
        joint[name] = _below(owners, things, own_columns(members))
        try:
            groups = None if level is None else group_table(owners, things, roles_of(things), level)
        except UsageError as error:
            warnings.warn(f"there is no {name}{GROUPS}: {error}", stacklevel=2)
            continue
        if groups is not None:
            joint[_free(f"{name}{GROUPS}", every)] = groups
    return joint


def own_columns(members: Sequence[Member]) -> list[str]:
    """Return the columns that say what a member is, behind its name."""
    groups = [GROUP] if any(member.group for member in members) else []
    return [*groups, *dict.fromkeys(name for member in members for name in member.metadata)]


def _below(members: Sequence[Member], tables: Sequence[Table], own: Sequence[str]) -> Table:
    """Return tables below one another, with what their members are at the front."""
    rows = [table.rows for table in tables]
    names = dict.fromkeys(name for table in tables for name in table)
    columns: dict[str, Any] = {MEMBER: _repeated([member.name for member in members], rows)}
    for name in own:
        cells = [member.group if name == GROUP else member.metadata.get(name) for member in members]
        # What a table itself has keeps its name.
        place = name if name == GROUP or name not in names else _free(f"{MEMBER}_{name}", {**names, **columns})
        columns[place] = _repeated(cells, rows)
    units: dict[str, str] = {}
    notes: dict[str, Note] = {}
    own_names = [*columns]
    for name in names:
        place = name if name not in own_names else _free(name, {**names, **columns})
        columns[place] = _column([table.get(name) for table in tables], rows)
        units[place] = next((table.units[name] for table in tables if name in table.units), "")
        present = [table for table in tables if name in table]
        notes[place] = next((table for table in present if table.rows), present[0]).note(name)
    joint = Table(columns)
    joint.notes = notes
    joint.units = {name: unit for name, unit in units.items() if unit}
    joint.level = next((table.level for table in tables if table.level is not None), None)
    return joint


def _free(name: str, taken: Container[str]) -> str:
    """Return a name that is not taken: the one that is wanted, or with a number."""
    names = chain([name], (f"{name}_{number}" for number in count(2)))
    return next(each for each in names if each not in taken)


def _repeated(cells: Sequence[Any], rows: Sequence[int]) -> list[Any]:
    return [cell for cell, n in zip(cells, rows, strict=True) for _ in range(n)]


def _column(cells: Sequence[Any], rows: Sequence[int]) -> Any:
    """Return one column of several members' ones; what a member does not have is nan, or None."""
    present = [column for column in cells if column is not None]
    there = [column for column in present if len(column)] or present  # no row says nothing of what rows are of
    kinds = {column.dtype.kind if isinstance(column, np.ndarray) else "O" for column in there}
    is_float = "f" in kinds and kinds <= set("iuf")
    if is_float or (len(kinds) == 1 and "O" not in kinds and len(present) == len(cells)):
        filled = [np.full(n, np.nan) if column is None else column for column, n in zip(cells, rows, strict=True) if n]
        return np.concatenate(filled or there)
    return [
        cell
        for column, n in zip(cells, rows, strict=True)
        for cell in ([None] * n if column is None else _listed(column))
    ]


def _listed(column: Mapping[str, Any] | Any) -> list[Any]:
    return column.tolist() if isinstance(column, np.ndarray) else list(column)
