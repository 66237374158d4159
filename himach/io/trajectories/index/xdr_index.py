"""Index of an XTC or TRR file: `XdrIndex` has offsets, times and fields of the frames.

The columns are in memory, or mapped from a file of the node's store:
`pack_indexes()`, `pack_times()`, and their inverses. Both files are an `.npy` file, which `numpy.load` maps, with a
JSON text about its rows behind the array.
"""

from __future__ import annotations

import io
import json
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from himach.io.frame_source import Numbers
from himach.io.trajectories.index.timeline import Times
from himach.io.trajectories.urls.byte_file import read_status
from himach.io.trajectories.xtc import crc32c

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


VERSION = 8
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
    rows = [np.ascontiguousarray(array, dtype) for array in arrays]
    checksum = reduce(lambda crc, array: crc32c(array.view(np.uint8), crc), rows, 0)
    text = json.dumps([VERSION, checksum, facts]).encode()
    return [head.getvalue(), *(array.view(np.uint8).data for array in rows), struct.pack("<I", crc32(text)) + text]


def _unpack(content: Content | None, dtype: np.dtype[Any]) -> tuple[Array, list[Any]] | None:
    """Return the array, mapped if it is large, and the facts; None if they are missing or damaged."""
    try:
        is_mapped = isinstance(content, str) and os.path.getsize(content) > SMALL_BYTES
        with open(content, "rb") if isinstance(content, str) else io.BytesIO(content or b"") as file:
            array = np.load(content if is_mapped else file, mmap_mode="r" if is_mapped else None)  # type: ignore[arg-type]
            if isinstance(array, np.memmap):
                file.seek(array.offset + array.nbytes)
            text = file.read()
        if array.dtype != dtype or struct.unpack("<I", text[:4])[0] != crc32(text[4:]):
            return None
        version, checksum, facts = json.loads(text[4:])
        return (
            (array.view(np.ndarray), facts) if (version, checksum) == (VERSION, crc32c(array.view(np.uint8))) else None
        )
    except Exception:  # numpy raises errors of many kinds for a damaged header
        return None
