"""Headers of XTC and TRR frames: `parse_xtc()` and `parse_trr()` read one from bytes; `sniff()` detects the format."""

import struct
from typing import NamedTuple

HEADER_BYTES = 96  # the longest headers take 92 (TRR in double precision) and 96 (XTC of 2023)
POSITIONS, VELOCITIES, FORCES, DAMAGED = 1, 2, 4, 128
_XTC_MAGIC = 1995
_XTC_MAGIC_LARGE = 2023  # GROMACS 2023: 64-bit size of a frame's coordinates
_SMALL_SYSTEM = 9  # XTC does not compress up to this many atoms
_LEAST_INDEX, _GREATEST_INDEX = 9, 73  # range of the small sizes of XTC's coders
_TRR_MAGIC = 1993
_TRR_NAME = b"GMX_trn_file"
_TRR_BEGIN = struct.pack(">iii", _TRR_MAGIC, len(_TRR_NAME) + 1, len(_TRR_NAME)) + _TRR_NAME
_TRR_SIZES = struct.Struct(">13i")  # ir, e, box, vir, pres, top, sym, x, v, f, natoms, step, nre


class BadHeaderError(Exception):
    """Bytes that are no valid header."""

    def __str__(self) -> str:
        return "what is there is no header of a frame"


class ShortError(Exception):
    """Too few bytes for a header."""

    def __str__(self) -> str:
        return "the file ends within its header"


class XtcHeader(NamedTuple):
    """One frame of an XTC file."""

    size: int  # bytes of the whole frame
    n_atoms: int
    time: float
    fields: int  # `POSITIONS`, or `DAMAGED` if the coordinates cannot be decoded
    at: int
    n_bytes: int
    ends: tuple[int, ...] | None  # least and greatest coordinate of each axis in steps
    sizes: int  # index of the coordinates' first small size
    precision: float  # steps per nm
    step: int  # of the simulation


class TrrHeader(NamedTuple):
    """One frame of a TRR file."""

    size: int  # bytes of the whole frame
    n_atoms: int
    time: float
    fields: int  # `POSITIONS`, `VELOCITIES`, `FORCES`
    real: int  # bytes of a number: 4 or 8
    box_at: int  # offset of the box vectors in the frame, in bytes; 0 without a box
    vectors_at: int  # offset of the positions, velocities and forces that there are, in this order
    step: int
    coupling: float


def sniff(head: bytes) -> str | None:
    """Return ``"XTC"``, ``"TRR"`` or None for the first bytes of a file."""
    magic = int.from_bytes(head[:4], "big") if len(head) >= 4 else 0
    if magic in (_XTC_MAGIC, _XTC_MAGIC_LARGE):
        return "XTC"
    return "TRR" if magic == _TRR_MAGIC else None


def marks(kind: str, n_atoms: int) -> list[bytes]:
    """Return the possible first bytes of the frames of a file with `n_atoms` atoms."""
    if kind == "TRR":
        return [_TRR_BEGIN]
    return [struct.pack(">ii", magic, n_atoms) for magic in (_XTC_MAGIC, _XTC_MAGIC_LARGE)]


def parse_xtc(head: bytes) -> XtcHeader:
    """Read the header of an XTC frame."""
    if len(head) < 4:
        raise ShortError
    magic = int.from_bytes(head[:4], "big")
    if magic not in (_XTC_MAGIC, _XTC_MAGIC_LARGE):
        raise BadHeaderError
    if len(head) < 56:
        raise ShortError
    n_atoms, step, time = struct.unpack_from(">iif", head, 4)
    (n_again,) = struct.unpack_from(">i", head, 52)
    if n_atoms <= 0 or n_again != n_atoms:
        raise BadHeaderError
    if n_atoms <= _SMALL_SYSTEM:
        return XtcHeader(56 + 12 * n_atoms, n_atoms, time, POSITIONS, 56, 12 * n_atoms, None, 0, 0.0, step)
    at = 92 if magic == _XTC_MAGIC else 96
    if len(head) < at:
        raise ShortError
    n_bytes = int.from_bytes(head[88:at], "big", signed=True)
    if not 0 <= n_bytes <= 15 * n_atoms + 8:  # an atom takes 102 bits at most
        raise BadHeaderError
    precision, *bounds, index = struct.unpack_from(">f7i", head, 56)
    ordered = all(least <= greatest for least, greatest in zip(bounds[:3], bounds[3:], strict=True))
    good = precision > 0 and ordered and _LEAST_INDEX <= index <= _GREATEST_INDEX
    fields = POSITIONS if good else DAMAGED
    size = at + (n_bytes + 3) // 4 * 4
    return XtcHeader(size, n_atoms, time, fields, at, n_bytes, tuple(bounds), index, precision, step)


def parse_trr(head: bytes) -> TrrHeader:
    """Read the header of a TRR frame; raises as `parse_xtc()` does."""
    if len(head) < len(_TRR_BEGIN):
        raise ShortError
    if not head.startswith(_TRR_BEGIN):
        raise BadHeaderError
    start = len(_TRR_BEGIN) + _TRR_SIZES.size
    if len(head) < start + 16:
        raise ShortError
    *sizes, n_atoms, step, _ = _TRR_SIZES.unpack_from(head, len(_TRR_BEGIN))
    box, x, v, f = sizes[2], *sizes[7:10]
    if n_atoms <= 0 or min(sizes) < 0:
        raise BadHeaderError
    real = box // 9 if box else max(x, v, f) // (3 * n_atoms)
    if real not in (4, 8) or any(size not in (0, 3 * real * n_atoms) for size in (x, v, f)):
        raise BadHeaderError
    time, coupling = struct.unpack_from(">ff" if real == 4 else ">dd", head, start)
    data = start + 2 * real
    fields = POSITIONS * (x > 0) | VELOCITIES * (v > 0) | FORCES * (f > 0)
    box_at = data + sizes[0] + sizes[1] if box else 0
    size = data + sum(sizes)
    return TrrHeader(size, n_atoms, time, fields, real, box_at, size - x - v - f, step, coupling)
