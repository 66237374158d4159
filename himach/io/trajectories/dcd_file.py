"""DCD files with frames of equal length: `DcdFile` computes offsets of frames, and reads many small frames at once.

MDAnalysis's reader is the reference: the first and last frame must be the same by both ways, else it reads all frames.
It also reads files with fixed atoms or a fourth dimension, and frames with unexpected records.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from himach.errors import TrajectoryError
from himach.frame import RawFrame, Vectors
from himach.io.trajectories.layouts import AKMA
from himach.io.trajectories.readahead import HOLE_BYTES, ask_for
from himach.io.trajectories.reader_file import Places, ReaderFile
from himach.io.trajectories.urls.byte_file import ByteFile

#: Bytes of consecutive small frames read at once.
BLOCK_BYTES = 1 << 20
#: Version in the headers of NAMD and other programs that write angles or cosines.
NAMD_VERSION = 24


class DcdHeader(NamedTuple):
    """Header of a DCD file."""

    order: str  # of its bytes, as struct's prefix
    every: int  # integration steps from frame to frame
    n_fixed: int  # atoms with positions in the first frame only
    timestep: float  # of the integration, in `AKMA`
    cell: int  # bytes of a frame's box; 0 without one
    dimensions: int
    version: int  # of the program; 0 of X-PLOR
    start: int  # offset of what follows it

    @classmethod
    def read(cls, path: str) -> DcdHeader | None:
        """Read the header of a file; return None for one that is too short or begins otherwise."""
        with ByteFile(path) as file:
            head = file.pread(96, 0)
        order = next((order for order in "<>" if head[:4] == struct.pack(f"{order}i", 84)), None)
        if order is None or len(head) < 96:
            return None
        control = struct.unpack_from(f"{order}9if10i", head, 8)
        has_cell, has_fourth, version = bool(control[10]), control[11] == 1, control[19]
        (title,) = struct.unpack_from(f"{order}i", head, 92)
        if title < 0:
            return None
        cell, dimensions = (56 if has_cell else 0, 4 if has_fourth else 3) if version else (0, 3)
        return cls(order, control[2], control[8], control[9], cell, dimensions, version, 92 + 8 + title + 12)

    @property
    def is_even(self) -> bool:
        """Whether all frames have all atoms, and three dimensions."""
        return not self.n_fixed and self.dimensions == 3

    def frame_bytes(self, n_atoms: int) -> int:
        """Return the size of a frame with the positions of so many atoms."""
        return self.cell + 4 * self.dimensions * (n_atoms + 2)


def swapped_dt(path: str) -> dict[str, float]:
    """Return dt in ps for MDAnalysis's reader, which misreads it in a file of the other byte order."""
    header = DcdHeader.read(path)
    if header is None or header.order == ("<" if sys.byteorder == "little" else ">"):
        return {}
    dt = header.every * header.timestep * AKMA
    return {"dt": dt} if dt > 0 else {}


def opening_places(path: str) -> list[tuple[int, int]]:
    """Return the byte ranges that opening a DCD file reads; empty if it reads all."""
    header = DcdHeader.read(path)
    if header is None or not header.is_even:
        return []
    with ByteFile(path) as file:
        content, size = file.pread(4, header.start - 8), file.status.size
    n_atoms = int.from_bytes(content, "little" if header.order == "<" else "big", signed=True)
    if n_atoms <= 0:
        return []
    frame_bytes = header.frame_bytes(n_atoms)
    last = header.start + (size - header.start) // frame_bytes * frame_bytes
    return [(0, header.start + 2 * frame_bytes), (last - frame_bytes, size)]


def check_dcd(path: str, reader: Any) -> None:
    """Refuse boxes of CHARMM that MDAnalysis takes for cosines."""
    header = DcdHeader.read(path)
    if header is None or not header.cell or header.version <= NAMD_VERSION:
        return
    with open(path, "rb") as file:
        cell = os.pread(file.fileno(), 48, header.start + 4)
    below = np.frombuffer(cell, f"{header.order}f8")[[1, 3, 4]] if len(cell) == 48 else np.zeros(3)
    if below.any() and (np.abs(below) <= 1).all():
        raise TrajectoryError(
            f"{path} has boxes as CHARMM writes them, whose parts below 1 Å would be taken for cosines of angles; "
            "convert it, for example by CHARMM or catdcd"
        )


def is_cut_dcd(path: str, reader: Any) -> bool:
    """Return whether bytes of an incomplete frame end a DCD file (libdcd counts only whole ones)."""
    header, n_atoms = DcdHeader.read(path), int(reader.n_atoms)
    if header is None:
        return False
    n_free = n_atoms - header.n_fixed
    fixed_bytes = 4 * n_free + 8 if header.n_fixed else 0
    rest = os.path.getsize(path) - header.start - fixed_bytes - header.frame_bytes(n_atoms)
    return rest > 0 and bool(rest % header.frame_bytes(n_free))


class DcdFile(ReaderFile):
    """A DCD file; see `ReaderFile`."""

    def __init__(self, path: str, reader: Any, n_frames: int, opening: Places = ()) -> None:
        super().__init__(path, reader, n_frames, opening=opening)
        header = DcdHeader.read(path)
        self._header = header if header is not None and header.is_even else None
        if self._header is not None and all(map(self._agrees, {0, n_frames - 1})):
            self._bytes_per_frame = self._header.frame_bytes(self.n_atoms)
        else:
            self._header = None
        self._last = -1

    def read(self, index: int, needed: int | None = None) -> RawFrame:
        """Return a whole frame; its arrays are valid until the next read."""
        frame = None if self._header is None else self._read_direct(index)
        return super().read(index, needed) if frame is None else frame

    def expect(self, indices: Sequence[int]) -> None:
        """Request readahead of these frames."""
        if self._header is None:
            super().expect(indices)
        elif len(indices):
            start, size = self._header.start, self._header.frame_bytes(self.n_atoms)
            ask_for(self.path, ((start + size * index, start + size * (index + 1)) for index in indices))

    def release(self) -> None:
        """Close the file until the next read."""
        super().release()
        self._count = 0

    def _forget(self) -> None:
        super()._forget()
        self._first = self._count = 0
        self._last = -1
        self._buffer = np.empty(0, np.uint8)
        self._positions: Vectors = np.empty(0, np.float32)
        self._vectors = self._cells = np.empty(0)
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
        assert self._header is not None
        assert self.times is not None
        np.copyto(self._positions, self._vectors[place])
        box = self._frame_box(place) if self._header.cell else None
        return RawFrame(index, float(self.times[index]), self._positions, box, data={"step": index + 1})

    def _load(self, index: int) -> bool:
        """Read a frame, and those behind it if frames are small and read in order; return whether it worked."""
        assert self._header is not None
        size, cell, order = self._header.frame_bytes(self.n_atoms), self._header.cell, self._header.order
        count = 1 if 0 <= index < self.n_frames else 0
        if count and index > self._last and size * (index - self._last - 1) <= HOLE_BYTES:
            count = min(max(1, BLOCK_BYTES // size), 2 * max(1, self._count), self.n_frames - index)
        self._first, self._count = index, 0
        if not count:
            return False
        if len(self._buffer) < count * size:
            self._buffer = np.empty(count * size, np.uint8)
            self._positions = np.empty((self.n_atoms, 3), np.float32)
        content = self._buffer[: count * size]
        if self._fill(memoryview(content), self._header.start + index * size) < len(content):
            return False
        frames = content.reshape(count, size)
        words = frames[:, cell:].view(f"{order}f4").reshape(count, 3, self.n_atoms + 2)
        marks = frames[:, cell:].view(f"{order}i4").reshape(count, 3, self.n_atoms + 2)[:, :, [0, -1]]
        cells = frames[:, :4].view(f"{order}i4") if cell else np.full(1, 48)
        if (marks != 4 * self.n_atoms).any() or (cells != 48).any():
            return False
        self._vectors = words[:, :, 1:-1].transpose(0, 2, 1)
        if cell:
            self._cells = frames[:, 4:52].view(f"{order}f8")
        self._count = count
        return True

    def _frame_box(self, place: int) -> npt.NDArray[np.float32] | None:
        """Return a frame's box as MDAnalysis's reader does (`DCDReader._frame_to_ts`)."""
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
