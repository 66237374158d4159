"""NetCDF by AMBER's convention, in the classic format with 64-bit offsets: Å, ps, kcal/(mol Å), big-endian.

https://ambermd.org/netcdf/nctraj.xhtml
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from himach.frame import RawFrame
from himach.io.trajectories.layouts.layout import Bytes, Content, FileLayout, put_big_endian, vectors_or_nan

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
        parts = [
            b"CDF\2",
            struct.pack(">I", self.content.n_frames),
            struct.pack(">II", _DIMENSION, len(self._dimensions)),
        ]
        parts += [_name(name) + struct.pack(">I", length) for name, length in self._dimensions.items()]
        parts += [_attributes(_GLOBAL), struct.pack(">II", _VARIABLE, len(self._variables))]
        numbers = {name: number for number, name in enumerate(self._dimensions)}
        for variable in self._variables:
            size = _BYTES[variable.type]
            for name in variable.dimensions:
                size *= self._dimensions[name] or 1
            size += -size % 4
            parts += [_name(variable.name), struct.pack(">I", len(variable.dimensions))]
            parts += [struct.pack(">I", numbers[name]) for name in variable.dimensions]
            parts += [
                _attributes({"units": variable.units} if variable.units else {}),
                struct.pack(">IIQ", variable.type, size, start),
            ]
            start += size
        return b"".join(parts)

    def put(self, frame: RawFrame, into: Bytes, at: int) -> None:
        """Write a frame's bytes from `at` on."""
        content = self.content
        _TIME.pack_into(into, at, frame.time)
        if content.has_box:
            _CELL.pack_into(into, at + _TIME.size, *(_NO_BOX if frame.box is None else frame.box.tolist()))
        place = at + self._vectors_at
        put_big_endian(frame.positions, into, place)
        if content.has_velocities:
            place += 12 * content.n_atoms
            put_big_endian(vectors_or_nan(frame.velocities, content.n_atoms), into, place)
        if content.has_forces:
            place += 12 * content.n_atoms
            put_big_endian(vectors_or_nan(frame.forces, content.n_atoms) / _KCAL, into, place)


def _pad(content: bytes) -> bytes:
    return content + bytes(-len(content) % 4)


def _name(name: str) -> bytes:
    return struct.pack(">I", len(name)) + _pad(name.encode())


def _attributes(texts: Mapping[str, str]) -> bytes:
    """Return text attributes in the header's encoding."""
    if not texts:
        return bytes(8)
    listed = (_name(name) + struct.pack(">II", _CHAR, len(text)) + _pad(text.encode()) for name, text in texts.items())
    return struct.pack(">II", _ATTRIBUTE, len(texts)) + b"".join(listed)
