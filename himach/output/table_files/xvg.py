r"""``.xvg`` of a table: `xvg()`, as the tools of GROMACS write and read it: numbers over numbers, in columns.

Lines that begin with ``@`` are for Grace: title, axes with units, and a legend for each column. Units are in ASCII, as
Grace and the tools expect, exponents as these write them: ``Angstrom\S2\N``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from himach.output.cells import Cells
from himach.output.table import Table
from himach.output.table_files.columns import clean, masked, typed
from himach.output.table_files.csv_text import cell_texts
from himach.output.table_files.grid import Grid, grid_of

__all__ = ["xvg"]

ASCII = str.maketrans({"Å": "Angstrom", "°": "degrees", "µ": "u", "μ": "u", "·": "*"})
RAISED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
EXPONENT = re.compile(r"[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+")
VIEW = ("@    view 0.15, 0.15, 0.75, 0.85", "@    legend on", "@    legend box on", "@    legend loctype view")
PLACE = ("@    legend 0.78, 0.8", "@    legend length 2")


def xvg(table: Table, title: str) -> bytes:
    """Return a table as ``.xvg``: the numbers of its columns over those of the first.

    Columns that are no numbers are left out; None is nan. Of an ensemble there is a column for each member and column,
    with the member's name before the column's, over the places of all; what a member lacks there is nan.

    Raises
    ------
    TypeError
        If the first column, behind an ensemble's, is none of numbers, or members share no places.
    """
    grid = grid_of(table)
    columns = _numbers(table) if grid.members is None else _by_member(table, grid)
    x, *others = columns
    labels = [(name, table.units.get(column, "")) for name, column, _ in columns]
    units = {unit for _, unit in labels[1:]}
    shared = units.pop() if len(units) == 1 else ""
    y = others[0][0] if len(others) == 1 else ""
    lines = [
        f'@    title "{_quoted(title)}"',
        f'@    xaxis  label "{_label(x[0], labels[0][1])}"',
        f'@    yaxis  label "{_label(y, shared)}"',
        "@TYPE xy",
        *VIEW,
        *PLACE,
        *(f'@ s{i} legend "{_label(name, "" if shared else unit)}"' for i, (name, unit) in enumerate(labels[1:])),
    ]
    rows = zip(*([str(cell) for cell in _cells(column, cells)] for _, column, cells in columns), strict=True)
    return "\n".join([*lines, *(" ".join(row) for row in rows), ""]).encode()


def _numbers(table: Table) -> list[tuple[str, str, Cells]]:
    """Return columns of numbers, each as what it is called, its name and its cells."""
    numbers = {name: cells for name, column in table.items() if (cells := _real(column)) is not None}
    first = next(iter(table), None)
    if first not in numbers:
        raise TypeError(f"an .xvg has numbers over numbers, and the first column, {first!r}, is none of numbers")
    return [(name, name, cells) for name, cells in numbers.items()]


def _by_member(table: Table, grid: Grid) -> list[tuple[str, str, Cells]]:
    if grid.axis is None or grid.members is None:
        raise TypeError("an .xvg has numbers over numbers, and these are one row a member")
    names = [name for name in list(table)[1:] if name not in (grid.axis, *grid.own) and _real(table[name]) is not None]
    laid_out = {name: _real(grid.laid_out(table[name])) for name in names}
    several: Sequence[tuple[str, str, Cells]] = [
        (f"{member} {name}", name, cells[i])
        for i, member in enumerate(grid.members)
        for name, cells in laid_out.items()
        if cells is not None
    ]
    return [(grid.axis, grid.axis, grid.places), *several]


def _real(cells: Cells) -> Cells | None:
    """Return cells as an array of real numbers, nan for None; None if they are none."""
    column = masked(typed(cells)) if not isinstance(cells, np.ndarray) or cells.ndim == 1 else cells
    return column if column.dtype.kind in "biuf" else None


def _cells(name: str, cells: Cells) -> Cells:
    is_truth = isinstance(cells, np.ndarray) and cells.dtype.kind == "b"
    return list(cell_texts(name, np.asarray(cells, np.int64) if is_truth else cells))


def _label(name: str, unit: str) -> str:
    """Return what an axis or a legend shows: the name without a unit at its end, and the unit."""
    shown = name.removesuffix(f"_{unit}") if unit else name
    unit = EXPONENT.sub(lambda found: rf"\S{found[0].translate(RAISED)}\N", unit.translate(ASCII))
    return _quoted(f"{shown} ({unit})".strip() if unit else shown)


def _quoted(text: str) -> str:
    return " ".join(clean(text).replace('"', "'").split())
