"""TRR, the format of GROMACS: nm, nm/ps and kJ/(mol nm), big-endian, in single precision."""

from __future__ import annotations

import struct

from himach.frame import RawFrame
from himach.io.trajectories.layouts.layout import (
    Bytes,
    Content,
    FileLayout,
    box_vectors,
    put_big_endian,
    vectors_or_nan,
)

_START = struct.pack(">iii", 1993, 13, 12) + b"GMX_trn_file"
_SIZES = struct.Struct(">11i")  # ir, e, box, vir, pres, top, sym, x, v, f, atoms
_STAMP = struct.Struct(">ii2f9f")  # step, nre, time, lambda, box
_STAMP_AT = len(_START) + _SIZES.size
_VECTORS_AT = _STAMP_AT + _STAMP.size
_NM = 10.0  # in Å
_LARGEST = (1 << 31) - 1


class Trr(FileLayout):
    """A TRR file; the step of a frame comes from its data, else it is its number."""

    suffix = ".trr"

    def __init__(self, content: Content) -> None:
        super().__init__(content)
        field_bytes = 12 * content.n_atoms
        sizes = (field_bytes, field_bytes * content.has_velocities, field_bytes * content.has_forces)
        self.frame_bytes = _VECTORS_AT + sum(sizes)
        if self.possible:
            self._frame_start = _START + _SIZES.pack(0, 0, 36, 0, 0, 0, 0, *sizes, content.n_atoms)

    @property
    def possible(self) -> bool:
        """Whether the numbers fit the format's 32-bit fields."""
        return 12 * self.content.n_atoms <= _LARGEST and self.content.n_frames <= _LARGEST

    def put(self, frame: RawFrame, into: Bytes, at: int) -> None:
        """Write a frame's bytes from `at` on."""
        content = self.content
        memory = memoryview(into)
        memory[at : at + _STAMP_AT] = self._frame_start
        box = [edge / _NM for edge in box_vectors(frame.box)]
        step = int((frame.data or {}).get("step", frame.number))
        _STAMP.pack_into(into, at + _STAMP_AT, step, 0, frame.time, 0.0, *box)
        place = at + _VECTORS_AT
        put_big_endian(frame.positions / _NM, into, place)
        if content.has_velocities:
            place += 12 * content.n_atoms
            put_big_endian(vectors_or_nan(frame.velocities, content.n_atoms) / _NM, into, place)
        if content.has_forces:
            place += 12 * content.n_atoms
            put_big_endian(vectors_or_nan(frame.forces, content.n_atoms) * _NM, into, place)
