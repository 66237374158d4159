"""Columns for other programs: `unify_types()` gives them one type, `to_xarray()` makes a dataset of them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from himach.analysis import FRAME, TIME
from himach.errors import UsageError
from himach.output.cells import EXACT_INTEGERS, Cells, plain, shortest

if TYPE_CHECKING:
    import xarray

Columns: TypeAlias = Mapping[str, Any]

#: The dimension of rows without an axis.
ROW = "row"
#: Columns that locate a row, at any position in the table.
WHERE = ("member", "group", TIME, FRAME)
#: Types of a column's cells, None aside -> type of the converted column.
KINDS: "dict[frozenset[type], type]" = {frozenset({kind}): kind for kind in (bool, int, float)}
KINDS[frozenset({int, float})] = float
INTEGERS = range(-(2**63), 2**63)  # of 64 bits
#: Units of time that are of one length, in the types of numpy that hold times.
TIME_UNITS = ("s", "ms", "us", "ns")


def to_xarray(columns: Columns, units: Mapping[str, str], level: float | None) -> "xarray.Dataset":
    """Return columns as a dataset with a variable for each, as `Result.to_xarray` describes."""
    try:
        import xarray
    except ImportError:
        raise UsageError("to_xarray() needs xarray, which is not installed: pip install 'himach[xarray]'") from None
    axis = next(iter(columns), None)
    dim = axis if axis is not None and _is_axis(axis, columns[axis]) else ROW
    variables = {}
    for name, cells in columns.items():
        attributes = {"units": unit} if (unit := units.get(name)) else {}
        is_complex = isinstance(cells, np.ndarray) and cells.dtype.kind == "c"
        # a variable named as a dimension is its coordinate
        variable = f"{name}_" if name == ROW == dim else name
        variables[variable] = ([dim], to_array(cells if is_complex else unify_types(cells)), attributes)
    places = {name for name in variables if name in (*WHERE, dim)}
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


def _is_axis(name: str | None, cells: Any) -> bool:
    """Tell whether the first column is an axis: finite floats that ascend or descend, or a single time."""
    if not isinstance(cells, np.ndarray) or cells.dtype.kind != "f" or not np.isfinite(cells).all():
        return False
    signs = set(np.sign(np.diff(cells)).tolist())
    return len(signs) == 1 and 0 not in signs if signs else name == TIME
