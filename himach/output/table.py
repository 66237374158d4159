"""Tables: `Table`, `Column` with its unit, conversion to tables (`as_table`), and the default outcome.

A table is a dict of equally long columns: arrays (n,) of numbers, or lists of objects. The default outcome is a table
of keys and results (`default_outcome`).
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from himach.analysis import FRAME, TIME
from himach.errors import UsageError
from himach.output.bridge import to_xarray
from himach.output.cells import EXACT_INTEGERS, Cells
from himach.output.text import table_html, table_text

if TYPE_CHECKING:
    import pandas
    import xarray

    from himach.uncertainty import Estimate


#: Requests for the uncertainty of a column: none, a mean, limits of counts, a band by blocks of frames, or a
#: function of the confidence level.
Estimated = (
    bool
    | Literal["count"]
    | tuple[npt.NDArray[Any], npt.NDArray[Any]]
    | Callable[[float], "Estimate[npt.NDArray[Any]]"]
)

Role = Literal["x", "value", "label"]


class Note(NamedTuple):
    """Metadata of a `Column` beside its cells and its unit."""

    role: Role | None = None
    absent: float | None = None
    within: tuple[float, float] = (-np.inf, np.inf)


class Column:
    """A column of a table and its unit, for a table that is made of columns.

    It reads as its cells do. The unit goes to axis labels, to the record (run.json), to what `Result.save` writes and
    to ``attrs`` of a pandas DataFrame; names of columns and the cells stay as they are.

    Parameters
    ----------
    values
        Cells (n,): an array or a sequence; numbers become an array.
    unit
        As people write it: ``"Å"``, ``"ps"``, ``"kJ/mol"``; "" for none.
    estimate
        Uncertainty of the values at the run's level of confidence. True: their mean with an interval
        (`himach.uncertainty.mean`) below the table, of numbers in the order of time. ``"count"``: limits of each number
        of events (`himach.uncertainty.count`). A pair (sums, weights) by blocks of frames, of which the values are the
        ratio: a band (`himach.uncertainty.of_blocks`). A function of the level: limits as of the `Estimate` that it
        returns. Limits become columns, ``<column>_low`` and ``<column>_high``.
    role
        What the column is where members of an ensemble are compared. ``"x"``: the axis, which all members share.
        ``"value"``: a figure. ``"label"``: neither, such as a residue; labels before the first figure tell rows apart.
        None: ``time_ps`` is ``"x"``; ``frame``, and what is not numbers, a label; anything else a value.
    absent
        Value of a row that a member of an ensemble lacks, such as 0 for how often something occurs. None: such members
        say nothing of the row.
    within
        The least and the greatest possible value, such as (0, 1) of a share: intervals stay within these.

    Raises
    ------
    UsageError
        If the values are no sequence of cells, the unit is no text on one line, or there is no such role; if an
        estimate is requested of what are no real numbers.

    Examples
    --------
    >>> table = himach.Table({"time_ps": himach.Column([0.0, 0.2], unit="ps"), "state": ["open", "shut"]})
    >>> table.units
    {'time_ps': 'ps'}
    >>> table.label("time_ps", "time")
    'time / ps'
    """

    __slots__ = ("estimate", "note", "unit", "values")

    def __init__(
        self,
        values: Any,
        unit: str = "",
        *,
        estimate: Estimated = False,
        role: Role | None = None,
        absent: float | None = None,
        within: tuple[float, float] | None = None,
    ) -> None:
        if not isinstance(unit, str) or not (unit == "" or unit.isprintable()):
            raise UsageError(f"Column: a unit is a text such as 'ps', not {unit!r}")
        if role not in (None, *get_args(Role)):
            raise UsageError(f"Column: a role is 'x', 'value' or 'label', not {role!r}")
        if isinstance(values, Column):
            values = values.values
        if not _is_column(values):
            raise UsageError(f"Column: values must be a sequence (n,), not {_describe(values)}")
        self.values: Cells = _column(values)
        if role == "value" and len(self.values) and _usual_role("", self.values) != role:
            raise UsageError("Column: the role 'value' is one of real numbers, and not all cells are some")
        self.unit, self.estimate = unit, estimate
        self.note = Note(role, absent, within or Note().within)
        if estimate is not False and getattr(getattr(self.values, "dtype", None), "kind", "") not in tuple("biuf"):
            raise UsageError("Column: an estimate is of real numbers, and not all cells are some")

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> Any:
        return self.values[rows]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        array = np.asarray(self.values, dtype=dtype)
        return array.copy() if copy else array

    def __repr__(self) -> str:
        return f"Column({self.values!r}, unit={self.unit!r})"


class Table(dict[str, Any]):
    """A dict of equally long columns that prints itself as a table.

    Columns are arrays where the cells are numbers, lists where they are objects. Arrays of a long table of
    rows are `numpy.memmap`: they lie on the disk of the first rank's node.

    Parameters
    ----------
    columns
        Mapping of column name to cells (n,): an array, a sequence or a `Column`. Columns of numbers become arrays,
        others lists. The index of a pandas Series, where it is more than row numbers, becomes a column too, by which
        several are put beside one another.

    Attributes
    ----------
    rows
        Number of rows; ``len(table)`` is the number of columns, as of every dict.
    units
        Units by the names of columns; those that have none are not there.
    estimates
        What the run shall tell of columns, by their names, as `Column` has it.
    notes
        `Note` by the names of columns: role, value of a row that is not there, limits of values.
    level
        Confidence of the limits that the run put beside columns; None: it put none.
    means
        `himach.uncertainty.Estimate` of the mean of columns that asked for one, by their names.

    Raises
    ------
    UsageError
        If a column is no sequence of cells, or the columns differ in length.

    Examples
    --------
    >>> himach.Table({"time_ps": [0.0, 0.2], "rmsd": [0.0, 1.25], "state": ["open", None]})
    time_ps  rmsd  state
    -------  ----  -----
        0.0  0.00  open
        0.2  1.25
    [2 rows]
    """

    def __init__(self, columns: Mapping[Any, Any]) -> None:
        super().__init__()
        self.units: dict[str, str] = {}
        self.estimates: dict[str, Estimated] = {}
        self.notes: dict[str, Note] = {}
        self.means: dict[str, Estimate[float]] = {}
        self.level: float | None = None
        if isinstance(columns, Table):
            self.take_notes(columns)
        column_objects = {str(name): cells for name, cells in columns.items() if isinstance(cells, Column)}
        self.units |= {name: column.unit for name, column in column_objects.items() if column.unit}
        self.estimates |= {name: column.estimate for name, column in column_objects.items() if column.estimate}
        self.notes |= {name: column.note for name, column in column_objects.items()}
        columns = {name: cells.values if isinstance(cells, Column) else cells for name, cells in columns.items()}
        columns = _with_index(columns)
        for name, cells in columns.items():
            if not _is_column(cells):
                raise UsageError(f"Table: column {name!r} must be a sequence (n,), not {_describe(cells)}")
            self[str(name)] = _column(cells)
        lengths = {name: len(cells) for name, cells in self.items()}
        if len(set(lengths.values())) > 1:
            raise UsageError(f"Table: columns must be equally long, these have {lengths} rows")

    def take_notes(self, other: "Table") -> "Table":
        """Copy another table's metadata; return this table."""
        self.units, self.estimates, self.notes = dict(other.units), dict(other.estimates), dict(other.notes)
        self.means, self.level = dict(other.means), other.level
        return self

    def note(self, name: str) -> Note:
        """Return the note of a column, with its usual role if it has none."""
        note = self.notes.get(name, Note())
        return note if note.role else note._replace(role=_usual_role(name, self.get(name, ())))

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.values()), ()))

    def label(self, column: str, name: str | None = None) -> str:
        """Return a column's name, or another one for it, with its unit: as an axis shows it."""
        unit = self.units.get(column)
        return f"{name or column} / {unit}" if unit else name or column

    def to_frame(self) -> "pandas.DataFrame":
        """Return the table as a pandas DataFrame, with units of columns as ``attrs["units"]``."""
        try:
            import pandas
        except ImportError:
            raise UsageError("to_frame() needs pandas, which is not installed: pip install 'himach[pandas]'") from None
        frame = pandas.DataFrame({name: cells[:] for name, cells in self.items()})
        frame.attrs["units"] = dict(self.units)
        return frame

    def to_xarray(self) -> "xarray.Dataset":
        """Return the table as an xarray Dataset, as `Result.to_xarray` tells."""
        return to_xarray(self, self.units, self.level)

    def __repr__(self) -> str:
        return table_text(self)

    def _repr_html_(self) -> str:
        return table_html(self)


def _usual_role(name: str, cells: Any) -> Role:
    """Return the default role of a column."""
    if name in (TIME, FRAME):
        return "x" if name == TIME else "label"
    if isinstance(cells, np.ndarray):
        return "value" if cells.dtype.kind in "biuf" else "label"
    numeric = all(
        isinstance(cell, int | float | np.number) and not isinstance(cell, bool) for cell in cells if cell is not None
    )
    return "value" if numeric and any(cell is not None for cell in cells) else "label"


def as_table(value: Any) -> Table | None:
    """Return `value` as a table, or None if it is none.

    Tables are a `Table`, a dict of at least one column (all equally long, 1-D, no strings), a structured array (n,)
    whose fields are 1-D, and a pandas DataFrame or Series, whose index, where it is more than row numbers, becomes
    columns too. A column may be a `Column`.
    """
    if isinstance(value, Table):
        return value
    if isinstance(value, np.ndarray):
        return _from_structured(value)
    if isinstance(value, Mapping):
        return Table(unique_columns(value.items())) if _are_columns(value) and not uneven_lengths(value) else None
    return _from_pandas(value)


def default_outcome(results: Mapping[Any, Any], key_names: Sequence[str] = ()) -> Table:
    """Return the outcome of an analysis without finish(): a table of keys and results."""
    keys = [(name, Column(cells, role="label")) for name, cells in _key_columns(list(results), key_names)]
    return Table(unique_columns([*keys, *_result_columns(list(results.values()))]))


def _key_columns(keys: list[Any], names: Sequence[str]) -> list[tuple[str, list[Any]]]:
    names = [names] if isinstance(names, str) else [str(name) for name in names]
    lengths = {len(key) if isinstance(key, tuple) else 0 for key in keys} or {len(names) if len(names) > 1 else 0}
    length = lengths.pop() if len(lengths) == 1 else 0
    usual = [f"key_{i}" for i in range(length)] or ["key"]
    if names and len(names) != len(usual):
        parts = f"tuples of {length}" if length else "not tuples of one length"
        warnings.warn(
            f"key_names are {', '.join(names)}, but keys are {parts}: the columns are {', '.join(usual)}", stacklevel=4
        )
        names = []
    cells = [[key[i] for key in keys] for i in range(length)] if length else [keys]
    return list(zip(names or usual, cells, strict=True))


def _result_columns(results: list[Any]) -> list[tuple[str, list[Any]]]:
    rows = []
    for result in results:
        fields = result_fields(result)
        if fields is None:
            return [("result", results)]
        rows.append(fields)
    names = dict.fromkeys(name for row in rows for name in row)
    return [(name, [row.get(name) for row in rows]) for name in names] or [("result", results)]


def result_fields(result: Any) -> dict[str, Any] | None:
    """Return the fields of a result by name: of a dict with text keys or a named tuple; None for others.

    An estimate has mean, low, high and n_eff.
    """
    uncertainty = sys.modules.get("himach.uncertainty")  # if it is not imported, nothing can be an estimate
    if uncertainty is not None and isinstance(result, uncertainty.Estimate):
        return {"mean": result.value, "low": result.low, "high": result.high, "n_eff": result.n_eff}
    if isinstance(result, Mapping):
        return dict(result) if all(isinstance(name, str) for name in result) else None
    return dict(result._asdict()) if isinstance(result, tuple) and hasattr(result, "_asdict") else None


def _are_columns(value: Mapping[Any, Any]) -> bool:
    columns = list(value.values())
    return bool(columns) and all(_is_column(cells) and not _is_nested(cells) for cells in columns)


def uneven_lengths(value: Any) -> dict[str, int]:
    """Return the lengths of columns by name if only these keep a dict of columns from being a table."""
    if isinstance(value, Table) or not isinstance(value, Mapping) or not _are_columns(value):
        return {}
    lengths = {str(name): len(cells) for name, cells in value.items()}
    return lengths if len(set(lengths.values())) > 1 else {}


def _from_structured(value: npt.NDArray[Any]) -> Table | None:
    columns = {name: value[name] for name in value.dtype.names or ()}
    return Table(columns) if columns and value.ndim == 1 and all(map(_is_column, columns.values())) else None


def _from_pandas(value: Any) -> Table | None:
    pandas = sys.modules.get("pandas")  # if it is not imported, nothing can be a DataFrame
    if pandas is None:
        return None
    if isinstance(value, pandas.Series):
        value = value.to_frame("value" if value.name is None else value.name)
    if not isinstance(value, pandas.DataFrame):
        return None
    if not _row_numbers(value.index):
        value = value.reset_index(allow_duplicates=True)
    columns = [(_flat(name), value.iloc[:, i].to_numpy()) for i, name in enumerate(value.columns)]
    if not columns:
        return None
    table, units = Table(unique_columns(columns)), value.attrs.get("units", {})
    table.units.update({name: unit for name, unit in units.items() if name in table})
    return table


def _row_numbers(index: Any) -> bool:
    """Tell whether a pandas index only counts rows: 0, 1, 2, ... without a name."""
    if index.nlevels > 1 or index.name is not None:
        return False
    return index.dtype.kind in "iu" and np.array_equal(index.to_numpy(), np.arange(len(index)))


def _with_index(columns: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Add the index of columns that are pandas Series, unless it only counts rows."""
    pandas = sys.modules.get("pandas")
    if pandas is None:
        return columns
    series = [cells for cells in columns.values() if isinstance(cells, pandas.Series)]
    if all(_row_numbers(cells.index) for cells in series):
        return columns
    try:
        return _from_pandas(pandas.DataFrame(dict(columns))) or columns
    except ValueError as error:
        raise UsageError(f"Table: the columns cannot be put beside one another: {error}") from None


def _flat(name: Any) -> str:
    """Return a column's name; the levels of a multi-level one are joined by spaces."""
    return " ".join(str(level) for level in name if level != "") if isinstance(name, tuple) else str(name)


def unique_columns(columns: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """Return columns by name; repeated names are numbered, so that no column is lost."""
    by_name: dict[str, Any] = {}
    for name, cells in columns:
        unique = str(name)
        number = 2
        while unique in by_name:
            unique = f"{name}_{number}"
            number += 1
        by_name[unique] = cells
    return by_name


def _is_column(cells: Any) -> bool:
    if isinstance(cells, Column):
        return True
    if isinstance(cells, np.ndarray):
        return cells.ndim == 1 and cells.dtype.names is None
    if isinstance(cells, Sequence):
        return not isinstance(cells, str | bytes | bytearray | memoryview)
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(cells, pandas.Series | pandas.Index)


def _is_nested(cells: Any) -> bool:
    """Tell whether cells are lists, arrays or dicts: data of more than one dimension, no column."""
    if isinstance(cells, Column):
        return False
    if isinstance(cells, np.ndarray) and cells.dtype != object:
        return False
    return any(isinstance(cell, list | Mapping) or (isinstance(cell, np.ndarray) and cell.ndim) for cell in cells)


def _column(cells: Any) -> Cells:
    """Return cells as an array if all are numbers of one kind, else as a list."""
    if "numpy.ma" in sys.modules and isinstance(cells, np.ma.MaskedArray):  # numpy.ma takes a while to import
        cells = cells.filled(np.nan) if cells.dtype.kind == "f" else cells.tolist()
    elif not isinstance(cells, np.ndarray | list | tuple | range):
        cells = np.asarray(cells)
    if isinstance(cells, np.ndarray):
        array = cells if isinstance(cells, np.memmap) else np.asarray(cells)
        if array.dtype.kind == "S":  # text of C or Fortran
            array = np.char.decode(array, "utf-8", "backslashreplace")
        return array if array.dtype.kind in "biufcMm" else array.tolist()
    cells = [cell[()] if isinstance(cell, np.ndarray) and cell.ndim == 0 else cell for cell in cells]
    return _as_numbers(cells)


def _as_numbers(cells: list[Any]) -> Cells:
    types = set(map(type, cells))
    if not types:
        return np.empty(0)
    if all(issubclass(cell, bool | np.bool_) for cell in types):
        return np.array(cells, dtype=bool)
    if any(issubclass(cell, bool) or not issubclass(cell, _NUMBERS) for cell in types):
        return cells
    integers = {cell for cell in types if issubclass(cell, int | np.integer)}
    if integers and integers != types:
        largest = max(abs(int(cell)) for cell in cells if type(cell) in integers)
        return np.array(cells) if largest <= EXACT_INTEGERS else cells
    array = np.array(cells)
    # Integers that fit no integer type are kept: numpy would turn them into floats or objects.
    return array if array.dtype.kind in ("iu" if integers else "fc") else cells


_NUMBERS = (int, float, complex, np.integer, np.floating, np.complexfloating)


def _describe(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__} {shape}" if shape is not None else type(value).__name__
