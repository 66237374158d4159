"""Rows of an array by number: `Rows` reads whole chunks, several in sequence at once; `DatasetRows` of h5py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

#: Bytes of consecutive small chunks read at once.
BLOCK_BYTES = 1 << 20


class Rows:
    """Rows of an array, for one thread."""

    def __init__(self, array: Any, chunk_rows: int = 1) -> None:
        self.array = array
        self.chunk_rows = chunk_rows
        self._chunk_bytes = chunk_rows * prod(array.shape[1:]) * array.dtype.itemsize
        self._first, self._block = -1, np.empty(0, array.dtype)
        self._columns: int | None = None  # of the block's second axis; None: all
        self._chunks = 1

    def __len__(self) -> int:
        return int(self.array.shape[0])

    def at(self, row: int, columns: int | None = None) -> Any:
        """Return a row, or its first `columns`; an array is valid until the next call."""
        if not 0 <= row - self._first < len(self._block) or not self._has(columns):
            self._load(row, columns)
        values = self._block[row - self._first]
        return values if columns is None else values[:columns]

    def _has(self, columns: int | None) -> bool:
        return self._columns is None or (columns is not None and columns <= self._columns)

    def _load(self, row: int, columns: int | None) -> None:
        first = row // self.chunk_rows * self.chunk_rows
        max_chunks = max(1, BLOCK_BYTES // max(1, self._chunk_bytes))
        self._chunks = min(max_chunks, 2 * self._chunks) if first == self._first + len(self._block) else 1
        self._block = self._block[:0]  # free the old block before reading the new one
        try:
            self._block = self._read_chunks(first, columns)
        except Exception:
            if self._chunks == 1:
                raise
            self._chunks = 1  # another of the chunks may be the damaged one
            self._block = self._read_chunks(first, columns)
        self._first, self._columns = first, columns

    def _read_chunks(self, first: int, columns: int | None) -> npt.NDArray[Any]:
        return self.read(first, min(len(self), first + self._chunks * self.chunk_rows), columns)

    def read(self, first: int, stop: int, columns: int | None) -> npt.NDArray[Any]:
        """Read rows from `first` on, before `stop`."""
        if stop <= first:
            raise IndexError(f"the array has {len(self)} rows, and none of number {first}")
        span = slice(first, stop)
        return np.asarray(self.array[span] if columns is None else self.array[span, :columns])


class DatasetRows(Rows):
    """Rows of a dataset of h5py, with their places in the file."""

    def __init__(self, dataset: Any) -> None:
        decoded = dataset.chunks is not None and dataset.id.get_create_plist().get_nfilters() > 0
        super().__init__(dataset, dataset.chunks[0] if decoded else 1)

    def places(self, rows: Iterable[int], least: int = 0) -> Iterator[tuple[int, int]]:
        """Yield byte ranges of the file that hold these rows; none for chunks of less than `least` bytes."""
        dataset = self.array
        if dataset.chunks is None:
            start, size = dataset.id.get_offset(), self._chunk_bytes
            if start is not None:
                yield from ((start + size * row, start + size * (row + 1)) for row in rows)
            return
        height, *others = dataset.chunks
        if height * prod(others) * dataset.dtype.itemsize < least:
            return
        starts = [range(0, length, size) for length, size in zip(dataset.shape[1:], others, strict=True)]
        for number in sorted({row // height for row in rows}):
            for corner in product([number * height], *starts):
                chunk = dataset.id.get_chunk_info_by_coord(corner)
                if chunk.byte_offset is not None:  # it was written
                    yield chunk.byte_offset, chunk.byte_offset + chunk.size
