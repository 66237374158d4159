"""Single values and the cells of a column as text for people: what tables and outcomes are drawn from.

`LongCells` are cells that are too many for one rank. All text is ASCII but for what the values themselves contain.
"""

from __future__ import annotations

import math
import pprint
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from himach.errors import printable
from himach.output.plain import plain

#: A column of a table: an array (n,) where the cells are numbers, a list where they are objects.
Cells: TypeAlias = npt.NDArray[Any] | list[Any]

#: Cells that are read at a time, where one goes over all of a long column.
PIECE_CELLS = 1 << 16

EDGE_CELLS = 6  # cells at either end of a long column that stand for it
WIDEST_CELL = 40
LARGE, SMALL = 1e7, 1e-4  # floats of a column are written out between these
MOST_LINES = 20  # of a value


class LongCells(ABC, Sequence[Any]):
    """Cells of a column that are not in memory: they lie on all ranks, or in a file, and are read in pieces.

    A slice is an array (or a list, of objects) of these cells. `numpy.asarray` and what needs it reads all of them, if
    they fit; ``mean()``, ``std()``, ``min()``, ``max()`` and ``bins()`` do without. Other arithmetic is by pieces.

    Attributes
    ----------
    dtype
        Of numbers; None: cells are objects.
    """

    dtype: np.dtype[Any] | None

    @abstractmethod
    def read(self, start: int, stop: int) -> Cells:
        """Return the cells from `start` to `stop`."""

    @abstractmethod
    def moments(self) -> Any:
        """Return `count`, `mean`, `variance`, `least` and `most` of numbers."""

    @abstractmethod
    def bins(self, count: int) -> Any:
        """Return `firsts`, `least`, `most` and `means` of at most so many bins of as many rows each."""

    @abstractmethod
    def write_table(self, path: Path, header: Sequence[str], columns: Mapping[str, LongCells]) -> None:
        """Write a table of such columns as CSV, with this header; raises HimachError if it cannot be written."""

    @abstractmethod
    def write_array(self, path: Path) -> None:
        """Write these numbers as .npy; raises HimachError if it cannot be written."""

    @abstractmethod
    def settle(self, staged: Path, out: Path) -> None:
        """Know the cells when ranks are gone: what was written below `staged` is then in `out`."""

    def mean(self) -> float:
        """Return the mean of numbers."""
        return float(self.moments().mean)

    def std(self) -> float:
        """Return the standard deviation of numbers, as `numpy.std`."""
        return math.sqrt(self.moments().variance)

    def min(self) -> Any:
        """Return the least number."""
        return self.moments().least

    def max(self) -> Any:
        """Return the largest number."""
        return self.moments().most

    def pieces(self, cells: int = PIECE_CELLS) -> Iterator[Cells]:
        """Give all cells, so many at a time."""
        return (self.read(start, min(start + cells, len(self))) for start in range(0, len(self), cells))

    def ends(self) -> Cells:
        """Return the first and last few cells, of a column that has more."""
        return _behind(self.read(0, EDGE_CELLS), self.read(len(self) - EDGE_CELLS, len(self)))

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step < 0:
                return self[stop + 1 : start + 1][::-1][::-step] if stop < start else self.read(0, 0)
            return self.read(start, max(start, stop))[::step]
        place = range(len(self))[rows]
        return self.read(place, place + 1)[0]

    def __iter__(self) -> Iterator[Any]:
        for piece in self.pieces():
            yield from piece

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.asarray(self.read(0, len(self)), dtype=dtype)

    def __repr__(self) -> str:
        return f"column of {len(self):,} cells, read in pieces"


def _behind(first: Cells, second: Cells) -> Cells:
    if isinstance(first, np.ndarray):
        return np.concatenate([first, second])
    return first + cast("list[Any]", second)


def ends_of(cells: Cells | LongCells) -> Cells:
    """Return the first and last few cells of a long column."""
    if isinstance(cells, LongCells):
        return cells.ends()
    return _behind(cells[:EDGE_CELLS], cells[-EDGE_CELLS:])


def cells_text(cells: Cells) -> list[str]:
    """Return the cells of a column as text: floats of a column in one readable precision, anything else as it reads."""
    if isinstance(cells, np.ndarray):
        if cells.dtype.kind == "f":
            return _floats(cells)
        return [str(cell) for cell in (cells.tolist() if cells.dtype.kind in "biuc" else cells)]
    return [_short(cell) for cell in cells]


def alignment(cells: Cells | LongCells) -> str:
    """Return the side to which the cells of a column are aligned: numbers to the right."""
    if isinstance(cells, np.ndarray):
        return "right" if cells.dtype.kind in "iufcm" else "left"
    if isinstance(cells, LongCells):
        return alignment(cells.ends())
    numbers = [isinstance(cell, int | float) for cell in ends_of(cells) if cell is not None]
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
