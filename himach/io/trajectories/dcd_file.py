"""DCD files with frames of equal length: `DcdFile` computes offsets of frames, and reads many small frames at once.

MDAnalysis's reader reads files with fixed atoms or a fourth dimension; it takes 55 µs a frame of few atoms, this one 5.
"""

import os
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from himach.errors import TrajectoryError
from himach.frame import RawFrame, Vectors
from himach.io.trajectories.file_failures import warn_cut
from himach.io.trajectories.readahead import HOLE_BYTES, ask_for
from himach.io.trajectories.timeline import even_times
from himach.io.trajectories.urls.byte_file import ByteFile, read_status
from himach.io.trajectories.xdr_file import FrameFile

#: Bytes of consecutive small frames read at once.
BLOCK_BYTES = 1 << 20
#: Version in the headers of NAMD and other programs that write angles or cosines.
NAMD_VERSION = 24


class DcdHeader(NamedTuple):
    """Header of a DCD file."""

    order: str  # of its bytes, as struct's prefix
    first: int  # integration step of the first frame
    every: int  # integration steps from frame to frame
    n_fixed: int  # atoms with positions in the first frame only
    timestep: float  # of the integration, in units of CHARMM
    cell: int  # bytes of a frame's box; 0 without one
    dimensions: int
    version: int  # of the program; 0 of X-PLOR
    n_atoms: int
    start: int  # offset of the first frame

    @classmethod
    def read(cls, path: str) -> "DcdHeader | None":
        """Read the header of a file; return None for one that is too short or begins otherwise."""
        with ByteFile(path) as file:
            head = file.pread(96, 0)
            order = next((order for order in "<>" if head[:8] == struct.pack(f"{order}i4s", 84, b"CORD")), None)
            if order is None or len(head) < 96:
                return None
            (title,) = struct.unpack_from(f"{order}i", head, 92)
            count = file.pread(12, 92 + 8 + title) if title >= 0 else b""
        if len(count) < 12:
            return None
        control = struct.unpack_from(f"{order}9if10i", head, 8)
        has_cell, has_fourth, version = bool(control[10]), control[11] == 1, control[19]
        cell, dimensions, timestep = 56 if has_cell else 0, 4 if has_fourth else 3, control[9]
        if not version:
            cell, dimensions, (timestep,) = 0, 3, struct.unpack_from(f"{order}d", head, 44)
        size, n_atoms, _ = struct.unpack(f"{order}3i", count)
        if size != 4 or n_atoms < 1:
            return None
        return cls(
            order, control[1], control[2], control[8], timestep, cell, dimensions, version, n_atoms, 100 + title + 12
        )

    @property
    def is_even(self) -> bool:
        """Whether all frames have all atoms, and three dimensions."""
        return not self.n_fixed and self.dimensions == 3 and self.every > 0

    @property
    def is_swapped(self) -> bool:
        """Whether the file has the other byte order; MDAnalysis misreads its time step."""
        return (self.order == "<") != (sys.byteorder == "little")

    @property
    def dt(self) -> float:
        """Time between frames, ps."""
        from MDAnalysis.units import convert

        return float(convert(self.timestep, "AKMA", "ps") * self.every)

    def frame_bytes(self, n_fixed: int = 0) -> int:
        """Return the size of a frame without the positions of so many atoms."""
        return self.cell + 4 * self.dimensions * (self.n_atoms - n_fixed + 2)


def check_dcd(path: str, reader: Any = None) -> None:
    """Refuse boxes of CHARMM that MDAnalysis takes for cosines."""
    header = DcdHeader.read(path)
    if header is None or not header.cell or header.version <= NAMD_VERSION:
        return
    with ByteFile(path) as file:
        cell = file.pread(48, header.start + 4)
    below = np.frombuffer(cell, f"{header.order}f8")[[1, 3, 4]] if len(cell) == 48 else np.zeros(3)
    if below.any() and (np.abs(below) <= 1).all():
        raise TrajectoryError(
            f"{path} has boxes as CHARMM writes them, whose parts below 1 Å would be taken for cosines of angles; "
            "convert it, for example by CHARMM or catdcd"
        )


def is_cut_dcd(path: str, reader: Any) -> bool:
    """Return whether bytes of an incomplete frame end a DCD file (libdcd counts only whole ones)."""
    header = DcdHeader.read(path)
    if header is None:
        return False
    fixed_bytes = 4 * (header.n_atoms - header.n_fixed) + 8 if header.n_fixed else 0
    rest = os.path.getsize(path) - header.start - fixed_bytes - header.frame_bytes()
    return rest > 0 and bool(rest % header.frame_bytes(header.n_fixed))


class DcdFile(FrameFile):
    """A DCD file; keywords are MDAnalysis's dt and time_offset (ps)."""

    kind = "DCD"

    def __init__(self, path: str, header: DcdHeader, keywords: Mapping[str, Any]) -> None:
        super().__init__(path)
        check_dcd(path)
        self._header, self.n_atoms = header, header.n_atoms
        self._bytes_per_frame = header.frame_bytes()
        self.n_frames, rest = divmod(read_status(path).size - header.start, header.frame_bytes())
        if self.n_frames < 1:
            raise TrajectoryError(f"{path} holds no whole DCD frame; it was cut off while its first frame was written")
        if rest:
            warn_cut(path, self.n_frames)
        dt, offset = keywords.get("dt"), keywords.get("time_offset", 0.0)
        self.timed = dt is None
        self.times = even_times(self.n_frames, float(dt or header.dt), header.first / header.every, float(offset))

    def read(self, index: int, needed: int | None = None) -> RawFrame:
        """Return a whole frame; its arrays are valid until the next read."""
        if not 0 <= index - self._first < self._count:
            self._load(index)
        place, self._last = index - self._first, index
        np.copyto(self._positions, self._vectors[place])
        box = self._frame_box(place) if self._header.cell else None
        assert self.times is not None
        return RawFrame(index, float(self.times[index]), self._positions, box, data={"step": index + 1})

    def expect(self, indices: Sequence[int]) -> None:
        """Request readahead of these frames."""
        start, size = self._header.start, self._header.frame_bytes()
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

    def _load(self, index: int) -> None:
        """Read a frame, and those behind it if frames are small and read in order."""
        if not 0 <= index < self.n_frames:
            raise ValueError(f"there is no frame {index} in it")
        size, cell, order = self._header.frame_bytes(), self._header.cell, self._header.order
        count = 1
        if index > self._last and size * (index - self._last - 1) <= HOLE_BYTES:
            count = min(max(1, BLOCK_BYTES // size), 2 * max(1, self._count), self.n_frames - index)
        self._first, self._count = index, 0
        if len(self._buffer) < count * size:
            self._buffer = np.empty(count * size, np.uint8)
            self._positions = np.empty((self.n_atoms, 3), np.float32)
        count = self._fill(memoryview(self._buffer[: count * size]), self._header.start + index * size) // size
        if not count:
            raise ValueError("the file has become shorter since it was opened")
        frames = self._buffer[: count * size].reshape(count, size)
        words = frames[:, cell:].view(f"{order}f4").reshape(count, 3, self.n_atoms + 2)
        marks = frames[:, cell:].view(f"{order}i4").reshape(count, 3, self.n_atoms + 2)[:, :, [0, -1]]
        cells = frames[:, :4].view(f"{order}i4") if cell else np.full(1, 48)
        wrong = (marks != 4 * self.n_atoms).any(axis=(1, 2)) | (cells != 48).any(axis=-1)
        self._count = int(np.argmax(wrong)) if wrong.any() else count
        if not self._count:
            raise ValueError("its records have senseless sizes")
        self._vectors = words[:, :, 1:-1].transpose(0, 2, 1)
        if cell:
            self._cells = frames[:, 4:52].view(f"{order}f8")

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
