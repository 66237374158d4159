"""Rows of a table by frame on one rank, after the shuffle: `RowChunk`, those of some frames; `RowStore`, all of them.

Rows of neighbouring frames share a key (`RowEmission`) and thus go to one rank: each rank has parts of a table.
"""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.engine.pairs.block import Array
from himach.engine.pairs.streams import cells_bytes
from himach.engine.shuffle.runs import Memory
from himach.engine.shuffle.spill import Scratch

#: Most bytes of rows in memory on a rank; or, if less, the memory limit of its pairs divided by `HELD_PART`.
HELD_BYTES, HELD_PART = 1 << 26, 8


@dataclass(frozen=True, slots=True)
class RowChunk:
    """Rows of some frames, in the order of frames."""

    frames: npt.NDArray[np.int64]  # int64 (m,), frame numbers
    times: npt.NDArray[np.float64]  # float64 (m,), ps
    cells: Array | list[tuple[tuple[str, ...], tuple[Any, ...]]]

    def __len__(self) -> int:
        return len(self.frames)

    @classmethod
    def from_values(cls, frames: Array, times: Array, values: Array | list[Any]) -> "RowChunk":
        """Return the rows of a series (`himach.engine.pairs.emission.RowEmission`)."""
        if isinstance(values, np.ndarray):
            return cls(frames, times, values)
        return cls(frames, times, [_plain(value) for value in values])

    def names(self) -> dict[tuple[str, ...], int]:
        """Return each combination of cell names, with its first frame."""
        if isinstance(self.cells, np.ndarray):
            return {tuple(self.cells.dtype.names or ()): int(self.frames[0])}
        first_frames: dict[tuple[str, ...], int] = {}
        for (names, _), frame in zip(self.cells, self.frames.tolist(), strict=True):
            first_frames.setdefault(names, frame)
        return first_frames

    def columns(self, names: Sequence[str]) -> dict[str, Array | list[Any]]:
        """Return the cells of these names by column, None for missing cells."""
        if isinstance(self.cells, np.ndarray):
            own = self.cells.dtype.names or ()
            return {name: self.cells[name] if name in own else [None] * len(self) for name in names}
        rows = [dict(zip(*row, strict=True)) for row in self.cells]
        return {name: [row.get(name) for row in rows] for name in names}

    @property
    def nbytes(self) -> int:
        """Approximate bytes of the rows."""
        stamps = self.frames.nbytes + self.times.nbytes
        if isinstance(self.cells, np.ndarray):
            return stamps + self.cells.nbytes
        return stamps + sum(map(cells_bytes, (cells for _, cells in self.cells)))


def _plain(value: Any) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Return a row as names and cells, with Python numbers restored."""
    if not isinstance(value, np.void):
        names, cells = value
        return names, cells
    kinds = value.dtype
    names = kinds.names or ()
    cells = (value[name] for name in names)
    return names, tuple(cell.item() if cell.dtype.str[1:] in _PYTHON else cell for cell in cells)


#: Types of Python numbers in a structured array.
_PYTHON = {"f8", "i8", "b1", "c16"}


class RowStore:
    """A rank's rows of one table, by chunk; beyond `HELD_BYTES` they are on the node's disk."""

    def __init__(self, memory: Memory) -> None:
        self.counts: dict[int, int] = {}
        self.nbytes = 0
        self.names: dict[tuple[str, ...], int] = {}
        self.kinds: dict[str, tuple[set[Any], int]] = {}
        self.memory = memory
        self._in_memory: dict[int, RowChunk] = {}
        self._most = min(HELD_BYTES, memory.limit // HELD_PART)
        self._scratch: Scratch | None = None
        self._places: dict[int, tuple[int, int]] = {}

    def put(self, key: int, chunk: RowChunk) -> None:
        """Add a chunk; call it once per key."""
        self.counts[key] = len(chunk)
        for names, frame in chunk.names().items():
            self.names[names] = min(frame, self.names.get(names, frame))
        self._note_kinds(chunk)
        self.nbytes += chunk.nbytes
        if self.nbytes <= self._most:
            self._in_memory[key] = chunk
            return
        if self._scratch is None:
            self._scratch = Scratch(self.memory.directory)
        data = pickle.dumps((chunk.frames, chunk.times, chunk.cells), protocol=5)
        self._places[key] = self._scratch.append(data), len(data)
        self.memory.spilled += len(data)

    def chunk(self, key: int) -> RowChunk:
        """Return a chunk."""
        chunk = self._in_memory.get(key)
        if chunk is not None:
            return chunk
        assert self._scratch is not None
        start, size = self._places[key]
        data = np.empty(size, dtype=np.uint8)
        self._scratch.read(start, data)
        return RowChunk(*pickle.loads(data))

    def _note_kinds(self, chunk: RowChunk) -> None:
        names = dict.fromkeys(name for names in chunk.names() for name in names)
        for name, cells in chunk.columns(list(names)).items():
            kinds, largest = self.kinds.get(name, (set(), 0))
            if isinstance(cells, np.ndarray):
                kinds.add(cells.dtype)
                whole = [int(cells.max()), int(cells.min())] if cells.dtype.kind in "iu" else []
            else:
                kinds.update(map(type, cells))
                whole = [
                    int(cell)
                    for cell in cells
                    if not isinstance(cell, np.timedelta64) and isinstance(cell, int | np.integer)
                ]
            self.kinds[name] = kinds, max([largest, *map(abs, whole)])

    def close(self) -> None:
        """Drop all rows."""
        self._in_memory.clear()
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None
