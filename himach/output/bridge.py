"""Columns for other programs: `unify_types()` gives them one type, `to_xarray()` makes a dataset of them.

`find_grid()` finds the grid of a table's rows: their axis, and the members of an ensemble.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from himach.analysis import FRAME, TIME
from himach.errors import UsageError
from himach.output.cells import EXACT_INTEGERS, Cells, plain, shortest

if TYPE_CHECKING:
    import xarray

Columns: TypeAlias = Mapping[str, Any]

#: The column that names the member of an ensemble, and the dimension of rows without an axis.
MEMBER, ROW = "member", "row"
#: Columns that locate a row, at any position in the table.
WHERE = (MEMBER, "group", TIME, FRAME)
#: Places of members are one if they differ by less than this part of the least spacing within a member.
ROUNDING = 0.01
#: Types of a column's cells, None aside -> type of the converted column.
KINDS: dict[frozenset[type], type] = {frozenset({kind}): kind for kind in (bool, int, float)}
KINDS[frozenset({int, float})] = float
INTEGERS = range(-(2**63), 2**63)  # of 64 bits
#: Units of time that are of one length, in the types of numpy that hold times.
TIME_UNITS = ("s", "ms", "us", "ns")


def to_xarray(columns: Columns, units: Mapping[str, str], level: float | None) -> xarray.Dataset:
    """Return columns as a dataset with a variable for each, as `Result.to_xarray` describes."""
    try:
        import xarray
    except ImportError:
        raise UsageError("to_xarray() needs xarray, which is not installed: pip install 'himach[xarray]'") from None
    grid = find_grid(columns)
    dims = list(grid.dims)
    variables: dict[str, tuple[list[str], npt.NDArray[Any], dict[str, Any]]] = {}
    for name, cells in columns.items():
        attributes = {"units": unit} if (unit := units.get(name)) else {}
        if name == grid.axis:
            variables[name] = ([name], grid.dims[name], attributes)
        elif name in grid.own:
            variables[name] = ([MEMBER], grid.member_values(cells), attributes)
        else:  # a variable named as a dimension is its coordinate
            variables[f"{name}_" if name == ROW and ROW in dims else name] = (dims, grid.lay_out(cells), attributes)
    places = {name for name in variables if name in (*WHERE, *dims, *grid.own)}
    return xarray.Dataset(
        {name: variable for name, variable in variables.items() if name not in places},
        {name: variables[name] for name in variables if name in places},
        {} if level is None else {"level": level},
    )


def unify_types(cells: Cells) -> Cells:
    """Return a column as a numpy array (n,), or as a list of cells of one type and None.

    Larger floats become float64. Cells without a common type, and complex numbers, become text, as in a CSV.
    """
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "mM":
        unit = np.datetime_data(cells.dtype)[0]
        return cells if unit in TIME_UNITS else cells.astype(f"{cells.dtype.kind}8[s]")
    if isinstance(cells, np.ndarray) and cells.dtype.kind != "c":
        return shortest(cells) if cells.dtype.itemsize > np.dtype(np.float64).itemsize else cells
    values = [plain(cell) for cell in cells]
    kind = KINDS.get(frozenset(type(cell) for cell in values if cell is not None))
    if kind is int and any(cell is not None and cell not in INTEGERS for cell in values):
        kind = None
    if kind is not None:
        return [None if cell is None else kind(cell) for cell in values]
    return [None if cell is None else clean(str(cell)) for cell in values]


def clean(text: str) -> str:
    """Escape characters that UTF-8 cannot encode."""
    return text.encode(errors="backslashreplace").decode()


def to_array(cells: Cells) -> Any:
    """Return a typed column as an array of numbers, nan for None, if that is lossless; else as objects."""
    if isinstance(cells, np.ndarray):
        return cells
    kinds = {type(cell) for cell in cells if cell is not None}
    exact = kinds == {float} or (kinds == {int} and all(cell is None or abs(cell) <= EXACT_INTEGERS for cell in cells))
    if exact:
        return np.array([np.nan if cell is None else cell for cell in cells], np.float64)
    return np.array([*cells, None], object)[:-1]


@dataclass(frozen=True, eq=False)
class Grid:
    """The grid of a table's rows."""

    axis: str | None  # column of the axis; None: rows are only counted
    dims: Mapping[str, Any]  # places along each dimension: members, then the axis or rows
    own: Sequence[str]  # columns constant within each member, if members are a dimension
    rows: npt.NDArray[np.int64]  # place of each row in the grid, which is raveled

    def lay_out(self, cells: Cells) -> npt.NDArray[Any]:
        """Return a column as an array with the dimensions of the grid; missing rows are nan, NaT or None."""
        column = to_array(cells if isinstance(cells, np.ndarray) and cells.dtype.kind == "c" else unify_types(cells))
        shape = [len(places) for places in self.dims.values()]
        if len(self.rows) < math.prod(shape):
            column = _with_gaps(column)
        fill = {"O": None, "m": "NaT", "M": "NaT", "f": np.nan, "c": np.nan}.get(column.dtype.kind, 0)
        array = np.full(math.prod(shape), fill, column.dtype)
        array[self.rows] = column
        return array.reshape(shape)

    def member_values(self, cells: Cells) -> npt.NDArray[Any]:
        """Return the value of each member, (members,)."""
        inner = math.prod(map(len, self.dims.values())) // len(self.dims[MEMBER])
        first_rows = np.unique(self.rows // inner, return_index=True)[1]
        column: npt.NDArray[Any] = to_array(unify_types(cells))[first_rows]
        return column


def find_grid(columns: Columns) -> Grid:
    """Find the grid of a table's rows.

    The axis is the first column if its floats ascend or descend; a single time (``time_ps``) is an axis, too. In an
    ensemble, the columns of members precede it, and it has the places of all members. Members are a dimension unless
    most places would be empty; with one row per member they are the only one.
    """
    first = next(iter(columns), None)
    rows = 0 if first is None else len(columns[first])
    if first == MEMBER and isinstance(columns[first], list) and rows:
        grid = _find_member_grid(columns, list(map(str, columns[first])))
        if grid is not None:
            return grid
    elif first is not None and _is_axis(first, [columns[first]]):
        return Grid(first, {first: np.asarray(columns[first])}, (), np.arange(rows))
    return Grid(None, {ROW: np.arange(rows)}, (), np.arange(rows))


def _find_member_grid(columns: Columns, column: list[str]) -> Grid | None:
    """Return the grid of an ensemble's table; None if rows are only counted."""
    names = list(dict.fromkeys(column))
    number = {name: i for i, name in enumerate(names)}
    member = np.array([number[name] for name in column], np.int64)
    if len(names) == len(column):
        return Grid(None, {MEMBER: names}, [MEMBER], member)
    member_rows = [np.flatnonzero(member == i) for i in range(len(names))]
    own = [MEMBER]
    for name in list(columns)[1:]:
        cells = columns[name]
        if isinstance(cells, np.ndarray) and _is_axis(name, [cells[rows] for rows in member_rows]):
            break
        if not all(len({repr(cells[row]) for row in rows}) == 1 for rows in member_rows):
            return None
        own.append(name)
    else:
        return None
    places = _merge_places([np.asarray(columns[name])[rows] for rows in member_rows])
    if len(names) * len(places) > 2 * len(column):
        return None
    order = np.argsort(places)
    nearest = np.searchsorted((places[order][1:] + places[order][:-1]) / 2, np.asarray(columns[name]))
    return Grid(name, {MEMBER: names, name: places}, own, member * len(places) + order[nearest])


def _is_axis(name: str, members: Sequence[Cells]) -> bool:
    """Tell whether a column is an axis: finite floats that ascend, or descend, in all members."""
    arrays = [cells for cells in members if isinstance(cells, np.ndarray) and cells.dtype.kind == "f"]
    if not arrays or len(arrays) < len(members) or not all(np.isfinite(array).all() for array in arrays):
        return False
    signs = {sign for array in arrays for sign in np.sign(np.diff(array)).tolist()}
    return len(signs) == 1 and 0 not in signs if signs else name == TIME


def _merge_places(members: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the places of all members in their order; places that differ by rounding are merged."""
    all_places = np.unique(np.concatenate(members))
    gaps = [np.abs(np.diff(places)).min() for places in members if len(places) > 1]
    is_new = np.diff(all_places, prepend=-np.inf) > (ROUNDING * min(gaps) if gaps else 0)
    places: npt.NDArray[Any] = all_places[is_new]
    return places[::-1] if any(len(array) > 1 and array[0] > array[-1] for array in members) else places


def _with_gaps(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert a column to a type that can represent missing values."""
    if column.dtype.kind in "fcmMO":
        return column
    exact = column.dtype.kind in "iu" and (
        not len(column) or int(np.abs(column.astype(object)).max()) <= EXACT_INTEGERS
    )
    return column.astype(np.float64 if exact else object)
