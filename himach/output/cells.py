"""Cells of columns: in memory, or `LongCells`, too many for one rank; `plain()` converts to Python's own values."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

#: A column of a table: an array (n,) of numbers, or a list of objects.
Cells: TypeAlias = npt.NDArray[Any] | list[Any]

#: Cells read at a time when all of a long column are read.
PIECE_CELLS = 1 << 16

BINS = 2000  # of the rows of a long table in a plot: more than a picture has columns
EXACT_INTEGERS = 2**53  # a float64 holds every integer up to it
EDGE_CELLS = 6  # cells shown at either end of a long column


class LongCells(ABC, Sequence[Any]):
    """Cells of a column that are read in pieces, not held in memory.

    A slice is an array (or a list, of objects). `numpy.asarray` reads all cells, if they fit; ``mean()``, ``std()``,
    ``min()``, ``max()`` and ``bins()`` need not. Other arithmetic needs `pieces()`.
    """

    dtype: np.dtype[Any] | None  # None: cells are objects

    @abstractmethod
    def read(self, start: int, stop: int) -> Cells:
        """Return the cells from `start` to `stop`."""

    @abstractmethod
    def moments(self) -> Any:
        """Return `mean`, `variance`, `least` and `most` of numbers."""

    @abstractmethod
    def bins(self, count: int) -> Any:
        """Return `firsts`, `least`, `most` and `means` of at most `count` bins with equally many rows."""

    @abstractmethod
    def write_table(self, path: Path, pieces: Iterable[bytes], columns: Mapping[str, LongCells]) -> None:
        """Write the pieces of a table's CSV file; raises HimachError if it cannot be written."""

    @abstractmethod
    def write_array(self, path: Path) -> None:
        """Write numbers as .npy; raises HimachError if it cannot be written."""

    @abstractmethod
    def detach(self, staged: Path, out: Path) -> None:
        """Keep cells readable after the ranks have ended; files written below `staged` are then in `out`."""

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
        """Yield all cells, `cells` at a time."""
        return (self.read(start, min(start + cells, len(self))) for start in range(0, len(self), cells))

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step < 0:
                return self[stop + 1 : start + 1][::-1][::-step] if stop < start else self.read(0, 0)
            return self.read(start, max(start, stop))[::step]
        row = range(len(self))[rows]
        return self.read(row, row + 1)[0]

    def __iter__(self) -> Iterator[Any]:
        for piece in self.pieces():
            yield from piece

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.asarray(self.read(0, len(self)), dtype=dtype)

    def __repr__(self) -> str:
        return f"column of {len(self):,} cells, read in pieces"


def edge_cells(cells: Cells | LongCells) -> Cells:
    """Return the first and last few cells of a long column."""
    first, last = cells[:EDGE_CELLS], cells[-EDGE_CELLS:]
    return np.concatenate([first, last]) if isinstance(first, np.ndarray) else [*first, *last]


def plain(value: Any) -> Any:
    """Return `value` with numpy's scalars and arrays turned into Python's, in containers too; sets are sorted."""
    if isinstance(value, np.generic):
        return shortest(np.asarray(value)).item()
    if isinstance(value, np.ndarray):
        return plain(shortest(value).tolist())
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, Set):
        return in_order(plain(item) for item in value)
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    return value


def shortest(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert floats to float64 with the same shortest digits: 0.1 in 32 bits stays 0.1."""
    is_other_float = array.dtype.kind == "f" and array.dtype != np.float64
    return array.astype(str).astype(np.float64) if is_other_float else array


def in_order(items: Iterable[Any]) -> list[Any]:
    """Sort the plain items of a set in a reproducible order."""
    return sorted(
        items, key=lambda item: (type(item).__name__, item if isinstance(item, int | float | str) else repr(item))
    )
