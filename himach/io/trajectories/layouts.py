"""Frames as the bytes of a trajectory file: any range can be computed without the bytes before it.

`Content` has the numbers that define a file, a `FileLayout` the places of its bytes: `Dcd`, the format of CHARMM and
NAMD (positions in Å, little-endian, with a cell; of times only the first and the step); `Trr` of GROMACS (nm, nm/ps and
kJ/(mol nm), big-endian, in single precision); `NetCdf` by AMBER's convention (https://ambermd.org/netcdf/nctraj.xhtml),
in the classic format with 64-bit offsets (Å, ps, kcal/(mol Å), big-endian).
"""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from himach.frame import RawFrame, Vectors

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

    def __init__(self, content: Content) -> None:
        super().__init__(content)
        field_bytes = 12 * content.n_atoms
        sizes = (field_bytes, field_bytes * content.has_velocities, field_bytes * content.has_forces)
        self.frame_bytes = _TRR_VECTORS_AT + sum(sizes)
        if self.possible:
            self._frame_start = _TRR_START + _TRR_SIZES.pack(0, 0, 36, 0, 0, 0, 0, *sizes, content.n_atoms)

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


_DIMENSION, _VARIABLE, _ATTRIBUTE = 10, 11, 12
_CHAR, _FLOAT, _DOUBLE = 2, 5, 6
_BYTES = {_CHAR: 1, _FLOAT: 4, _DOUBLE: 8}
_TIME, _CELL = struct.Struct(">f"), struct.Struct(">6d")  # lengths and angles
_NO_BOX = (math.nan, math.nan, math.nan, 90.0, 90.0, 90.0)  # MDAnalysis's reader fails at lengths 0
_KCAL = 4.184  # kJ
_GLOBAL = {
    "title": "Written by himach",
    "application": "himach",
    "program": "himach",
    "programVersion": "1",
    "Conventions": "AMBER",
    "ConventionVersion": "1.0",
}


class _Variable(NamedTuple):
    """A variable of the header; `fixed` is the content of one that is not per frame."""

    name: str
    type: int
    dimensions: Sequence[str]
    units: str = ""
    fixed: bytes = b""


_CELL_VARIABLES = (
    _Variable("cell_lengths", _DOUBLE, ["frame", "cell_spatial"], "angstrom"),
    _Variable("cell_angles", _DOUBLE, ["frame", "cell_angular"], "degree"),
)


class NetCdf(FileLayout):
    """A NetCDF file."""

    suffix = ".nc"

    def __init__(self, content: Content) -> None:
        super().__init__(content)
        vectors = [("coordinates", "angstrom")]
        vectors += [("velocities", "angstrom/picosecond")] * content.has_velocities
        vectors += [("forces", "kilocalorie/mole/angstrom")] * content.has_forces
        self._variables = [
            _Variable("spatial", _CHAR, ["spatial"], fixed=b"xyz"),
            _Variable("cell_spatial", _CHAR, ["cell_spatial"], fixed=b"abc"),
            _Variable("cell_angular", _CHAR, ["cell_angular", "label"], fixed=b"alphabeta gamma"),
            _Variable("time", _FLOAT, ["frame"], "picosecond"),
            *(_CELL_VARIABLES if content.has_box else ()),
            *(_Variable(name, _FLOAT, ["frame", "atom", "spatial"], units) for name, units in vectors),
        ]
        self._dimensions = {
            "frame": 0, "spatial": 3, "atom": content.n_atoms, "cell_spatial": 3, "cell_angular": 3, "label": 5,
        }  # fmt: skip
        self._vectors_at = _TIME.size + _CELL.size * content.has_box
        self.frame_bytes = self._vectors_at + 12 * content.n_atoms * len(vectors)
        if self.possible:
            self.head_bytes = len(self.head(0.0, 0.0))

    @property
    def possible(self) -> bool:
        """Whether the numbers fit the format's 32-bit fields."""
        return 12 * self.content.n_atoms < (1 << 32) - 4 and self.content.n_frames < (1 << 32) - 1

    def head(self, first_time: float, timestep: float) -> bytes:
        """Return the header and the fixed variables, up to the first frame."""
        start = len(self._header(0))  # the header's length does not depend on the offset
        return self._header(start) + b"".join(_pad(variable.fixed) for variable in self._variables)

    def _header(self, start: int) -> bytes:
        numbers = {name: number for number, name in enumerate(self._dimensions)}
        parts = [b"CDF\2", _words(self.content.n_frames, _DIMENSION, len(numbers))]
        parts += [_name(name) + _words(length) for name, length in self._dimensions.items()]
        parts += [_attributes(_GLOBAL), _words(_VARIABLE, len(self._variables))]
        for variable in self._variables:
            lengths = [self._dimensions[name] or 1 for name in variable.dimensions]
            size = _BYTES[variable.type] * math.prod(lengths)
            size += -size % 4
            parts += [_name(variable.name), _words(len(lengths), *(numbers[name] for name in variable.dimensions))]
            parts += [_attributes({"units": variable.units} if variable.units else {}), _words(variable.type, size)]
            parts.append(struct.pack(">Q", start))
            start += size
        return b"".join(parts)

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


def _pad(content: bytes) -> bytes:
    return content + bytes(-len(content) % 4)


def _words(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}I", *numbers)


def _name(name: str) -> bytes:
    return _words(len(name)) + _pad(name.encode())


def _attributes(texts: Mapping[str, str]) -> bytes:
    """Return text attributes in the header's encoding."""
    if not texts:
        return bytes(8)
    listed = (_name(name) + _words(_CHAR, len(text)) + _pad(text.encode()) for name, text in texts.items())
    return _words(_ATTRIBUTE, len(texts)) + b"".join(listed)
