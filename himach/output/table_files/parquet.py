"""Parquet of a table: `parquet()`, by pyarrow."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from himach.output.cells import Cells
from himach.output.table import Table
from himach.output.table_files.columns import clean, typed

__all__ = ["parquet"]


def parquet(table: Table) -> bytes:
    """Return a table as Parquet.

    Columns keep their types, None is null, and what has no type is text. The unit of a column is in the metadata of its
    field (``unit``), and all are where pandas keeps ``attrs``. Equal tables are equal bytes of one version of pyarrow,
    which puts its own version into every file.
    """
    import pyarrow
    import pyarrow.parquet

    arrays = [_array(pyarrow, cells) for cells in table.values()]
    fields = [
        pyarrow.field(clean(name), array.type, metadata={"unit": unit} if (unit := table.units.get(name)) else None)
        for name, array in zip(table, arrays, strict=True)
    ]
    attributes = {"PANDAS_ATTRS": json.dumps({"units": table.units})} if table.units else None
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(arrays, pyarrow.schema(fields, attributes)), sink)
    return bytes(sink.getvalue())


def _array(pyarrow: Any, cells: Cells) -> Any:
    cells = typed(cells)
    if isinstance(cells, np.ndarray):
        return pyarrow.array(cells.astype(cells.dtype.newbyteorder("=")))
    kinds = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64()}
    kind = next((type(cell) for cell in cells if cell is not None), str)
    return pyarrow.array(cells, kinds.get(kind, pyarrow.string()))
