"""DCD, the format of CHARMM and NAMD: positions in Å, little-endian, with a cell, without velocities and forces.

It has only the first frame's time and the time step, not a time per frame.
"""

from __future__ import annotations

import struct
from fractions import Fraction

from himach.frame import RawFrame
from himach.io.trajectories.layouts.layout import Bytes, Content, FileLayout, box_or_none

AKMA = 4.888821e-2  # ps: the unit of time
_CHARMM = 24  # version
_TITLE = b"Written by himach".ljust(80)
_RECORD = struct.Struct("<i")
_CELL = struct.Struct("<i6di")
_LARGEST = (1 << 31) - 1


class Dcd(FileLayout):
    """A DCD file."""

    suffix = ".dcd"
    head_bytes = 92 + 4 + 4 + len(_TITLE) + 4 + 12

    def __init__(self, content: Content) -> None:
        super().__init__(content)
        self._vectors_at = _CELL.size * content.has_box
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
        title = _RECORD.pack(1) + _TITLE
        return b"".join(
            _RECORD.pack(len(record)) + record + _RECORD.pack(len(record))
            for record in (b"CORD" + control, title, _RECORD.pack(self.content.n_atoms))
        )

    def put(self, frame: RawFrame, into: Bytes, at: int) -> None:
        """Write a frame's bytes from `at` on."""
        if self.content.has_box:
            a, b, c, alpha, beta, gamma = box_or_none(frame.box)
            _CELL.pack_into(into, at, 48, a, gamma, b, beta, alpha, c, 48)
        n_bytes = 4 * self.content.n_atoms
        place = at + self._vectors_at
        for axis in range(3):
            start = place + axis * (n_bytes + 8)
            _RECORD.pack_into(into, start, n_bytes)
            into[start + 4 : start + 4 + n_bytes].view("<f4")[:] = frame.positions[:, axis]
            _RECORD.pack_into(into, start + 4 + n_bytes, n_bytes)
