"""Offsets and times of frames in a store's files: `pack_indexes()`, `pack_times()`, and their inverses.

Both formats are an `.npy` file, which `numpy.load` maps, with a JSON text about its rows behind the array.
"""

from __future__ import annotations

import io
import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from himach.io.trajectory.index.timeline import EvenTimeline, JoinedTimeline, ListedTimeline, Timeline
from himach.io.trajectory.index.xdr_index import COLUMNS, IndexTimeline, XdrIndex
from himach.io.trajectory.xtc import crc32c

VERSION = 6
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
    for path, kind, n_atoms, n_frames, back, cut, size, changed in facts:
        rows = columns[row : row + n_frames + 1]
        indexes[path] = XdrIndex(path, kind, n_atoms, rows, back, cut, size, changed)
        row += len(rows)
    return indexes


def pack_times(times: Timeline) -> bytes:
    """Return times as bytes to write."""
    listed = [part.at(np.arange(n_frames)) for kind, part, n_frames in _kinds(times) if kind == "listed"]
    return b"".join(_pack(listed, np.dtype("<f8"), _describe_times(times)))


def _kinds(times: Timeline) -> list[tuple[str, Timeline, int]]:
    parts = times.parts if isinstance(times, JoinedTimeline) else ((times, len(times)),)
    kinds = {EvenTimeline: "even", IndexTimeline: "index"}
    return [(kinds.get(type(part), "listed"), part, n_frames) for part, n_frames in parts]


def _describe_times(times: Timeline) -> list[list[Any]]:
    facts: list[list[Any]] = []
    for kind, part, n_frames in _kinds(times):
        extra: list[Any] = []
        if isinstance(part, EvenTimeline):
            extra = [part.step, part.shift, part.offset]
        elif isinstance(part, IndexTimeline):
            extra = [part.index.path, part.offset]
        facts.append([kind, n_frames, *extra])
    return facts


def load_times(content: bytes | None, n_frames: int, indexes: Callable[[], Mapping[str, XdrIndex]]) -> Timeline | None:
    """Return the packed times of `n_frames` frames; None if they are missing or damaged."""
    unpacked = _unpack(content, np.dtype("<f8"))
    if unpacked is None or sum(facts[1] for facts in unpacked[1]) != n_frames:
        return None
    listed, row = unpacked[0], 0
    parts: list[tuple[Timeline, int]] = []
    for kind, count, *extra in unpacked[1]:
        if kind == "even":
            parts.append((EvenTimeline(count, *extra), count))
        elif kind == "index":
            path, offset = extra
            index = indexes().get(path)
            if index is None or index.n_frames < count:
                return None
            parts.append((IndexTimeline(index, offset), count))
        else:
            parts.append((ListedTimeline(listed[row : row + count]), count))
            row += count
    return parts[0][0] if len(parts) == 1 and len(parts[0][0]) == n_frames else JoinedTimeline(parts)


def _pack(arrays: Sequence[Array], dtype: np.dtype[Any], facts: Sequence[Any]) -> Parts:
    head, shape = io.BytesIO(), (sum(map(len, arrays)),)
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(head, {"descr": descr, "fortran_order": False, "shape": shape})
    rows = [np.ascontiguousarray(array, dtype) for array in arrays]
    checksum = reduce(lambda crc, array: crc32c(array.view(np.uint8), crc), rows, 0)
    text = json.dumps([VERSION, checksum, facts]).encode()
    return [head.getvalue(), *(array.view(np.uint8).data for array in rows), struct.pack("<I", crc32(text)) + text]


def _unpack(content: Content | None, dtype: np.dtype[Any]) -> tuple[Array, list[list[Any]]] | None:
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
