"""Columns as other programs take them: `typed()` gives cells of one type, or texts."""

from __future__ import annotations

from typing import Any

import numpy as np

from himach.output.cells import Cells
from himach.output.plain import plain, shortest

__all__ = ["clean", "typed"]

#: Types of cells that a column may have beside None, and the type that each column of them then has.
KINDS: dict[frozenset[type], type] = {
    frozenset({bool}): bool,
    frozenset({int}): int,
    frozenset({float}): float,
    frozenset({int, float}): float,
}
INTEGERS = range(-(2**63), 2**63)  # of 64 bits
#: Units of time that are of one length, in the types of numpy that hold times.
TIME_UNITS = ("s", "ms", "us", "ns")


def typed(cells: Cells) -> Cells:
    """Return a column as an array (n,) of a type of numpy, or as a list of cells of one type and None.

    Floats larger than float64 become float64. What has no common type, and complex numbers, become texts, as in a CSV.
    """
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "mM":
        unit = np.datetime_data(cells.dtype)[0]
        return cells if unit in TIME_UNITS else cells.astype(f"{cells.dtype.kind}8[s]")
    if isinstance(cells, np.ndarray) and cells.dtype.kind != "c":
        return shortest(cells) if cells.dtype.itemsize > np.dtype(np.float64).itemsize else cells
    there = [plain(cell) for cell in cells]
    kind = KINDS.get(frozenset(type(cell) for cell in there if cell is not None))
    if kind is int and any(cell is not None and cell not in INTEGERS for cell in there):
        kind = None
    if kind is not None:
        return [None if cell is None else kind(cell) for cell in there]
    return [None if cell is None else clean(str(cell)) for cell in there]


def clean(text: str) -> str:
    """Return a text that has a form in UTF-8: what has none is spelled out."""
    return text.encode(errors="backslashreplace").decode()


def masked(cells: Cells) -> Any:
    """Return a typed column as an array of numbers with nan for None where that loses nothing, else as objects."""
    if isinstance(cells, np.ndarray):
        return cells
    kinds = {type(cell) for cell in cells if cell is not None}
    exact = kinds == {float} or (kinds == {int} and all(cell is None or abs(cell) <= 2**53 for cell in cells))
    if exact:
        return np.array([np.nan if cell is None else cell for cell in cells], np.float64)
    return np.array([*cells, None], object)[:-1]
