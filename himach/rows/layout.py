"""Columns of a table of rows, `table_layout()`; a chunk's cells in these columns, `chunk_cells()`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from himach.analysis import FRAME, TIME
from himach.engine.rows import RowChunk, RowStore
from himach.output.cells import EXACT_INTEGERS, Cells

#: Ordered columns with the dtype of their cells; None for objects.
Layout = Mapping[str, np.dtype[Any] | None]
#: dtypes of Python numbers.
_PLAIN = {float: np.dtype(np.float64), int: np.dtype(np.int64), bool: np.dtype(np.bool_), complex: np.dtype(complex)}


def table_layout(store: RowStore) -> Layout:
    """Return the columns that a `Table` of a store's rows has."""
    together = sorted(store.names, key=store.names.__getitem__)
    layout: dict[str, np.dtype[Any] | None] = {TIME: np.dtype(np.float64)}
    for name in dict.fromkeys(name for names in together for name in names):
        missing = any(name not in names for names in together)
        layout[name] = None if missing else _dtype(*store.kinds[name])
    return {**layout, FRAME: np.dtype(np.int64)}


def _dtype(kinds: set[Any], largest: int) -> np.dtype[Any] | None:
    """Return the common dtype of cells of these types, by the rules of `himach.output.table.Table`."""
    types = {_PLAIN.get(kind, kind) for kind in kinds}
    if not all(isinstance(kind, np.dtype) or issubclass(kind, np.number | np.bool_) for kind in types):
        return None
    dtypes = [np.dtype(kind) for kind in types]
    letters = {kind.kind for kind in dtypes}
    whole = letters <= set("iu")
    if (letters & set("b") and letters != {"b"}) or not letters <= set("biufc"):
        return None
    if largest >= 1 << 63 or (letters & set("iu") and not whole and largest > EXACT_INTEGERS):
        return None
    dtype = np.result_type(*dtypes)
    return None if whole and dtype.kind not in "iu" else dtype


def chunk_cells(chunk: RowChunk, layout: Layout, names: Sequence[str]) -> dict[str, Cells]:
    """Return some columns of a chunk."""
    cells: dict[str, Cells] = {}
    own = chunk.columns([name for name in names if name not in (TIME, FRAME)])
    for name in names:
        if name in (TIME, FRAME):
            cells[name] = chunk.times if name == TIME else chunk.frames
            continue
        column, dtype = own[name], layout[name]
        if dtype is not None:
            cells[name] = np.ascontiguousarray(column, dtype=dtype)
        else:
            numbers = isinstance(column, np.ndarray) and column.dtype in _PLAIN.values()
            cells[name] = np.asarray(column).tolist() if numbers else list(column)
    return cells
