"""Where the frames of an XTC or TRR file begin and when they were taken, from one walk over the frames' headers.

`read_index()` walks; it decodes no coordinates and stores nothing beside the user's file. A file that ends within its
last frame is reported as cut; a senseless header with frames after it is an error that names frame and byte.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from himach.errors import TrajectoryError

__all__ = ["DAMAGED", "FORCES", "POSITIONS", "VELOCITIES", "XdrIndex", "read_index", "sniff"]

XTC_MAGIC = 1995
XTC_MAGIC_LARGE = 2023  # GROMACS 2023: the size of a frame's coordinates in 64 bits
TRR_MAGIC = 1993
_TRR_NAME = b"GMX_trn_file"
_TRR_SIZES = struct.Struct(">13i")  # ir, e, box, vir, pres, top, sym, x, v, f, natoms, step, nre
_TRR_SIZES_AT = 24
_HEADER_BYTES = 96  # the longest headers take 92 (TRR in double precision) and 96 (XTC of 2023)
POSITIONS, VELOCITIES, FORCES, DAMAGED = 1, 2, 4, 128
_LEAST_BITS, _GREATEST_BITS = 9, 72  # of the sizes that XTC's coders know
_SMALL_SYSTEM = 9  # XTC does not compress up to this many atoms


@dataclass(frozen=True)
class XdrIndex:
    """The frames of one XTC or TRR file.

    Attributes
    ----------
    kind
        ``"XTC"`` or ``"TRR"``.
    n_atoms
        Atoms in each frame.
    offsets
        int64 (n_frames + 1,): first byte of each frame, and the end of the last whole frame.
    times
        float64 (n_frames,), ps.
    has
        uint8 (n_frames,): bits `POSITIONS`, `VELOCITIES`, `FORCES`, or `DAMAGED`.
    cut
        Whether bytes of an unfinished frame follow the last whole one.
    """

    kind: str
    n_atoms: int
    offsets: npt.NDArray[np.int64]
    times: npt.NDArray[np.float64]
    has: npt.NDArray[np.uint8]
    cut: bool

    @property
    def n_frames(self) -> int:
        """Number of whole frames."""
        return len(self.times)


class _Header(NamedTuple):
    size: int  # bytes of the whole frame
    n_atoms: int
    time: float
    has: int


class _SenselessError(Exception):
    """A header that no program writes."""


class _ShortError(Exception):
    """Too few bytes for a header."""


def sniff(head: bytes) -> str | None:
    """Return ``"XTC"``, ``"TRR"`` or None for the first bytes of a file."""
    magic = int.from_bytes(head[:4], "big") if len(head) >= 4 else 0
    if magic in (XTC_MAGIC, XTC_MAGIC_LARGE):
        return "XTC"
    return "TRR" if magic == TRR_MAGIC else None


def read_index(path: str, kind: str) -> XdrIndex:
    """Walk over the headers of an XTC or TRR file.

    Parameters
    ----------
    path
        The file.
    kind
        ``"XTC"`` or ``"TRR"``.

    Raises
    ------
    TrajectoryError
        If the file is none of its kind, holds no whole frame, or is damaged before its last frame.
    """
    parse = _xtc_header if kind == "XTC" else _trr_header
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return _walk(path, kind, descriptor, parse)
    finally:
        os.close(descriptor)


def _walk(path: str, kind: str, descriptor: int, parse: Callable[[bytes], _Header]) -> XdrIndex:
    end = os.fstat(descriptor).st_size
    offsets, has = [0], bytearray()
    times: list[float] = []
    n_atoms = -1
    at = 0
    while at < end:
        try:
            header = parse(os.pread(descriptor, _HEADER_BYTES, at))
            if n_atoms >= 0 and header.n_atoms != n_atoms:
                raise _SenselessError
        except _ShortError:
            break
        except _SenselessError:
            _refuse_damage(_Place(path, kind, descriptor, at, len(times)), n_atoms)
            break
        if at + header.size > end:
            _refuse_damage(_Place(path, kind, descriptor, at, len(times)), header.n_atoms)
            break
        n_atoms = header.n_atoms
        at += header.size
        offsets.append(at)
        times.append(header.time)
        has.append(header.has)
    if not times:
        raise TrajectoryError(f"{path} holds no whole {kind} frame; it was cut off while its first frame was written")
    return XdrIndex(
        kind,
        n_atoms,
        np.array(offsets, dtype=np.int64),
        np.array(times, dtype=np.float64),
        np.frombuffer(has, dtype=np.uint8),
        cut=at < end,
    )


class _Place(NamedTuple):
    """Where the walk stands."""

    path: str
    kind: str
    descriptor: int
    at: int
    number: int


def _refuse_damage(place: _Place, n_atoms: int) -> None:
    """Raise unless the rest of the file can be the beginning of one frame that was never finished."""
    path, kind, descriptor, at, number = place
    if number == 0 and n_atoms < 0:
        raise TrajectoryError(f"{path} is no {kind} file: it does not begin with the header of a frame")
    if not _frame_follows(descriptor, at + 4, kind, n_atoms):
        return
    raise TrajectoryError(
        f"{path}: frame {number} is damaged (at byte {at}, or the frame before it), and frames follow it; "
        f"copy the file again, or cut it to its first {number} frames with: head -c {at} {path}"
    )


def _frame_follows(descriptor: int, at: int, kind: str, n_atoms: int) -> bool:
    """Whether something that looks like a frame's header lies at or after byte `at`."""
    if kind == "XTC":
        marks = [struct.pack(">ii", magic, n_atoms) for magic in (XTC_MAGIC, XTC_MAGIC_LARGE)]
    else:
        marks = [struct.pack(">iii", TRR_MAGIC, len(_TRR_NAME) + 1, len(_TRR_NAME)) + _TRR_NAME]
    overlap = max(map(len, marks)) - 1
    while chunk := os.pread(descriptor, 1 << 22, at):
        if any(mark in chunk for mark in marks):
            return True
        if len(chunk) <= overlap:
            return False
        at += len(chunk) - overlap
    return False


def _xtc_header(head: bytes) -> _Header:
    if len(head) < 4:
        raise _ShortError
    magic = int.from_bytes(head[:4], "big")
    if magic not in (XTC_MAGIC, XTC_MAGIC_LARGE):
        raise _SenselessError
    if len(head) < 56:
        raise _ShortError
    n_atoms, _, time = struct.unpack_from(">iif", head, 4)
    (n_again,) = struct.unpack_from(">i", head, 52)
    if n_atoms <= 0 or n_again != n_atoms:
        raise _SenselessError
    if n_atoms <= _SMALL_SYSTEM:
        return _Header(56 + 12 * n_atoms, n_atoms, time, POSITIONS)
    width = 4 if magic == XTC_MAGIC else 8
    if len(head) < 88 + width:
        raise _ShortError
    n_bytes = int.from_bytes(head[88 : 88 + width], "big", signed=True)
    if not 0 <= n_bytes <= 4 * (int(3.6 * n_atoms) - 3):  # the decoder's buffer: a larger number would overrun it
        raise _SenselessError
    has = POSITIONS if _decodable(head) else DAMAGED
    return _Header(88 + width + (n_bytes + 3) // 4 * 4, n_atoms, time, has)


def _decodable(head: bytes) -> bool:
    """Whether an XTC frame's precision, least and greatest coordinates and first bit size can be a writer's."""
    precision, *ends, bits = struct.unpack_from(">f7i", head, 56)
    ordered = all(least <= greatest for least, greatest in zip(ends[:3], ends[3:], strict=True))
    return precision > 0 and ordered and _LEAST_BITS <= bits <= _GREATEST_BITS


def _trr_header(head: bytes) -> _Header:
    if len(head) < _TRR_SIZES_AT:
        raise _ShortError
    magic, outer, inner = struct.unpack_from(">iii", head)
    if magic != TRR_MAGIC or outer != len(_TRR_NAME) + 1 or inner != len(_TRR_NAME) or head[12:24] != _TRR_NAME:
        raise _SenselessError
    if len(head) < _TRR_SIZES_AT + _TRR_SIZES.size + 16:
        raise _ShortError
    *sizes, n_atoms, _, _ = _TRR_SIZES.unpack_from(head, _TRR_SIZES_AT)
    box, x, v, f = sizes[2], *sizes[7:10]
    real = box // 9 if box else max(x, v, f) // (3 * n_atoms) if n_atoms > 0 else 0
    vectors = 3 * real * n_atoms
    if n_atoms <= 0 or real not in (4, 8) or min(sizes) < 0 or any(size not in (0, vectors) for size in (x, v, f)):
        raise _SenselessError
    (time,) = struct.unpack_from(">f" if real == 4 else ">d", head, _TRR_SIZES_AT + _TRR_SIZES.size)
    header = _TRR_SIZES_AT + _TRR_SIZES.size + 2 * real
    return _Header(header + sum(sizes), n_atoms, time, POSITIONS * (x > 0) | VELOCITIES * (v > 0) | FORCES * (f > 0))
