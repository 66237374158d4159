"""Rereading a store: `verify()` names every frame whose bytes are not what was written, `drop()` drops such frames.

The C library passes over what is damaged; here what an index, or a gap between records, says to be missing is told.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from himach.io.store.bodhi import crc32c, scan_records
from himach.io.store.store import Store, StoreError

_SEGMENT = re.compile(r"[na]-[0-9a-f]{16}\.seg")
_VERSION = 1
_HEADER = 64
_FRAME, _HOLE = 1, 3
_ENTRY = struct.Struct("<QQQBBHI")  # of an index; see docs/formats.md


@dataclass(frozen=True)
class Bad:
    """One thing that is bad, in the file `segment` ("" if the dataset as a whole is meant), of a `frame` or None."""

    dataset: str
    directory: str
    segment: str
    frame: int | None
    native: bool
    reason: str

    def __str__(self) -> str:
        frame = "" if self.frame is None else f" frame {self.frame},"
        segment = f" segment {self.segment}" if self.segment else f" {self.directory}"
        return f"{self.dataset}:{frame}{segment}: {self.reason}"


@dataclass
class Verified:
    """Valid records of frames that were read, copies counted each, and their bytes; and what is bad."""

    frames: int
    nbytes: int
    bad: list[Bad]


def verify(store: Store, progress: Callable[[int], object] = lambda nbytes: None) -> Verified:
    """Read all records of all datasets and check them."""
    found = Verified(0, 0, [])
    for directory in store.directories():
        segments = sorted(path for path in (store.path / directory).iterdir() if _SEGMENT.fullmatch(path.name))
        if not segments:
            continue  # nothing to read, and maybe just being made
        try:
            name = store.open_directory(directory).name
        except StoreError as error:
            found.bad.append(Bad(directory, directory, "", None, False, str(error)))
            name = directory
        wrong: list[tuple[Path, int, int | None, str]] = []
        dropped: set[tuple[int, int]] = set()
        for path in segments:
            sizes, tombstones, damage = _check_segment(path)
            found.frames += len(sizes)
            found.nbytes += sum(sizes)
            progress(sum(sizes))
            dropped.update(tombstones)
            wrong += [(path, *item) for item in damage]
        for path, offset, frame, reason in wrong:
            if (_id(path), offset) not in dropped:  # a dropped record is nobody's loss
                found.bad.append(Bad(name, directory, path.name, frame, path.name.startswith("n"), reason))
    return found


def drop(store: Store, bad: Iterable[Bad]) -> int:
    """Drop the frames that are bad, in the kind in which they are; return how many were there."""
    numbers: dict[tuple[str, bool], set[int]] = {}
    for item in bad:
        if item.frame is not None:
            numbers.setdefault((item.directory, item.native), set()).add(item.frame)
    return sum(
        store.open_directory(directory).drop(np.array(sorted(frames), dtype=np.int64), native=native)
        for (directory, native), frames in numbers.items()
    )


def _id(path: Path) -> int:
    return int(path.name[2:18], 16)


def _check_segment(path: Path) -> tuple[list[int], list[tuple[int, int]], list[tuple[int, int | None, str]]]:
    """Return sizes of sound frames, what tombstones drop (segment, offset), and damage (offset, frame, reason)."""
    frames, known = _read_index(path.with_suffix(".idx"), _id(path))  # first: later appends do not matter
    dataset, generation = (int(part, 16) for part in path.parent.name.split("-"))
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            refusal = _refusal(os.pread(file.fileno(), _HEADER, 0), (_id(path), dataset, generation))
            if refusal is not None:
                return [], [], [(0, None, refusal)]
            records = scan_records(file.fileno(), dataset, generation, _id(path), size)
    except FileNotFoundError:  # evicted meanwhile
        return [], [], []
    except OSError as error:
        return [], [], [(0, None, f"it cannot be read: {error.strerror}")]
    damage: list[tuple[int, int | None, str]] = []
    for offset, length, _ in records:
        known[offset] = length
        frames.pop(offset, None)
    for offset, (number, length) in frames.items():
        cut = offset + length > size
        damage.append((offset, number, f"the segment is cut off at byte {size}" if cut else "its record is damaged"))
    at = _HEADER
    for offset in sorted(known):
        if offset > at:
            damage.append((at, None, f"{offset - at} bytes without a valid record"))
        at = max(at, offset + known[offset])
    sizes = [length for _, length, target in records if target is None]
    return sizes, [target for _, _, target in records if target is not None], damage


def _refusal(head: bytes, key: tuple[int, int, int]) -> str | None:
    """Return why a segment is not used at all; a damaged header of the segment does no harm."""
    if len(head) < _HEADER or crc32c(head[16:], crc32c(bytes(4), crc32c(head[:12]))) != int.from_bytes(
        head[12:16], "little"
    ):
        return None
    (version,) = struct.unpack_from("<H", head, 4)
    if version != _VERSION:
        return f"the segment is of format version {version}, not {_VERSION}; it is left alone"
    if struct.unpack_from("<QQQ", head, 16) != key:
        return "the segment belongs to another dataset; it is left alone"
    return None


def _read_index(path: Path, segment: int) -> tuple[dict[int, tuple[int, int]], dict[int, int]]:
    """Return number and length of its frames, and the length of all that it tells of, by offset."""
    try:
        data = path.read_bytes()
    except OSError:
        data = b""
    seed = crc32c(segment.to_bytes(8, "little"))
    frames: dict[int, tuple[int, int]] = {}
    known: dict[int, int] = {}
    for at in range(_HEADER, len(data) - _ENTRY.size + 1, _ENTRY.size):
        number, offset, length, kind, _, _, crc = _ENTRY.unpack_from(data, at)
        if crc32c(data[at : at + 28], seed) == crc and length > 0 and kind in (_FRAME, _HOLE):
            known[offset] = length
            if kind == _FRAME:
                frames[offset] = (number, length)
    return frames, known
