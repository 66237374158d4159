"""Index of an XTC or TRR file: `XdrIndex`, offsets, times and fields of frames; `read_index()` walks over headers.

A walk decodes no coordinates. Ranks walk over parts of a long file (`himach.io.datasets.opening.walk_together`). In a
part that starts in the middle of a file, a walk searches for a frame's first bytes that begin a chain of headers, each
at the end of the frame before. Coordinates may look like that, too, so parts make an index only if each ends where the
next one begins: the result then equals that of one walk from the first byte. A file that ends within its last frame is
reported as cut; an invalid header with frames after it is an error that names frame and byte.

The columns are in memory, or mapped from a file of the node's store: `pack_indexes()`, `pack_times()`, and their
inverses. Both files are an `.npy` file, which `numpy.load` maps, with a JSON text and a checksum of all behind
the array.
"""

import contextlib
import io
import json
import os
import re
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from himach.errors import HimachError, TrajectoryError
from himach.io.frame_source import Numbers
from himach.io.trajectories.timeline import Times
from himach.io.trajectories.urls.byte_file import ByteFile, read_status
from himach.io.trajectories.urls.url_names import absolute
from himach.io.trajectories.xdr_header import (
    HEADER_BYTES,
    BadHeaderError,
    ShortError,
    TrrHeader,
    XtcHeader,
    marks,
    parse_trr,
    parse_xtc,
    sniff,
)

#: A row per frame: its offset in the file, its time (ps), and its fields, bits of `himach.io.trajectories.xdr_header`.
COLUMNS = np.dtype([("offset", "<i8"), ("time", "<f8"), ("fields", "<i8")])
Columns = npt.NDArray[np.void]


@dataclass
class XdrIndex:
    """Index of the frames of an XTC or TRR file."""

    path: str
    kind: str  # ``"XTC"`` or ``"TRR"``
    n_atoms: int  # per frame
    columns: Columns  # `COLUMNS` (n_frames + 1,): a row per frame, and one with the end of the last frame as its offset
    size: int
    changed: int

    def __post_init__(self) -> None:
        self.n_frames = len(self.columns) - 1

    def is_current(self) -> bool:
        """Return whether the file exists and is unchanged, by its size and time."""
        try:
            status = read_status(self.path)
        except FileNotFoundError:
            return False
        return (status.size, status.changed) == (self.size, self.changed)

    @property
    def facts(self) -> tuple[object, ...]:
        """All but the columns; equal for indexes of the same content of a file."""
        return self.path, self.kind, self.n_atoms, self.n_frames, self.size, self.changed

    @property
    def cut(self) -> bool:
        """Whether bytes of an incomplete frame follow the last whole one."""
        return bool(self.columns["offset"][-1] < self.size)

    def place(self, number: int) -> tuple[int, int]:
        """Return the offsets of a frame's start and end."""
        offsets = self.columns["offset"]
        return int(offsets[number]), int(offsets[number + 1])

    def time(self, number: int) -> float:
        """Return a frame's time, ps."""
        return float(self.columns["time"][number])

    def fields(self, number: int) -> int:
        """Return a frame's fields, bits of `himach.io.trajectories.xdr_header`."""
        return int(self.columns["fields"][number])

    @property
    def times(self) -> Times:
        """Times of all frames, float64 (n,), ps."""
        return self.columns["time"][: self.n_frames]

    def sizes(self, numbers: Numbers) -> Numbers:
        """Return the sizes of frames in bytes, int64 (n,)."""
        offsets = self.columns["offset"]
        sizes: Numbers = offsets[np.asarray(numbers, dtype=np.int64) + 1] - offsets[numbers]
        return sizes


VERSION = 9
#: Files up to this size are read, not mapped: a mapping keeps a descriptor.
SMALL_BYTES = 1 << 20

Array = npt.NDArray[Any]
Parts = list[bytes | memoryview]
#: Path of a file, or its bytes.
Content = str | bytes


def pack_indexes(indexes: Mapping[str, XdrIndex]) -> Parts:
    """Return indexes, by the paths of their files, as bytes to write one after the other."""
    columns = [index.columns[: index.n_frames + 1] for index in indexes.values()]
    return _pack(columns, COLUMNS, [index.facts for index in indexes.values()])


def are_packed(content: Content | None, indexes: Mapping[str, XdrIndex]) -> bool:
    """Return whether content has these indexes, judged by its facts."""
    unpacked = _unpack(content, COLUMNS)
    return unpacked is not None and unpacked[1] == [[*index.facts] for index in indexes.values()]


def load_indexes(content: Content | None) -> dict[str, XdrIndex]:
    """Return the packed indexes by path; none if they are missing, damaged or of another version."""
    unpacked = _unpack(content, COLUMNS)
    if unpacked is None:
        return {}
    columns, facts = unpacked
    indexes: dict[str, XdrIndex] = {}
    row = 0
    for path, kind, n_atoms, n_frames, size, changed in facts:
        rows = columns[row : row + n_frames + 1]
        indexes[path] = XdrIndex(path, kind, n_atoms, rows, size, changed)
        row += len(rows)
    return indexes


def pack_times(times: Times) -> bytes:
    """Return times as bytes to write."""
    return b"".join(_pack([times], np.dtype("<f8"), []))


def load_times(content: bytes | None, n_frames: int) -> Times | None:
    """Return the packed times of `n_frames` frames; None if they are missing or damaged."""
    unpacked = _unpack(content, np.dtype("<f8"))
    return unpacked[0] if unpacked is not None and len(unpacked[0]) == n_frames else None


def _pack(arrays: Sequence[Array], dtype: np.dtype[Any], facts: Sequence[Any]) -> Parts:
    head, shape = io.BytesIO(), (sum(map(len, arrays)),)
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(head, {"descr": descr, "fortran_order": False, "shape": shape})
    rows = [np.ascontiguousarray(array, dtype).view(np.uint8).data for array in arrays]
    parts: Parts = [head.getvalue(), *rows, json.dumps([VERSION, facts]).encode()]
    return [*parts, struct.pack("<I", reduce(lambda checksum, part: crc32(part, checksum), parts, 0))]


def _unpack(content: Content | None, dtype: np.dtype[Any]) -> tuple[Array, list[Any]] | None:
    """Return the array, mapped if it is large, and the facts; None if they are missing or damaged."""
    try:
        if not isinstance(content, str):
            memory = np.frombuffer(content or b"", np.uint8)
        elif os.path.getsize(content) > SMALL_BYTES:
            memory = np.memmap(content, np.uint8, "r").view(np.ndarray)
        else:
            memory = np.fromfile(content, np.uint8)
        head = io.BytesIO(memory[:4096].tobytes())
        np.lib.format.read_magic(head)
        (n_rows,), _, file_dtype = np.lib.format.read_array_header_1_0(head)
        start, stop = head.tell(), head.tell() + n_rows * dtype.itemsize
        version, facts = json.loads(memory[stop:-4].tobytes())
        if (version, file_dtype, crc32(memory[:-4])) != (VERSION, dtype, struct.unpack("<I", memory[-4:])[0]):
            return None
        return memory[start:stop].view(dtype), facts
    except Exception:  # numpy raises errors of many kinds for a damaged header
        return None


#: Length of the chain of headers that proves a frame's start.
CHAINED_HEADERS = 16
#: Headers of an index to check before frames are added to it.
SAMPLED_HEADERS = 64
#: Minimum bytes of a part that a rank walks over.
PART_BYTES = 16 << 20
_CHUNK = 1 << 22

Parse = Callable[[bytes], XtcHeader | TrrHeader]


class LongFile(NamedTuple):
    """A file that ranks walk over by parts: its kind, XTC or TRR, size in bytes, and time of change."""

    path: str
    kind: str
    size: int
    changed: int


#: Atoms per frame, and the frames of a walk: rows as in `XdrIndex.columns`.
Walked = tuple[int, Columns]


def _parser(kind: str) -> Parse:
    return parse_xtc if kind == "XTC" else parse_trr


def read_index(path: str, kind: str) -> XdrIndex:
    """Walk over the headers of an XTC or TRR file."""
    with ByteFile(path) as file:
        size, _, changed = file.status
        try:
            _parser(kind)(file.pread(HEADER_BYTES, 0))
        except BadHeaderError:
            raise TrajectoryError(f"{path} is no {kind} file: it does not begin with a frame's header") from None
        except ShortError:
            pass
        index = XdrIndex(path, kind, *_walk(file, kind, 0, 0, size, size), size, changed)
        _refuse_damage(index, file)
    if not index.n_frames:
        raise TrajectoryError(f"{path} holds no whole {kind} frame; it was cut off while its first frame was written")
    return index


def long_files(paths: Iterable[str | os.PathLike[str]], indexes: Mapping[str, XdrIndex]) -> Iterator[LongFile]:
    """Yield the XTC and TRR files of which at least two parts are in no index."""
    for name in paths:
        path = absolute(name)
        with contextlib.suppress(OSError):  # opening the file later reports the error
            status = read_status(path)
            new_bytes = status.size - (indexes[path].size if path in indexes else 0)
            if os.path.isdir(path) or new_bytes < 2 * PART_BYTES:
                continue
            with ByteFile(path) as file:
                kind = sniff(file.pread(4, 0))
            if kind is not None:
                yield LongFile(path, kind, status.size, status.changed)


def walk_part(file: LongFile, part: int, n_parts: int) -> Walked | None:
    """Walk over the frames that begin in part number `part` of `n_parts`; return None if it is none or unreadable."""
    path, kind, size, _ = file
    if part >= n_parts:
        return None
    start, until = (size * bound // n_parts // 4 * 4 if bound < n_parts else size for bound in (part, part + 1))
    with contextlib.suppress(OSError), ByteFile(path) as content:  # the walk over the whole file reports the error
        try:
            first = _parser(kind)(content.pread(HEADER_BYTES, 0))
        except (BadHeaderError, ShortError):
            return _walk(content, kind, 0, until, until, size)
        chunk_bytes = _CHUNK if content.mirror is None else min(_CHUNK, first.size)
        places = _find_marks(content, start, until, marks(kind, first.n_atoms), chunk_bytes)
        chains = (at for at in places if at % 4 == 0 and _is_chain(content, _parser(kind), first.n_atoms, at, size))
        return _walk(content, kind, first.n_atoms, next(chains, until) if part else 0, until, size)
    return None


def join_parts(file: LongFile, parts: Sequence[Walked | None]) -> XdrIndex | None:
    """Return the index of joined parts; None if they do not fit together, or one could not be read."""
    path, kind, size, changed = file
    filled = [part for part in parts if part is not None and len(part[1]) > 1]
    if any(part is None for part in parts) or len({n_atoms for n_atoms, _ in filled}) != 1:
        return None
    bounds = [0, *(int(columns["offset"][end]) for _, columns in filled for end in (0, -1))]
    if any(stop != start for stop, start in zip(bounds[::2], bounds[1::2], strict=False)):
        return None
    columns = np.concatenate([*(columns[:-1] for _, columns in filled), filled[-1][1][-1:]])
    index = XdrIndex(path, kind, filled[0][0], columns, size, changed)
    try:
        with ByteFile(path) as content:
            _refuse_damage(index, content)
    except TrajectoryError:
        return None
    return index


def extend_index(index: XdrIndex) -> XdrIndex | None:
    """Return the index of a file that has grown since `index` was made; None if all must be walked."""
    try:
        with ByteFile(index.path) as file:
            size, _, changed = file.status
            if size <= index.size or not _fits(index, file):
                return None
            last = index.n_frames - 1
            _, new_columns = _walk(file, index.kind, index.n_atoms, index.place(last)[0], size, size)
            columns = np.concatenate([index.columns[:last], new_columns])
            grown = replace(index, columns=columns, size=size, changed=changed)
            _refuse_damage(grown, file)
    except (HimachError, ValueError):
        return None
    return grown if grown.n_frames > last else None


def _fits(index: XdrIndex, file: ByteFile) -> bool:
    """Return whether a sample of an index's frames agrees with the file."""
    parse = _parser(index.kind)
    samples = {index.n_frames - 1, *(index.n_frames * sample // SAMPLED_HEADERS for sample in range(SAMPLED_HEADERS))}
    for number in sorted(samples):
        start, stop = index.place(number)
        try:
            header = parse(file.pread(HEADER_BYTES, start))
        except (BadHeaderError, ShortError):
            return False
        same = struct.pack("<d", header.time) == struct.pack("<d", index.time(number))
        if (header.n_atoms, header.size) != (index.n_atoms, stop - start) or not same:
            return False
    return True


def _walk(file: ByteFile, kind: str, n_atoms: int, start: int, until: int, size: int) -> Walked:
    """Walk over the whole frames that begin from `start` on and before `until`."""
    parse = _parser(kind)
    offsets, times, fields = array("q"), array("d"), array("B")
    at = start
    mirror = file.mirror if file.mirror is not None and file.mirror.reads_most else None
    while at < until:
        try:
            if mirror is not None:  # a remote file that is fetched whole, in its order
                mirror.stream(at, until)
            header = parse(file.pread(HEADER_BYTES, at))
        except (BadHeaderError, ShortError):
            break
        n_atoms = n_atoms or header.n_atoms
        if header.n_atoms != n_atoms or at + header.size > size:
            break
        offsets.append(at)
        times.append(header.time)
        fields.append(header.fields)
        at += header.size
    columns = np.zeros(len(times) + 1, COLUMNS)
    columns["offset"][:-1], columns["offset"][-1] = offsets, at
    columns["time"][:-1], columns["fields"][:-1] = times, fields
    return n_atoms, columns


def _refuse_damage(index: XdrIndex, file: ByteFile) -> None:
    """Check that no frames follow the last whole one, or lie within it: a damaged size may cover other frames."""
    last, end = (int(offset) for offset in index.columns["offset"][[max(0, index.n_frames - 1), -1]])
    places = _find_marks(file, last + 4, index.size, marks(index.kind, index.n_atoms))
    mark_at = next((place for place in places if place != end), None)
    if mark_at is None:
        return
    number, start = (index.n_frames, end) if mark_at > end else (index.n_frames - 1, last)
    raise TrajectoryError(
        f"{index.path}: frame {number} is damaged (at byte {start}), and frames follow it; "
        f"copy the file again, or cut it to its first {number} frames with: head -c {start} {index.path}"
    )


def _find_marks(
    file: ByteFile, start: int, stop: int, patterns: list[bytes], chunk_bytes: int = _CHUNK
) -> Iterator[int]:
    """Yield the offsets from `start` on, before `stop`, with the first bytes of a frame."""
    pattern = re.compile(b"|".join(map(re.escape, patterns)))
    overlap = max(map(len, patterns)) - 1
    while len(chunk := file.pread(min(chunk_bytes, stop - start) + overlap, start)) > overlap:
        match = pattern.search(chunk)
        while match is not None:
            yield start + match.start()
            match = pattern.search(chunk, match.start() + 1)
        start += len(chunk) - overlap


def _is_chain(file: ByteFile, parse: Parse, n_atoms: int, at: int, size: int) -> bool:
    for _ in range(CHAINED_HEADERS):
        try:
            header = parse(file.pread(HEADER_BYTES, at))
        except ShortError:
            return True  # of an incomplete frame
        except BadHeaderError:
            return False
        at += header.size
        if header.n_atoms != n_atoms:
            return False
        if at >= size:
            return True
    return True
