"""Single values and the cells of a column as text for people: what tables and outcomes are drawn from.

All text is ASCII but for what the values themselves contain.
"""

from __future__ import annotations

import math
import pprint
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from himach.output.plain import plain

#: A column of a table: an array (n,) where the cells are numbers, a list where they are objects.
Cells: TypeAlias = npt.NDArray[Any] | list[Any]

EDGE_CELLS = 6  # cells at either end of a long column that stand for it
WIDEST_CELL = 40
LARGE, SMALL = 1e7, 1e-4  # floats of a column are written out between these
MOST_LINES = 20  # of a value


def cells_text(cells: Cells) -> list[str]:
    """Return the cells of a column as text: floats of a column in one readable precision, anything else as it reads."""
    if isinstance(cells, np.ndarray):
        if cells.dtype.kind == "f":
            return _floats(cells)
        return [str(cell) for cell in (cells.tolist() if cells.dtype.kind in "biuc" else cells)]
    return [_short(cell) for cell in cells]


def alignment(cells: Cells) -> str:
    """Return the side to which the cells of a column are aligned: numbers to the right."""
    if isinstance(cells, np.ndarray):
        return "right" if cells.dtype.kind in "iufcm" else "left"
    numbers = [isinstance(cell, int | float) for cell in cells[:EDGE_CELLS] + cells[-EDGE_CELLS:] if cell is not None]
    return "right" if numbers and all(numbers) else "left"


def array_text(array: npt.NDArray[Any]) -> str:
    """Return what an array is: shape, type and range, or its elements where they are few."""
    if array.ndim == 0:
        return value_text(array[()])
    what = f"array {array.shape} {array.dtype}"
    if array.dtype.kind == "f" and array.size:
        finite = array[np.isfinite(array)]
        if finite.size < array.size:
            what += f", {array.size - finite.size} not finite"
        return what + (f", from {finite.min():.6g} to {finite.max():.6g}" if finite.size else "")
    if array.dtype.kind in "iu" and array.size:
        return f"{what}, from {array.min()} to {array.max()}"
    return what


def value_text(value: Any) -> str:
    """Return any other value as text of some lines."""
    if isinstance(value, str):
        lines = [printable(line) for line in value.splitlines()] or [""]
    elif isinstance(value, float | np.floating):
        return f"{float(value):.8g}"
    else:
        lines = [printable(line) for line in pprint.pformat(plain(value), width=76, sort_dicts=False).splitlines()]
    if len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES], f"... and {count(len(lines) - MOST_LINES, 'line')}"]
    return "\n".join(lines)


def printable(text: str) -> str:
    """Return text that cannot upset a terminal: control characters are spelled out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def count(n: int, noun: str) -> str:
    """Return a number of things in words: 1 row, 2 rows."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _floats(cells: npt.NDArray[np.floating[Any]]) -> list[str]:
    """Return floats in one precision: six significant digits at most, trailing zeros that all share cut.

    A column of very large or very small numbers gets exponents; single small ones beside usual numbers have their own.
    """
    values = [float(cell) for cell in cells]
    finite = [value for value in values if math.isfinite(value)]
    largest = max(map(abs, finite), default=0.0)
    if largest >= LARGE or 0 < largest < SMALL:
        digits = max(_decimals(f"{value:.5e}".partition("e")[0]) for value in finite)
        return [f"{value:.{digits}e}" for value in values]
    digits = max((_decimals(f"{value:.6g}") for value in finite if abs(value) >= SMALL), default=1)
    return [f"{value:.1e}" if 0 < abs(value) < SMALL else f"{value:.{min(digits, 6)}f}" for value in values]


def _decimals(text: str) -> int:
    return 1 if "e" in text else max(1, len(text.partition(".")[2].rstrip("0")))


def _short(cell: Any) -> str:
    if isinstance(cell, np.ndarray) and cell.ndim:
        return array_text(cell)
    if isinstance(cell, float | np.floating):
        return f"{float(cell):.6g}"
    text = printable("" if cell is None else str(plain(cell)))
    return text if len(text) <= WIDEST_CELL else text[: WIDEST_CELL - 3] + "..."
