"""Where the rows of a table lie: along an axis, and of an ensemble by members: `grid_of()`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from himach.analysis import TIME
from himach.output.cells import Cells
from himach.output.table import Table
from himach.output.table_files.columns import masked, typed

__all__ = ["MEMBER", "Grid", "grid_of"]

#: The column of an ensemble's tables that says whose a row is.
MEMBER = "member"
#: By how much of the least distance of a member's places those of others differ that are meant to be one.
ROUNDING = 0.01
LARGEST_EXACT = 2**53  # integers up to it are float64, too

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Grid:
    """Where the rows of a table lie.

    Attributes
    ----------
    axis
        Column of the places along the axis; None: rows are counted only, and have no axis.
    places
        Places along it, in order.
    members
        Names of the members that are a dimension; None: they are none.
    own
        Columns that say something of a member as a whole, where members are a dimension.
    rows
        For each row its index in an array of `shape`, as of ``numpy.ndarray.ravel``.
    """

    axis: str | None
    places: npt.NDArray[Any]
    members: list[str] | None
    own: Sequence[str]
    rows: Integers

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a column that is laid out: members, then places."""
        inner = () if self.members is not None and self.axis is None else (len(self.places),)
        return inner if self.members is None else (len(self.members), *inner)

    def laid_out(self, cells: Cells) -> npt.NDArray[Any]:
        """Return a column as an array of `shape`; nan, or None of what are no numbers, where there is no row."""
        column = masked(cells if isinstance(cells, np.ndarray) and cells.dtype.kind == "c" else typed(cells))
        size = int(np.prod(self.shape))
        if len(self.rows) < size:
            column = _with_gaps(column)
        fill = None if column.dtype == object else np.zeros(1, column.dtype)[0]
        array = np.full(size, fill, column.dtype)
        if len(self.rows) < size and column.dtype.kind in "fcmM":
            array[:] = np.nan if column.dtype.kind in "fc" else np.array("NaT", column.dtype)
        array[self.rows] = column
        return array.reshape(self.shape)

    def of_members(self, cells: Cells) -> npt.NDArray[Any]:
        """Return what a column says of each member, (members,)."""
        assert self.members is not None
        inner = max(1, len(self.places))
        first = [int(np.argmax(self.rows // inner == i)) for i in range(len(self.members))]
        column: npt.NDArray[Any] = masked(typed(cells))[first]
        return column


def grid_of(table: Table) -> Grid:
    """Return where the rows of a table lie.

    The axis is the first column if that is of floats that ascend, or descend; times (``time_ps``) are one even where
    there is but one row. Of an ensemble the columns of the members go before it. Their axis are the places of all of
    them, and members are a dimension unless most places would be empty; where each has one row, they are the only one.
    """
    names = list(table)
    members = table.get(MEMBER) if names and names[0] == MEMBER else None
    if isinstance(members, list) and members:
        return _of_members(table, members) or _rows(table.rows)
    first = names[0] if names else None
    if first is not None and _is_axis(first, [table[first]]):
        return Grid(first, np.asarray(table[first]), None, (), np.arange(table.rows))
    return _rows(table.rows)


def _rows(n: int) -> Grid:
    return Grid(None, np.arange(n), None, (), np.arange(n))


def _of_members(table: Table, column: list[Any]) -> Grid | None:
    """Return the grid of an ensemble's table; None where rows are only counted."""
    names = list(dict.fromkeys(map(str, column)))
    number = {name: i for i, name in enumerate(names)}
    member: Integers = np.array([number[str(name)] for name in column], np.int64)
    if len(names) == table.rows:
        return Grid(None, np.empty(0), names, (), member)
    each = [np.flatnonzero(member == i) for i in range(len(names))]
    own: list[str] = []
    for name in [name for name in table if name != MEMBER]:
        cells = table[name]
        if _is_axis(name, [np.asarray(cells)[rows] for rows in each] if isinstance(cells, np.ndarray) else []):
            break
        if not all(len({repr(cells[row]) for row in rows}) == 1 for rows in each):
            return None
        own.append(name)
    else:
        return None
    places = _together([np.asarray(table[name])[rows] for rows in each])
    if len(names) * len(places) > 2 * table.rows:
        return None
    order = np.argsort(places)
    nearest = np.searchsorted(_middles(places[order]), np.asarray(table[name]))
    return Grid(name, places, names, own, member * len(places) + order[nearest])


def _is_axis(name: str, members: Sequence[Cells]) -> bool:
    """Tell whether a column is an axis: of floats that ascend, or descend, in all members."""
    arrays = [cells for cells in members if isinstance(cells, np.ndarray) and cells.dtype.kind == "f"]
    if not arrays or len(arrays) < len(members) or not all(np.isfinite(array).all() for array in arrays):
        return False
    signs: set[Literal[-1, 0, 1]] = {sign for array in arrays for sign in np.sign(np.diff(array)).tolist()}
    return len(signs) == 1 and 0 not in signs if signs else name == TIME


def _together(members: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the places of all members, in the order in which they have them; such as differ by rounding are one."""
    every = np.unique(np.concatenate(members))
    gaps = [np.abs(np.diff(places)).min() for places in members if len(places) > 1]
    new = np.diff(every, prepend=-np.inf) > (ROUNDING * min(gaps) if gaps else 0)
    places: npt.NDArray[Any] = every[new]
    return places[::-1] if any(len(one) > 1 and one[0] > one[-1] for one in members) else places


def _middles(places: npt.NDArray[Any]) -> npt.NDArray[Any]:
    middles: npt.NDArray[Any] = (places[1:] + places[:-1]) / 2
    return middles


def _with_gaps(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a column in a type that has a value for what is not there."""
    if column.dtype.kind in "fcmMO":
        return column
    exact = column.dtype.kind in "iu" and (not len(column) or int(np.abs(column.astype(object)).max()) <= LARGEST_EXACT)
    return column.astype(np.float64 if exact else object)
