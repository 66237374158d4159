"""Frames as the bytes of a trajectory file: any range can be computed without the bytes before it.

`Content` has the numbers that define a file, a `FileLayout` the places of its bytes: `Dcd`, the format of CHARMM and
NAMD (positions in Å, little-endian, with a cell; of times only the first and the step); `Trr` of GROMACS (nm, nm/ps and
kJ/(mol nm), big-endian, in single precision); `NetCdf` by AMBER's convention (https://ambermd.org/netcdf/nctraj.xhtml),
in the classic format with 64-bit offsets (Å, ps, kcal/(mol Å), big-endian).
"""

import io
import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from himach.errors import UsageError
from himach.frame import FIELDS, POSITIONS, RawFrame, Vectors

Bytes = npt.NDArray[np.uint8]
_LARGEST = (1 << 31) - 1  # 32-bit number


@dataclass(frozen=True)
class Content:
    """Content of a trajectory file."""

    n_frames: int
    n_atoms: int
    has_velocities: bool = False
    has_forces: bool = False
    has_box: bool = True  # whether frames have a box; a frame without one gets one of lengths 0

    @property
    def n_bytes(self) -> int:
        """Bytes of all frames' vectors and boxes."""
        vectors = 1 + self.has_velocities + self.has_forces
        return self.n_frames * (12 * self.n_atoms * vectors + 24 * self.has_box)


class FileLayout(ABC):
    """Layout of a file: a header, then frames of equal length, so that any offset gives its frame."""

    suffix = ""
    fields = POSITIONS  # `himach.frame.FIELDS` that it stores, or-ed
    with_data = False  # whether it stores the step number of a frame
    head_bytes = 0
    frame_bytes = 0

    def __init__(self, content: Content) -> None:
        self.content = content

    @property
    def possible(self) -> bool:
        """Whether the format can hold so many frames and atoms."""
        return True

    @property
    def size(self) -> int:
        """Length of the file."""
        return self.head_bytes + self.content.n_frames * self.frame_bytes

    def head(self, first_time: float, timestep: float) -> bytes:
        """Return the header of the file, given the first frame's time and the time between frames, ps."""
        return b""

    def frame(self, frame: RawFrame) -> Bytes:
        """Return a frame's bytes."""
        into = np.empty(self.frame_bytes, np.uint8)
        self.put(frame, into, 0)
        return into

    @abstractmethod
    def put(self, frame: RawFrame, into: Bytes, at: int) -> None:
        """Write a frame's bytes from `at` on."""


def _put_big_endian(vectors: Sequence[Vectors], into: Bytes, at: int) -> None:
    """Write vectors one after the other as big-endian floats."""
    for values in vectors:
        into[at : at + values.nbytes].view(">f4").reshape(values.shape)[:] = values
        at += values.nbytes


def _vectors_or_nan(vectors: Vectors | None, n_atoms: int) -> Vectors:
    """Return vectors, or NaN for a frame without them in a file that has them."""
    return np.full((n_atoms, 3), np.nan, dtype=np.float32) if vectors is None else vectors


AKMA = 4.888821e-2  # ps: the unit of time
_CHARMM = 24  # version
_DCD_TITLE = b"Written by himach".ljust(80)
_DCD_RECORD = struct.Struct("<i")
_DCD_CELL = struct.Struct("<i6di")


class Dcd(FileLayout):
    """A DCD file."""

    suffix = ".dcd"
    head_bytes = 92 + 4 + 4 + len(_DCD_TITLE) + 4 + 12

    def __init__(self, content: Content) -> None:
        super().__init__(content)
        self._vectors_at = _DCD_CELL.size * content.has_box
        self.frame_bytes = self._vectors_at + 3 * (4 * content.n_atoms + 8)

    @property
    def possible(self) -> bool:
        """Whether the numbers fit the format's 32-bit fields."""
        return 4 * self.content.n_atoms <= _LARGEST and self.content.n_frames <= _LARGEST

    def head(self, first_time: float, timestep: float) -> bytes:
        """Return the header of the file, which has times as multiples of an integration step."""
        if timestep <= 0:
            timestep = first_time if first_time > 0 else 0.0  # of a single frame
        ratio = Fraction(first_time / timestep if timestep else 0.0).limit_denominator(1000)
        if max(abs(ratio.numerator), ratio.denominator) > _LARGEST:
            ratio = Fraction(0)
        first, every = ratio.numerator, ratio.denominator
        timestep /= every
        n_frames, cell = self.content.n_frames, int(self.content.has_box)
        last = min(first + every * n_frames, _LARGEST)
        control = struct.pack(
            "<4i5if10i", n_frames, first, every, last, 0, 0, 0, 0, 0, timestep / AKMA, cell, *[0] * 8, _CHARMM
        )
        title = _DCD_RECORD.pack(1) + _DCD_TITLE
        return b"".join(
            _DCD_RECORD.pack(len(record)) + record + _DCD_RECORD.pack(len(record))
            for record in (b"CORD" + control, title, _DCD_RECORD.pack(self.content.n_atoms))
        )

    def put(self, frame: RawFrame, into: Bytes, at: int) -> None:
        """Write a frame's bytes from `at` on."""
        if self.content.has_box:
            a, b, c, alpha, beta, gamma = (0, 0, 0, 90, 90, 90) if frame.box is None else frame.box.tolist()
            _DCD_CELL.pack_into(into, at, 48, a, gamma, b, beta, alpha, c, 48)
        n_bytes = 4 * self.content.n_atoms
        place = at + self._vectors_at
        for axis in range(3):
            start = place + axis * (n_bytes + 8)
            _DCD_RECORD.pack_into(into, start, n_bytes)
            into[start + 4 : start + 4 + n_bytes].view("<f4")[:] = frame.positions[:, axis]
            _DCD_RECORD.pack_into(into, start + 4 + n_bytes, n_bytes)


_TRR_START = struct.pack(">iii", 1993, 13, 12) + b"GMX_trn_file"
_TRR_SIZES = struct.Struct(">11i")  # ir, e, box, vir, pres, top, sym, x, v, f, atoms
_TRR_STAMP = struct.Struct(">ii2f9f")  # step, nre, time, lambda, box
_TRR_STAMP_AT = len(_TRR_START) + _TRR_SIZES.size
_TRR_VECTORS_AT = _TRR_STAMP_AT + _TRR_STAMP.size
_NM = 10.0  # in Å


class Trr(FileLayout):
    """A TRR file; the step of a frame comes from its data, else it is its number."""

    suffix = ".trr"
    fields = FIELDS
    with_data = True

    def __init__(self, content: Content) -> None:
        super().__init__(content)
        field_bytes = 12 * content.n_atoms
        sizes = (field_bytes, field_bytes * content.has_velocities, field_bytes * content.has_forces)
        self.frame_bytes = _TRR_VECTORS_AT + sum(sizes)
        if self.possible:
            self._frame_start = _TRR_START + _TRR_SIZES.pack(0, 0, 36, 0, 0, 0, 0, *sizes, content.n_atoms)

    def frame(self, frame: RawFrame) -> Bytes:
        """Return a frame's bytes, with the velocities and forces that it has."""
        has = {"has_velocities": frame.velocities is not None, "has_forces": frame.forces is not None}
        return FileLayout.frame(Trr(replace(self.content, **has)), frame)

    @property
    def possible(self) -> bool:
        """Whether the numbers fit the format's 32-bit fields."""
        return 12 * self.content.n_atoms <= _LARGEST and self.content.n_frames <= _LARGEST

    def put(self, frame: RawFrame, into: Bytes, at: int) -> None:
        """Write a frame's bytes from `at` on."""
        from MDAnalysis.lib.mdamath import triclinic_vectors

        content = self.content
        memory = memoryview(into)
        memory[at : at + _TRR_STAMP_AT] = self._frame_start
        with np.errstate(invalid="ignore"):  # of angles that make no box
            box = triclinic_vectors(np.zeros(6) if frame.box is None else frame.box, dtype=np.float64) / _NM
        step = int((frame.data or {}).get("step", frame.number))
        _TRR_STAMP.pack_into(into, at + _TRR_STAMP_AT, step, 0, frame.time, 0.0, *box.ravel())
        vectors = [frame.positions / _NM]
        if content.has_velocities:
            vectors.append(_vectors_or_nan(frame.velocities, content.n_atoms) / _NM)
        if content.has_forces:
            vectors.append(_vectors_or_nan(frame.forces, content.n_atoms) * _NM)
        _put_big_endian(vectors, into, at + _TRR_VECTORS_AT)


_TIME, _CELL = struct.Struct(">f"), struct.Struct(">6d")  # lengths and angles
_NO_BOX = (math.nan, math.nan, math.nan, 90.0, 90.0, 90.0)  # MDAnalysis's reader fails at lengths 0
_KCAL = 4.184  # kJ
_ATTRIBUTES = {
    "title": "Written by himach",
    "application": "himach",
    "program": "himach",
    "programVersion": "1",
    "Conventions": "AMBER",
    "ConventionVersion": "1.0",
}
_LABELS = {"spatial": b"xyz", "cell_spatial": b"abc", "cell_angular": b"alphabeta gamma"}
_DIMENSIONS = {"frame": None, "spatial": 3, "cell_spatial": 3, "cell_angular": 3, "label": 5}
_VECTOR = ("frame", "atom", "spatial")


class NetCdf(FileLayout):
    """A NetCDF file."""

    suffix = ".nc"
    fields = FIELDS

    def __init__(self, content: Content) -> None:
        super().__init__(content)
        n_vectors = 1 + content.has_velocities + content.has_forces
        self._vectors_at = _TIME.size + _CELL.size * content.has_box
        self.frame_bytes = self._vectors_at + 12 * content.n_atoms * n_vectors
        self.head_bytes = len(_netcdf_head(replace(content, n_frames=1, n_atoms=1)))

    @property
    def possible(self) -> bool:
        """Whether the numbers fit the format's 32-bit fields."""
        return 12 * self.content.n_atoms <= _LARGEST and self.content.n_frames < (1 << 32) - 1

    def head(self, first_time: float, timestep: float) -> bytes:
        """Return the header and the fixed variables, up to the first frame."""
        head = _netcdf_head(replace(self.content, n_frames=1))
        return head[:4] + struct.pack(">I", self.content.n_frames) + head[8:]

    def frame(self, frame: RawFrame) -> Bytes:
        """Return a frame's bytes; raises UsageError if it lacks vectors that the header names."""
        lacks = self.content.has_velocities and frame.velocities is None
        if lacks or (self.content.has_forces and frame.forces is None):
            raise UsageError(f"frame {frame.number} lacks velocities or forces, which frames before have; write .trr")
        return super().frame(frame)

    def put(self, frame: RawFrame, into: Bytes, at: int) -> None:
        """Write a frame's bytes from `at` on."""
        content = self.content
        _TIME.pack_into(into, at, frame.time)
        if content.has_box:
            _CELL.pack_into(into, at + _TIME.size, *(_NO_BOX if frame.box is None else frame.box.tolist()))
        vectors = [frame.positions]
        if content.has_velocities:
            vectors.append(_vectors_or_nan(frame.velocities, content.n_atoms))
        if content.has_forces:
            vectors.append(_vectors_or_nan(frame.forces, content.n_atoms) / _KCAL)
        _put_big_endian(vectors, into, at + self._vectors_at)


@lru_cache
def _netcdf_head(content: Content) -> bytes:
    """Have SciPy write a file of one frame, and cut that off: 0.5 s and 300 MB for a million atoms."""
    from scipy.io import netcdf_file

    written = io.BytesIO()
    file = netcdf_file(written, "w", version=2)
    for name, text in _ATTRIBUTES.items():
        setattr(file, name, text)
    for name, length in {**_DIMENSIONS, "atom": content.n_atoms}.items():
        file.createDimension(name, length)
    for name, letters in _LABELS.items():
        labels = file.createVariable(name, "S1", (name, "label")[: 1 + (len(letters) > 3)])
        labels[:] = np.frombuffer(letters, "S1").reshape(labels.shape)
    for exists, name, type_, dimensions, units in (
        (True, "time", "f4", ("frame",), "picosecond"),
        (content.has_box, "cell_lengths", "f8", ("frame", "cell_spatial"), "angstrom"),
        (content.has_box, "cell_angles", "f8", ("frame", "cell_angular"), "degree"),
        (True, "coordinates", "f4", _VECTOR, "angstrom"),
        (content.has_velocities, "velocities", "f4", _VECTOR, "angstrom/picosecond"),
        (content.has_forces, "forces", "f4", _VECTOR, "kilocalorie/mole/angstrom"),
    ):
        if exists:
            variable = file.createVariable(name, type_, dimensions)
            variable.units = units
            variable[0] = 0
    file.flush()
    n_bytes = sum(variable.data.nbytes for variable in file.variables.values() if variable.isrec)
    return bytes(written.getbuffer()[:-n_bytes])
