"""DCD files with frames of equal length: `DcdFile` computes offsets of frames, and reads many small frames at once.

MDAnalysis's reader is the reference: the first and last frame must be the same by both ways, else it reads all frames.
It also reads files with fixed atoms or a fourth dimension, and frames with unexpected records.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from himach.formats.dcd import AKMA
from himach.frame import RawFrame, Vectors
from himach.io.remote.byte_file import ByteFile
from himach.io.trajectory.readahead import HOLE_BYTES, ask_for
from himach.io.trajectory.reader_file import Places, ReaderFile

#: Bytes of consecutive small frames read at once.
BLOCK_BYTES = 1 << 20


class DcdLayout(NamedTuple):
    """Offset of the first frame, bytes of a frame and of its box (0: none), and byte order as struct's prefix."""

    start: int
    size: int
    cell: int
    order: str


def read_layout(path: str, n_atoms: int) -> DcdLayout | None:
    """Return the layout of a DCD file; None with fixed atoms or a fourth dimension."""
    with ByteFile(path) as file:
        head = file.pread(92, 0)
        order = "<" if head[:4] == struct.pack("<i", 84) else ">"
        control = struct.unpack(f"{order}20i", head[8:88])
        (title,) = struct.unpack(f"{order}i", file.pread(4, 92))
    charmm = control[19] != 0
    if control[8] or (charmm and control[11] == 1):
        return None
    cell = 56 if charmm and control[10] else 0
    return DcdLayout(92 + 8 + title + 12, cell + 3 * (4 * n_atoms + 8), cell, order)


def swapped_dt(path: str) -> dict[str, float]:
    """Return dt in ps for MDAnalysis's reader, which misreads it in a file of the other byte order."""
    with open(path, "rb") as file:
        head = file.read(48)
    order = ">" if sys.byteorder == "little" else "<"
    if len(head) < 48 or head[:4] != struct.pack(f"{order}i", 84):
        return {}
    every, delta = struct.unpack(f"{order}i", head[16:20])[0], struct.unpack(f"{order}f", head[44:48])[0]
    return {"dt": every * delta * AKMA} if every * delta > 0 else {}


def opening_places(path: str) -> list[tuple[int, int]]:
    """Return the byte ranges that opening a DCD file reads; empty if it reads all."""
    with ByteFile(path) as file:
        head = file.pread(1 << 14, 0)
        size = file.status.size
    try:
        order = "<" if head[:4] == struct.pack("<i", 84) else ">"
        (title,) = struct.unpack_from(f"{order}i", head, 92)
        (n_atoms,) = struct.unpack_from(f"{order}i", head, 92 + 8 + title + 4)
        layout = read_layout(path, n_atoms)
    except struct.error:
        return []
    if layout is None or n_atoms <= 0:
        return []
    last = layout.start + (size - layout.start) // layout.size * layout.size
    return [(0, layout.start + 2 * layout.size), (last - layout.size, size)]


class DcdFile(ReaderFile):
    """A DCD file; see `ReaderFile`."""

    _file: ByteFile | None = None

    def __init__(self, path: str, reader: Any, n_frames: int, opening: Places = ()) -> None:
        super().__init__(path, reader, n_frames)
        self.opening = opening
        self._layout = read_layout(path, self.n_atoms)
        self._forget()
        if self._layout is not None and not all(map(self._agrees, {0, n_frames - 1})):
            self._layout = None
        self._last = -1

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        for name in ("_buffer", "_positions", "_vectors", "_cells", "_cell", "_box"):
            state.pop(name, None)
        return {**state, "_file": None, "_first": 0, "_count": 0, "_last": -1}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def __del__(self) -> None:
        self._close()

    def read(self, index: int, needed: int | None = None) -> RawFrame:
        """Return a whole frame; its arrays are valid until the next read."""
        frame = None if self._layout is None else self._read_direct(index)
        return super().read(index, needed) if frame is None else frame

    def expect(self, indices: Sequence[int]) -> None:
        """Request readahead of these frames."""
        layout = self._layout
        if layout is None:
            super().expect(indices)
        elif len(indices):
            start, size = layout.start, layout.size
            ask_for(self.path, ((start + size * index, start + size * (index + 1)) for index in indices))

    def nbytes(self, indices: npt.NDArray[np.int64]) -> int:
        """Return the size of these frames."""
        return super().nbytes(indices) if self._layout is None else len(indices) * self._layout.size

    def release(self) -> None:
        """Close the file until the next read."""
        super().release()
        self._close()
        self._count = 0

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # the file system may be gone; nothing was written
                file.close()

    def _forget(self) -> None:
        self._first = self._count = 0
        self._last = -1
        self._positions: Vectors = np.empty((self.n_atoms, 3), np.float32)
        self._buffer = np.empty(0, np.uint8)
        self._cell = b""
        self._box: npt.NDArray[np.float32] | None = None

    def _agrees(self, index: int) -> bool:
        """Return whether both ways give the same frame."""
        direct, theirs = self._read_direct(index), super().read(index)
        if direct is None or direct.time != theirs.time or direct.data != theirs.data or theirs.velocities is not None:
            return False
        boxes = [None if box is None else box.tobytes() for box in (direct.box, theirs.box)]
        return boxes[0] == boxes[1] and direct.positions.tobytes() == theirs.positions.tobytes()

    def _read_direct(self, index: int) -> RawFrame | None:
        """Read a frame; return None if its records are unexpected."""
        place = index - self._first
        if not 0 <= place < self._count:
            if not self._load(index):
                return None
            place = 0
        self._last = index
        assert self._layout is not None
        assert self.times is not None
        np.copyto(self._positions, self._vectors[place])
        box = self._frame_box(place) if self._layout.cell else None
        return RawFrame(index, self.times[index], self._positions, box, data={"step": index + 1})

    def _load(self, index: int) -> bool:
        """Read a frame, and those behind it if frames are small and read in order; return whether it worked."""
        assert self._layout is not None
        start, size, cell, order = self._layout
        count = 1 if 0 <= index < self.n_frames else 0
        if count and index > self._last and size * (index - self._last - 1) <= HOLE_BYTES:
            count = min(max(1, BLOCK_BYTES // size), 2 * max(1, self._count), self.n_frames - index)
        self._first, self._count = index, 0
        if not count:
            return False
        if self._file is None:
            self._file = ByteFile(self.path)
        if len(self._buffer) < count * size:
            self._buffer = np.empty(count * size, np.uint8)
        content = self._buffer[: count * size]
        view, n_read, place = memoryview(content), 0, start + index * size
        self._file.need(place, place + len(view))
        while n_read < len(view):
            n_bytes_read = os.preadv(self._file.descriptor, [view[n_read:]], place + n_read)
            if not n_bytes_read:
                return False
            n_read += n_bytes_read
        frames = content.reshape(count, size)
        words = frames[:, cell:].view(f"{order}f4").reshape(count, 3, self.n_atoms + 2)
        marks = frames[:, cell:].view(f"{order}i4").reshape(count, 3, self.n_atoms + 2)[:, :, [0, -1]]
        cells = frames[:, :4].view(f"{order}i4") if cell else np.full(1, 48)
        if (marks != 4 * self.n_atoms).any() or (cells != 48).any():
            return False
        self._vectors = words[:, :, 1:-1].transpose(0, 2, 1)
        self._cells = frames[:, 4:52].view(f"{order}f8") if cell else None
        self._count = count
        return True

    def _frame_box(self, place: int) -> npt.NDArray[np.float32] | None:
        """Return a frame's box as MDAnalysis's reader does (`DCDReader._frame_to_ts`)."""
        assert self._cells is not None
        cell = self._cells[place].astype(np.float64)
        if cell.tobytes() != self._cell:
            self._cell, self._box = cell.tobytes(), _box(cell)
        return None if self._box is None else self._box.copy()


def _box(cell: npt.NDArray[np.float64]) -> npt.NDArray[np.float32] | None:
    from MDAnalysis.lib.mdamath import triclinic_box

    values = np.take(cell, [0, 2, 5, 4, 3, 1])  # A, gamma, B, beta, alpha, C
    if np.all(np.abs(values[3:]) <= 1.0):  # cosines
        for axis in (3, 4, 5):
            values[axis] = 90.0 - np.arcsin(values[axis]) * 90.0 / (np.pi / 2)
    elif np.any(values < 0.0) or np.any(values[3:] > 180.0):  # vectors
        values = triclinic_box(cell[[0, 1, 3]], cell[[1, 2, 4]], cell[[3, 4, 5]])
    box = np.array(values, dtype=np.float32)
    return box if box[:3].any() else None
