r"""Tables for other programs, `table_content()`: Parquet by pyarrow, NetCDF by xarray, ``.xvg`` of GROMACS.

Equal tables give equal bytes (Parquet: with one version of pyarrow). NetCDF is version 3, which every reader supports.
In ``.xvg`` units are ASCII, as Grace and the tools expect, with their notation of exponents: ``Angstrom\S2\N``.

`csv_table()` gives a table as CSV.
"""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.output.bridge import clean, to_array, unify_types
from himach.output.cells import EXACT_INTEGERS, PIECE_CELLS, Cells, plain
from himach.output.table import Table, unique_columns

#: Names of columns of times: they end in a unit of time, or contain the word.
TIME = re.compile(r"_(fs|ps|ns|us)$|(^|_)(time|times)(_|$)")
SHORT_DIGITS = 12  # significant digits that people may have written


def csv_table(table: Table, units: bool = False) -> Iterator[bytes]:
    """Return the pieces of a table as CSV, in UTF-8; `units` adds units to the column names that lack them."""
    head = header(table, units)
    kinds = {name: getattr(getattr(cells, "dtype", None), "kind", "O") for name, cells in table.items()}
    texts = {name: cells for name, cells in table.items() if kinds[name] not in "biuf"}
    return csv_pieces(table, head, quoted=any(b"\r" in piece for piece in csv_pieces(texts, head)))


def csv_pieces(columns: Mapping[str, Cells], head: Sequence[str], quoted: bool = False) -> Iterator[bytes]:
    """Yield columns as CSV with this header, in groups of rows: a row takes many times its bytes while it is made."""
    yield encode_text(rows_text([head], quoted))
    rows = max(map(len, columns.values()), default=0)
    for start in range(0, rows, PIECE_CELLS):
        piece = {name: column[start : start + PIECE_CELLS] for name, column in columns.items()}
        yield encode_text(rows_text(csv_rows(piece), quoted))


def header(table: Table, units: bool) -> list[str]:
    """Return the column names for the header of a CSV."""
    added = table.units if units else {}
    return [
        f"{name} ({unit})" if (unit := added.get(name)) and not name.endswith(f"_{unit}") else name for name in table
    ]


def csv_rows(columns: Mapping[str, Cells]) -> Iterable[tuple[Any, ...]]:
    """Return the rows of columns as the csv module takes them."""
    return zip(*(cell_texts(name, column[:]) for name, column in columns.items()), strict=True)


def rows_text(rows: Iterable[Sequence[Any]], quoted: bool = False) -> str:
    """Format rows of cells as CSV.

    If a CSV has a carriage return anywhere, all texts are `quoted`: the csv module of Python 3.11 does not quote it,
    and reads it as the end of a row.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC if quoted else csv.QUOTE_MINIMAL)
    writer.writerows(rows)
    return text.getvalue()


def encode_text(text: str) -> bytes:
    """Encode the text of a file."""
    return text.encode(errors="backslashreplace")


def cell_texts(name: str, column: Cells) -> Iterable[Any]:
    """Return the cells of a column as the csv module takes them; it writes Python's floats by repr()."""
    if isinstance(column, np.ndarray) and column.dtype == np.float64 and TIME.search(str(name)):
        return [_time_text(time) for time in column.tolist()]
    if not isinstance(column, np.ndarray):
        return [cell if cell is None or isinstance(cell, str) else str(plain(cell)) for cell in column]
    if column.dtype.kind in "biu" or column.dtype == np.float64:
        return list(column.tolist())
    return list(column.astype(str))  # the shortest digits that tell values of this type apart


def _time_text(time: float) -> str:
    """Format a time with the digits that it had before conversion to float32 or a multiplication."""
    # 0.1 is 0.10000000149011612 in float32, and 3 * 0.1 is 0.30000000000000004; float32() of the text is the same.
    exact = repr(time)
    if len(exact) <= SHORT_DIGITS or not np.isfinite(time):
        return exact
    single = np.float32(time)
    if float(single) == time:
        return str(single)
    rounded = float(f"{time:.{SHORT_DIGITS}g}")
    near = abs(rounded - time) <= 4 * np.spacing(abs(time))
    return repr(rounded) if near else exact


INT32 = np.iinfo(np.int32)
ASCII = str.maketrans({"Å": "Angstrom", "°": "degrees", "µ": "u", "μ": "u", "·": "*"})
RAISED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
EXPONENT = re.compile(r"[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+")
VIEW = """\
@TYPE xy
@    view 0.15, 0.15, 0.75, 0.85
@    legend on
@    legend box on
@    legend loctype view
@    legend 0.78, 0.8
@    legend length 2"""


def table_content(table: Table, name: str, kind: str) -> bytes:
    """Return the bytes of a table in a format other than CSV; raises TypeError if the format cannot hold it."""
    return _parquet(table) if kind == "parquet" else _netcdf(table) if kind == "nc" else _xvg(table, name)


def _parquet(table: Table) -> bytes:
    """Return a table as Parquet: None is null; units are metadata of fields, and in the ``attrs`` of pandas."""
    import pyarrow
    import pyarrow.parquet

    native = (cells.astype(cells.dtype.newbyteorder("=")) if isinstance(cells, np.ndarray) else cells
              for cells in map(unify_types, table.values()))  # fmt: skip
    empty = pyarrow.null()  # the type of cells that are all None
    arrays = [array.cast(pyarrow.string()) if array.type == empty else array for array in map(pyarrow.array, native)]
    fields = [
        pyarrow.field(clean(name), array.type, metadata={"unit": unit} if (unit := table.units.get(name)) else None)
        for name, array in zip(table, arrays, strict=True)
    ]
    attributes = {"PANDAS_ATTRS": json.dumps({"units": table.units})} if table.units else None
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(arrays, pyarrow.schema(fields, attributes)), sink)
    return bytes(sink.getvalue())


def _netcdf(table: Table) -> bytes:
    """Return a table as NetCDF, laid out as by `to_xarray`; ``long_name`` has names that NetCDF does not allow."""
    dataset = table.to_xarray()
    names = _netcdf_names(list(dataset.variables))
    stored = {}
    for name, variable in dataset.variables.items():
        attributes = variable.attrs if names[name] == name else {**variable.attrs, "long_name": name}
        stored[name] = type(variable)(variable.dims, _netcdf_values(variable.values), attributes)
    dataset = dataset.assign({name: stored[name] for name in dataset.data_vars})
    dataset = dataset.assign_coords({name: stored[name] for name in dataset.coords}).rename(names)
    encoding = {name: {"_FillValue": None} for name in dataset.variables}  # nan needs no fill value
    return bytes(dataset.to_netcdf(engine="scipy", format="NETCDF3_64BIT", encoding=encoding))


def _netcdf_values(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert values: integers to 32 bits, larger ones to floats if these are exact, else to text; None to no text."""
    if values.dtype.kind in "iu" and values.size:
        least, largest = int(values.min()), int(values.max())
        if INT32.min <= least and largest <= INT32.max:
            return values if values.dtype.kind == "i" and values.itemsize < INT32.bits // 8 else values.astype(np.int32)
        exact = max(-least, largest) <= EXACT_INTEGERS
        return values.astype(np.float64) if exact else values.astype(str).astype(object)
    if values.dtype == np.float16:
        return values.astype(np.float32)
    if values.dtype.kind in "cO":  # xarray turns None among texts into nan; there are no other floats
        texts = [
            "" if value is None or isinstance(value, float) else clean(str(plain(value))) for value in values.ravel()
        ]
        return np.array([*texts, ""], object)[:-1].reshape(values.shape)
    return values


def _netcdf_names(names: Sequence[Any]) -> dict[Any, str]:
    """Return a valid name for each; valid names are kept."""
    from xarray.backends.netcdf3 import is_valid_nc3_name

    valid = []
    for name in names:
        text = clean(name) or "_"
        valid.append((text if is_valid_nc3_name(text) else f"_{re.sub(r'[^ -.0-~]', '_', text).rstrip()}", name))
    return {name: text for text, name in unique_columns(valid).items()}


def _xvg(table: Table, title: str) -> bytes:
    """Return a table as ``.xvg``: numeric columns over the first one."""
    x, *columns = _xvg_columns(table)
    labels = [(name, table.units.get(name, "")) for name, _ in (x, *columns)]
    units = {unit for _, unit in labels[1:]}
    shared = units.pop() if len(units) == 1 else ""
    lines = [
        f'@    title "{_quoted(title)}"',
        f'@    xaxis  label "{_axis_label(*labels[0])}"',
        f'@    yaxis  label "{_axis_label(columns[0][0] if len(columns) == 1 else "", shared)}"',
        VIEW,
        *(f'@ s{i} legend "{_axis_label(name, "" if shared else unit)}"' for i, (name, unit) in enumerate(labels[1:])),
    ]
    rows = zip(*(map(str, cell_texts(name, cells)) for name, cells in (x, *columns)), strict=True)
    return "\n".join([*lines, *map(" ".join, rows), ""]).encode()


def _xvg_columns(table: Table) -> list[tuple[str, Cells]]:
    """Return the names and cells of numeric columns; the axis first."""
    numbers = {name: cells for name, column in table.items() if (cells := _real(column)) is not None}
    first = next(iter(table), None)
    axis = "resid" if first == "residue" and "resid" in numbers else first  # its label is text
    if axis not in numbers:
        raise TypeError(f"an .xvg has numbers over numbers, and the first column, {first!r}, is none of numbers")
    return [(name, numbers[name]) for name in (axis, *(name for name in numbers if name != axis))]


def _real(cells: Cells) -> Cells | None:
    """Convert cells to an array of real numbers, nan for None, 1 for True; return None for other cells."""
    column = to_array(unify_types(cells)) if not isinstance(cells, np.ndarray) or cells.ndim == 1 else cells
    if column.dtype.kind == "b":
        return column.astype(np.int64)
    return column if column.dtype.kind in "iuf" else None


def _axis_label(name: str, unit: str) -> str:
    """Return the label of an axis or a legend: the name without a unit at its end, and the unit."""
    label = name.removesuffix(f"_{unit}") if unit else name
    unit = EXPONENT.sub(lambda match: rf"\S{match[0].translate(RAISED)}\N", unit.translate(ASCII))
    return _quoted(f"{label} ({unit})".strip() if unit else label)


def _quoted(text: str) -> str:
    return " ".join(clean(text).replace('"', "'").split())
