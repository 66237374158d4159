"""Tables as datasets of xarray: `to_xarray()`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from himach.analysis import FRAME, TIME
from himach.errors import UsageError
from himach.output.table import Table
from himach.output.table_files.grid import MEMBER, grid_of

if TYPE_CHECKING:
    import xarray

__all__ = ["ROW", "to_xarray"]

#: Name of the dimension of rows that have no axis.
ROW = "row"
#: Columns that say where a row is from, wherever they stand.
WHERE = (MEMBER, "group", TIME, FRAME)


def to_xarray(table: Table) -> xarray.Dataset:
    """Return a table as a dataset: a variable for each column, as `Result.to_xarray` tells.

    Raises
    ------
    UsageError
        If xarray is not installed.
    """
    try:
        import xarray
    except ImportError:
        raise UsageError("to_xarray() needs xarray, which is not installed: pip install 'himach[xarray]'") from None
    grid = grid_of(table)
    along = [] if grid.members is not None and grid.axis is None else [grid.axis or ROW]
    dims = along if grid.members is None else [MEMBER, *along]
    variables: dict[str, tuple[list[str], npt.NDArray[Any], dict[str, Any]]] = {}
    for name, cells in table.items():
        attributes = {"units": unit} if (unit := table.units.get(name)) else {}
        if name == grid.axis:
            variables[name] = (along, grid.places, attributes)
        elif grid.members is not None and (name == MEMBER or name in grid.own):
            variables[name] = ([MEMBER], grid.of_members(cells), attributes)
        else:
            # A variable that has a dimension's name is its coordinate.
            variables[f"{name}_" if name == ROW and ROW in dims else name] = (dims, grid.laid_out(cells), attributes)
    places = {name for name in variables if name in (*WHERE, *dims, *grid.own)}
    return xarray.Dataset(
        {name: variable for name, variable in variables.items() if name not in places},
        {name: variables[name] for name in variables if name in places},
        {} if table.level is None else {"level": table.level},
    )
