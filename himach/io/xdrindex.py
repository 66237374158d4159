"""Where the frames of an XTC or TRR file begin and when they were taken, from one walk over the frames' headers.

`read_index()` walks; it decodes no coordinates and stores nothing beside the user's file. A file that ends within its
last frame is reported as cut; a senseless header with frames after it is an error that names frame and byte.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from himach.errors import TrajectoryError
from himach.io.xdrheader import (
    HEADER_BYTES,
    SenselessError,
    ShortError,
    TrrHeader,
    XtcHeader,
    marks,
    parse_trr,
    parse_xtc,
)

__all__ = ["XdrIndex", "read_index"]


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
        uint8 (n_frames,): bits of `himach.io.xdrheader`: `POSITIONS`, `VELOCITIES`, `FORCES`, or `DAMAGED`.
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
    parse = parse_xtc if kind == "XTC" else parse_trr
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return _walk(path, kind, descriptor, parse)
    finally:
        os.close(descriptor)


def _walk(path: str, kind: str, descriptor: int, parse: Callable[[bytes], XtcHeader | TrrHeader]) -> XdrIndex:
    end = os.fstat(descriptor).st_size
    offsets, has = [0], bytearray()
    times: list[float] = []
    n_atoms = -1
    at = 0
    while at < end:
        try:
            header = parse(os.pread(descriptor, HEADER_BYTES, at))
            if n_atoms >= 0 and header.n_atoms != n_atoms:
                raise SenselessError
        except ShortError:
            break
        except SenselessError:
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
    wanted = marks(kind, n_atoms)
    overlap = max(map(len, wanted)) - 1
    while chunk := os.pread(descriptor, 1 << 22, at):
        if any(mark in chunk for mark in wanted):
            return True
        if len(chunk) <= overlap:
            return False
        at += len(chunk) - overlap
    return False
