"""Verification of a store: `verify()` finds every frame whose bytes were altered, `drop()` drops such frames.

The C library skips damaged records; this module reads every record and reports defects. See docs/formats.md.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from himach.io.store.bodhi import crc32c, unpack
from himach.io.store.store import Store, StoreError

VERSION = 1
UNIT = 64
FRAME, TOMBSTONE, HOLE = 1, 2, 3
RAW, PACKED = 0, 1
POSITIONS, IDS = 1, 8
MAX_PACKED_ATOMS = 1 << 16  # per block
RECORD_HEAD = 112
TOMBSTONE_BYTES = 128
MAX_HEADER = 1 << 24
ENTRY = struct.Struct("<QQQBBHI")
READ_AT_ONCE = 1 << 22
_SEGMENT = re.compile(r"([na])-([0-9a-f]{16})\.seg")


@dataclass(frozen=True)
class Bad:
    """A defect in the file `segment` ("" for the whole dataset), of a `frame` or None."""

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
    """Number and bytes of valid frame records, each copy counted, and the defects."""

    frames: int
    nbytes: int
    bad: list[Bad]


def verify(store: Store, progress: Callable[[int], object] = lambda nbytes: None) -> Verified:
    """Read all records of all datasets and check them."""
    verified = Verified(0, 0, [])
    for directory in store.directories():
        segments = sorted(path for path in (store.path / directory).iterdir() if _SEGMENT.fullmatch(path.name))
        if not segments:
            continue  # nothing to read; perhaps still being created
        try:
            name = store.open_directory(directory).name
        except StoreError as error:
            verified.bad.append(Bad(directory, directory, "", None, False, str(error)))
            name = directory
        damages: list[tuple[Path, Damage]] = []
        dropped: set[Tombstone] = set()
        for path in segments:
            for item in _check_segment(path, directory):
                if isinstance(item, Damage):
                    damages.append((path, item))
                elif isinstance(item, Tombstone):
                    dropped.add(item)
                else:
                    verified.frames += 1
                    verified.nbytes += item
                    progress(item)
        for path, item in damages:
            # Damage in a dropped record loses nothing.
            if Tombstone(_segment_id(path), item.offset) not in dropped:
                verified.bad.append(Bad(name, directory, path.name, item.frame, path.name.startswith("n"), item.reason))
    return verified


def drop(store: Store, bad: Iterable[Bad]) -> int:
    """Drop bad frames, each as native or alien as it was found; return how many existed."""
    numbers: dict[tuple[str, bool], set[int]] = {}
    for item in bad:
        if item.frame is not None:
            numbers.setdefault((item.directory, item.native), set()).add(item.frame)
    return sum(
        store.open_directory(directory).drop(np.array(sorted(frames), dtype=np.int64), native=native)
        for (directory, native), frames in numbers.items()
    )


def _segment_id(path: Path) -> int:
    return int(path.name[2:18], 16)


@dataclass(frozen=True)
class Key:
    """Values that mark a record as part of a segment: hashes of name and generation, and the segment's id."""

    dataset: int
    generation: int
    segment: int


@dataclass(frozen=True)
class Damage:
    """A defect in a segment: offset of the record, its frame (None if unknown), and the reason."""

    offset: int
    frame: int | None
    reason: str


@dataclass(frozen=True)
class Tombstone:
    """A record that a tombstone drops."""

    segment: int
    offset: int


class _Refused(Exception):  # noqa: N818 - a verdict, the reason of a `Damage`
    """Why a record is not valid."""


def _check_segment(path: Path, directory: str) -> Iterator[Damage | Tombstone | int]:
    """Read a whole segment; yield defects, dropped records, and the bytes of each valid frame's record.

    An invalid end that the index does not list is no defect: a writer was or is at work there. Of a segment that was
    evicted nothing more is yielded.
    """
    dataset, generation = (int(part, 16) for part in directory.split("-"))
    key = Key(dataset, generation, _segment_id(path))
    index = _Index.read(path.with_suffix(".idx"), key.segment)  # read first: records appended later do not matter
    try:
        with open(path, "rb", buffering=0) as file:
            refusal = _find_refusal(file, key)
            if refusal is None:
                yield from _walk(_Window(file), key, index)
            else:
                yield Damage(0, None, refusal)
    except FileNotFoundError:
        return
    except OSError as error:
        yield Damage(0, None, f"it cannot be read: {error.strerror}")


def _walk(window: _Window, key: Key, index: _Index) -> Iterator[Damage | Tombstone | int]:
    offset = UNIT
    while offset < window.size:
        entry = index.frames.get(offset)
        try:
            target, length = _check_record(window, offset, key)
        except (_Refused, OSError) as error:
            reason = str(error) if isinstance(error, _Refused) else f"the disk says: {error.strerror}"
            if entry is not None:
                yield Damage(offset, entry[0], reason)
                offset += entry[1]
                continue
            following = _find_next(window, offset, key, index)
            if following is None:
                break
            if not index.is_hole(offset):
                yield Damage(offset, None, f"{following - offset} bytes without a valid record")
            offset = following
        else:
            yield length if target is None else target
            offset += length
    for start, (number, _) in index.frames.items():
        if start >= window.size:
            yield Damage(start, number, f"the segment is cut off at byte {window.size}")


def _find_next(window: _Window, position: int, key: Key, index: _Index) -> int | None:
    """Return the start of the next record that is valid or in the index; None if there is none."""
    following = min((offset for offset in index.frames if offset > position), default=window.size)
    for place in range(position + UNIT, min(following, window.size), UNIT):
        try:
            if window.take(place, 4) == b"BdhR":
                _check_record(window, place, key)
                return place
        except (_Refused, OSError):
            continue
    return following if following < window.size else None


def _check_record(window: _Window, position: int, key: Key) -> tuple[Tombstone | None, int]:
    """Check the record at `position`; return the record that it drops, if it drops one, and its length."""
    head = window.take(position, RECORD_HEAD)
    magic, version, kind, size, crc = struct.unpack_from("<4sHHII", head)
    if magic != b"BdhR" or not RECORD_HEAD <= size <= MAX_HEADER:
        raise _Refused("its header is damaged")
    head = window.take(position, size)
    if crc32c(head[16:], crc32c(bytes(4), crc32c(head[:12]))) != crc:
        raise _Refused("its header is damaged (checksum)")
    if version != VERSION:
        raise _Refused(f"it is of format version {version}, not {VERSION}")
    dataset, generation, segment, offset, payload = struct.unpack_from("<QQQQQ", head, 32)
    if (dataset, generation, segment, offset) != (key.dataset, key.generation, key.segment, position):
        raise _Refused("it belongs elsewhere: a stale or misplaced write")
    if kind == TOMBSTONE:
        return Tombstone(*struct.unpack_from("<QQ", head, 112)), TOMBSTONE_BYTES
    if kind != FRAME:
        raise _Refused(f"it is of the unknown type {kind}")
    blocks = _Blocks.read(head)
    blocks_start = position + _round_up(RECORD_HEAD + 8 * blocks.n)
    _check_blocks(window, blocks_start, head, blocks)
    return None, blocks_start - position + _round_up(payload)


@dataclass(frozen=True)
class _Blocks:
    """Block layout of a record; the blocks of each field are consecutive."""

    n: int
    n_atoms: int
    block_atoms: int
    fields: int
    encoding: int

    @classmethod
    def read(cls, head: bytes) -> _Blocks:
        n_atoms, block_atoms, _, fields, encoding = struct.unpack_from("<IIBBB", head, 72)
        (n,) = struct.unpack_from("<I", head, 108)
        if block_atoms == 0 or n != fields.bit_count() * -(-n_atoms // block_atoms):
            raise _Refused("its blocks are not as many as its atoms take")
        return cls(n, n_atoms, block_atoms, fields, encoding)

    def atoms(self, block: int) -> int:
        """Return the number of atoms of a block."""
        within = block % (self.n // self.fields.bit_count())
        return min(self.block_atoms, self.n_atoms - within * self.block_atoms)

    def is_packed(self, block: int) -> bool:
        """Tell whether a block has packed positions; such blocks come first."""
        n_of_positions = self.n // self.fields.bit_count() if self.fields & POSITIONS else 0
        return self.encoding == PACKED and block < n_of_positions

    def is_ids(self, block: int) -> bool:
        """Tell whether a block is for a slice's ids; such blocks come last, and the first has all ids."""
        return bool(self.fields & IDS) and block >= self.n - self.n // self.fields.bit_count()


def _check_blocks(window: _Window, start: int, head: bytes, blocks: _Blocks) -> None:
    """Check the blocks as a reader does: their checksums, and that they fit the encoding."""
    position = start
    for block in range(blocks.n):
        size, crc = struct.unpack_from("<II", head, RECORD_HEAD + 8 * block)
        data = window.take(position, size)
        name = f"block {block + 1} of {blocks.n}"
        if crc32c(data) != crc:
            raise _Refused(f"{name} is damaged (checksum)")
        if blocks.is_packed(block):
            if not _can_unpack(data, blocks.atoms(block)):
                raise _Refused(f"{name} is damaged: its checksum is right, but it cannot be unpacked")
        elif blocks.is_ids(block):
            first = block == blocks.n - blocks.n // blocks.fields.bit_count()
            if first != (size > 0):
                raise _Refused(f"{name} is damaged: it has {size} bytes that tell its atoms")
        elif blocks.encoding in (RAW, PACKED) and size != 12 * blocks.atoms(block):
            raise _Refused(f"{name} is damaged: it has {size} bytes for {blocks.atoms(block)} atoms")
        position += size


def _can_unpack(data: bytes, n_atoms: int) -> bool:
    return n_atoms <= MAX_PACKED_ATOMS and unpack(data, np.empty((n_atoms, 3), dtype=np.float32))


def _round_up(value: int) -> int:
    return -(-value // UNIT) * UNIT


def _find_refusal(file: BinaryIO, key: Key) -> str | None:
    """Return why readers ignore a whole segment, else None; a damaged segment header is harmless."""
    head = file.read(UNIT)
    if len(head) < UNIT or crc32c(head[16:], crc32c(bytes(4), crc32c(head[:12]))) != int.from_bytes(
        head[12:16], "little"
    ):
        return None
    (version,) = struct.unpack_from("<H", head, 4)
    if version != VERSION:
        return f"the segment is of format version {version}, not {VERSION}; it is left alone"
    if struct.unpack_from("<QQQ", head, 16) != (key.segment, key.dataset, key.generation):
        return "the segment belongs to another dataset; it is left alone"
    return None


class _Window:
    """Reads a file in large pieces."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._start = 0
        self._bytes = b""
        self.size = os.fstat(file.fileno()).st_size

    def take(self, start: int, size: int) -> bytes:
        """Return `size` bytes from `start` on; raise _Refused if the file ends before."""
        if start + size > self.size:
            raise _Refused("it is cut off")
        within = start - self._start
        if within < 0 or within + size > len(self._bytes):
            self._bytes, self._start, within = b"", start, 0
            while len(self._bytes) < size:  # the kernel returns the bytes before a bad sector, then an error
                n_read = len(self._bytes)
                piece = os.pread(self._file.fileno(), max(size, READ_AT_ONCE) - n_read, start + n_read)
                if not piece:
                    raise _Refused("it is cut off")
                self._bytes += piece
        return self._bytes[within : within + size]


@dataclass(frozen=True)
class _Index:
    """Entries of an index: `frames` (number, length) by offset in the segment, `holes` (start, stop)."""

    frames: dict[int, tuple[int, int]]
    holes: list[tuple[int, int]]

    @classmethod
    def read(cls, path: Path, segment: int) -> _Index:
        """Read the valid entries; a damaged or missing index has none."""
        try:
            data = path.read_bytes()
        except OSError:
            data = b""
        seed = crc32c(segment.to_bytes(8, "little"))
        frames, holes = {}, []
        for position in range(UNIT, len(data) - ENTRY.size + 1, ENTRY.size):
            number, offset, length, kind, _, _, crc = ENTRY.unpack_from(data, position)
            if crc32c(data[position : position + 28], seed) != crc:
                continue
            if kind == FRAME and length > 0:
                frames[offset] = (number, length)
            elif kind == HOLE:
                holes.append((offset, offset + length))
        return cls(frames, holes)

    def is_hole(self, position: int) -> bool:
        """Tell whether the index lists a hole at `position`."""
        return any(start <= position < stop for start, stop in self.holes)
