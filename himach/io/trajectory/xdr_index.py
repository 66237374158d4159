"""Where the frames of an XTC or TRR file begin and when they were taken, from one walk over the frames' headers.

`read_index()` walks; it decodes no coordinates and stores nothing beside the user's file. A file that ends within its
last frame is reported as cut; a senseless header with frames after it is an error that names frame and byte.
`encode()` and `decode()` are for a store, which keeps indexes beside frames, so that the next run need not walk.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.errors import NoFrameError, TrajectoryError
from himach.io.trajectory.xdr_header import (
    HEADER_BYTES,
    SenselessError,
    ShortError,
    TrrHeader,
    XtcHeader,
    marks,
    parse_trr,
    parse_xtc,
)

VERSION = 2


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
        uint8 (n_frames,): bits of `himach.io.trajectory.xdr_header`: `POSITIONS`, `VELOCITIES`, `FORCES`, or `DAMAGED`.
    cut
        Whether bytes of an unfinished frame follow the last whole one.
    size, changed
        Size of the file when the walk began, and when its inode had changed last (ns): tools that copy set the time
        of modification as they like.
    """

    kind: str
    n_atoms: int
    offsets: npt.NDArray[np.int64]
    times: npt.NDArray[np.float64]
    has: npt.NDArray[np.uint8]
    cut: bool
    size: int
    changed: int

    def is_of(self, path: str) -> bool:
        """Tell whether the file is there and has not changed since, by its size and time."""
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return False
        return (status.st_size, status.st_ctime_ns) == (self.size, self.changed)

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


def encode(indexes: Mapping[str, XdrIndex]) -> bytes:
    """Return indexes, by the paths of their files, as bytes."""
    facts = [[path, one.kind, one.n_atoms, one.cut, one.size, one.changed] for path, one in indexes.items()]
    arrays: dict[str, npt.NDArray[Any]] = {
        "facts": np.frombuffer(json.dumps([VERSION, facts]).encode(), dtype=np.uint8)
    }
    for number, index in enumerate(indexes.values()):
        arrays |= {f"offsets{number}": index.offsets, f"times{number}": index.times, f"has{number}": index.has}
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    return content.getvalue()


def decode(content: bytes | None) -> dict[str, XdrIndex]:
    """Return the indexes that `encode` encoded; none if they are missing, damaged or of another version."""
    found: dict[str, XdrIndex] = {}
    try:
        with np.load(io.BytesIO(content or b""), allow_pickle=False) as arrays:
            version, facts = json.loads(arrays["facts"].tobytes())
            if version != VERSION:
                return {}
            for number, (path, kind, n_atoms, cut, size, changed) in enumerate(facts):
                offsets, times, has = (arrays[f"{name}{number}"] for name in ("offsets", "times", "has"))
                found[path] = XdrIndex(kind, n_atoms, offsets, times, has, cut, size, changed)
    except (ValueError, TypeError, KeyError, EOFError, OSError, zipfile.BadZipFile):
        return {}
    return found


def _walk(path: str, kind: str, descriptor: int, parse: Callable[[bytes], XtcHeader | TrrHeader]) -> XdrIndex:
    status = os.fstat(descriptor)
    end = status.st_size
    offsets, has = [0], bytearray()
    times: list[float] = []
    n_atoms = 0
    at = 0
    while at < end:
        try:
            header = parse(os.pread(descriptor, HEADER_BYTES, at))
        except (SenselessError, ShortError) as error:
            if not times and isinstance(error, SenselessError):
                raise TrajectoryError(f"{path} is no {kind} file: it does not begin with a frame's header") from None
            break
        n_atoms = n_atoms or header.n_atoms
        if header.n_atoms != n_atoms or at + header.size > end:
            break
        at += header.size
        offsets.append(at)
        times.append(header.time)
        has.append(header.has)
    # A frame with a damaged size may swallow the next ones, so the last whole one is looked into as well.
    found = _find_frame(descriptor, offsets[-2:][0] + 4, at, marks(kind, n_atoms))
    if found is not None:
        number, begin = (len(times), at) if found > at else (len(times) - 1, offsets[-2])
        raise TrajectoryError(
            f"{path}: frame {number} is damaged (at byte {begin}), and frames follow it; "
            f"copy the file again, or cut it to its first {number} frames with: head -c {begin} {path}"
        )
    if not times:
        raise NoFrameError(f"{path} holds no whole {kind} frame; it was cut off while its first frame was written")
    return XdrIndex(
        kind,
        n_atoms,
        np.array(offsets, dtype=np.int64),
        np.array(times, dtype=np.float64),
        np.frombuffer(has, dtype=np.uint8),
        cut=at < end,
        size=end,
        changed=status.st_ctime_ns,
    )


def _find_frame(descriptor: int, begin: int, but: int, wanted: list[bytes]) -> int | None:
    """Return the first byte, from `begin` on, at which a frame seems to begin, not counting the one at byte `but`."""
    overlap = max(map(len, wanted)) - 1
    while len(chunk := os.pread(descriptor, 1 << 22, begin)) > overlap:
        for mark in wanted:
            place = chunk.find(mark)
            if begin + place == but:
                place = chunk.find(mark, place + 1)
            if place >= 0:
                return begin + place
        begin += len(chunk) - overlap
    return None
