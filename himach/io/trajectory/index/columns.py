"""Sizes, times and contents of some frames as few bytes: `pack()`, and `unpack()`, which tells damage.

Frames of a trajectory are nearly alike, and their times lie on a line. So what is kept is the least size, the line, and
how far each frame is off them, in no more bytes than the one that is furthest off needs: none at best, and at most 9 a
frame where times are of single precision. Times come back to the last bit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import numpy.typing as npt

from himach.errors import HimachError

#: Of pieces that are packed together: each can be found and read alone.
PIECE_FRAMES = 4096
UNIT_BYTES = 4  # bytes: sizes of XDR are multiples of it

# CRC-32 of all behind it; frames; number of the first; where it begins; least size; begin and step of the line; least
# of what is off it, of contents; bytes of each size, time and content; bytes of a time's precision.
_HEAD = struct.Struct("<IIqqqddqqBBBB")
_WIDTHS = (0, 1, 2, 4, 8)


class DamagedPieceError(HimachError):
    """What lies there is not what was packed."""


@dataclass(frozen=True)
class Piece:
    """Some frames that follow one another.

    Attributes
    ----------
    first
        Number of the first one in its span.
    offsets
        int64 (n + 1,): first byte of each frame, and the end of the last.
    times
        float64 (n,), ps.
    has
        uint8 (n,): bits of `himach.io.trajectory.xdr_header`.
    """

    first: int
    offsets: npt.NDArray[np.int64]
    times: npt.NDArray[np.float64]
    has: npt.NDArray[np.uint8]


def pack(piece: Piece) -> bytes:
    """Return a piece as bytes."""
    sizes = np.diff(piece.offsets) // UNIT_BYTES
    least = int(sizes.min())
    size_width, size_bytes = _narrow(sizes - least)
    precision, line, time_least, time_width, time_bytes = _lined(piece.times)
    has = piece.has.astype(np.int64)
    has_least = int(has.min())
    has_width, has_bytes = _narrow(has - has_least)
    facts = (len(has), piece.first, int(piece.offsets[0]), least, *line, time_least, has_least)
    head = _HEAD.pack(0, *facts, size_width, time_width, has_width, precision)
    content = head[4:] + size_bytes + time_bytes + has_bytes
    return struct.pack("<I", crc32(content)) + content


def unpack(content: bytes | memoryview) -> Piece:
    """Return what was packed.

    Raises
    ------
    DamagedPieceError
        If it is not all there, or not as it was.
    """
    try:
        checksum, n, first, begin, least, start, step, time_least, has_least, *widths, precision = _HEAD.unpack_from(
            content
        )
        (a, b, c), at = widths, _HEAD.size
        if crc32(content[4:]) != checksum or len(content) != at + n * (a + b + c) or n < 1:
            raise DamagedPieceError("an index of frames is damaged")
        sizes = _wide(content, at, n, a) + least
        times = _off_line(_wide(content, at + n * a, n, b) + time_least, start, step, precision)
        has = (_wide(content, at + n * (a + b), n, c) + has_least).astype(np.uint8)
    except (struct.error, ValueError):
        raise DamagedPieceError("an index of frames is damaged") from None
    offsets = np.empty(n + 1, np.int64)
    offsets[0] = begin
    np.cumsum(sizes * UNIT_BYTES, out=offsets[1:])
    offsets[1:] += begin
    return Piece(first, offsets, times, has)


def _narrow(values: npt.NDArray[np.int64]) -> tuple[int, bytes]:
    """Return the bytes that each of some numbers from 0 on needs, and the numbers in so many bytes."""
    most = int(values.view(np.uint64).max())
    width = next(width for width in _WIDTHS if most < 1 << (8 * width))
    return width, b"" if not width else values.astype(f"<u{width}").tobytes()


def _wide(content: bytes | memoryview, at: int, n: int, width: int) -> npt.NDArray[np.int64]:
    if width not in _WIDTHS:
        raise ValueError(width)
    return np.frombuffer(content, f"<u{width}", n, at).astype(np.int64) if width else np.zeros(n, np.int64)


def _lined(times: npt.NDArray[np.float64]) -> tuple[int, tuple[float, float], int, int, bytes]:
    """Return precision, line, least and width of what is off it, and that, for the line of which least is off."""
    with np.errstate(over="ignore", invalid="ignore"):
        single = times.astype(np.float32)
    same = np.array_equal(single.astype(np.float64).view(np.int64), times.view(np.int64))
    precision = 4 if same else 8
    found = None
    for line in _lines(times):
        off = _ordered(times, precision) - _ordered(_on_line(len(times), *line), precision)
        least = int(off.min())
        width, packed = _narrow(off - least)
        if found is None or width < found[3]:
            found = precision, line, least, width, packed
        if not width:
            break
    assert found is not None
    return found


def _lines(times: npt.NDArray[np.float64]) -> Iterator[tuple[float, float]]:
    """Give lines that the times may have been computed from; they have gone through single precision, maybe."""
    first, last = float(times[0]), float(times[-1])
    step = (last - first) / max(1, len(times) - 1)
    if not np.isfinite([first, step]).all():
        yield 0.0, 0.0
        return
    for digits in (0, 1, 2, 3, 4, 6):
        yield round(first, digits), round(step, digits)
    yield first, step


def _on_line(n: int, start: float, step: float) -> npt.NDArray[np.float64]:
    line: npt.NDArray[np.float64] = start + np.arange(n, dtype=np.float64) * step
    return line


def _ordered(times: npt.NDArray[np.float64], precision: int) -> npt.NDArray[np.int64]:
    """Return numbers that count floats in their order."""
    with np.errstate(over="ignore", invalid="ignore"):
        bits = times.astype(f"<f{precision}").view(f"<i{precision}")
    sign = 8 * precision - 1
    ordered: npt.NDArray[np.int64] = (bits ^ ((bits >> sign) & bits.dtype.type((1 << sign) - 1))).astype(np.int64)
    return ordered


def _off_line(off: npt.NDArray[np.int64], start: float, step: float, precision: int) -> npt.NDArray[np.float64]:
    if precision not in (4, 8):
        raise ValueError(precision)
    ordered = (_ordered(_on_line(len(off), start, step), precision) + off).astype(f"<i{precision}")
    sign = 8 * precision - 1
    bits = ordered ^ ((ordered >> sign) & ordered.dtype.type((1 << sign) - 1))
    times: npt.NDArray[np.float64] = bits.view(f"<f{precision}").astype(np.float64)
    return times
