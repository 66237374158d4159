"""Where frames begin and when they were taken, as a store keeps it: `pack_indexes()`, `pack_times()`, and back.

Both are a head, which says in JSON what follows, and what follows: of an index its own bytes, which are read from there
piece by piece, and of times those that neither an index nor a formula gives. Reading the head is all that opening does.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np

from himach.io.trajectory.index.timeline import (
    EvenTimeline,
    JoinedTimeline,
    ListedTimeline,
    Timeline,
)
from himach.io.trajectory.index.walk import taken
from himach.io.trajectory.index.xdr_index import Span, Stored, XdrIndex
from himach.io.trajectory.xdr_file import IndexTimeline

VERSION = 3
#: Name and version, length of the JSON and its CRC-32.
_HEAD = struct.Struct("<8sIII")
_NAME = b"himachIX"
MOST_FACTS = 64 << 20

Parts = list[bytes | memoryview]
Facts = list[list[Any]]


def pack_indexes(indexes: Mapping[str, XdrIndex]) -> Parts:
    """Return indexes, by the paths of their files, as what is to be written one behind the other."""
    contents = [memoryview(one.bytes_at(0, one.n_bytes)) for one in indexes.values()]
    return [_head(_facts_of(indexes)), *contents]


def are_packed(content: Stored | bytes | None, indexes: Mapping[str, XdrIndex]) -> bool:
    """Tell whether content is these indexes, as far as its head and its length tell."""
    found = _facts(content)
    if found is None or content is None:
        return False
    return found[0] == _facts_of(indexes) and len(content) == found[1] + sum(one.n_bytes for one in indexes.values())


def _facts_of(indexes: Mapping[str, XdrIndex]) -> Facts:
    return [
        [path, one.kind, one.n_atoms, one.cut, one.size, one.changed, one.n_bytes, [*map(list, one.spans)]]
        for path, one in indexes.items()
    ]


def indexes_in(content: Stored | bytes | None) -> dict[str, XdrIndex]:
    """Return the indexes that were packed, by path; none if they are missing, damaged or of another version."""
    found: dict[str, XdrIndex] = {}
    head = _facts(content)
    if head is None or content is None:
        return {}
    facts, begin = head
    try:
        for path, kind, n_atoms, cut, size, changed, n_bytes, spans in facts:
            index = XdrIndex(
                kind, n_atoms, [Span(*span) for span in spans], _part(content, begin, n_bytes), cut, size, changed
            )
            if begin + n_bytes > len(content) or any(span.place + span.n_bytes > n_bytes for span in index.spans):
                return {}
            found[path] = index
            begin += n_bytes
    except (ValueError, TypeError):
        return {}
    return found


def newer_index(path: str, of: str) -> XdrIndex | None:
    """Return the index of a file that is kept in a file of a store by now; what is damaged there, too, is removed."""
    found = indexes_in(Stored(path, 0, os.path.getsize(path))).get(of) if os.path.exists(path) else None
    return None if found is None else taken(found, of, partial(_remove, path))


def _remove(path: str) -> None:
    """Remove an index, so that the next run keeps one anew; return none."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def pack_times(times: Timeline) -> bytes:
    """Return times as bytes."""
    listed = [one.at(np.arange(n_frames)) for kind, one, n_frames in _kinds(times) if kind == "listed"]
    return b"".join(
        [_head(_facts_of_times(times)), *(np.ascontiguousarray(one, dtype="<f8").tobytes() for one in listed)]
    )


def times_are_packed(content: Stored | bytes | None, times: Timeline) -> bool:
    """Tell whether content is these times, as far as its head and its length tell."""
    found = _facts(content)
    if found is None or content is None:
        return False
    listed = sum(8 * n_frames for kind, _, n_frames in _kinds(times) if kind == "listed")
    return found[0] == _facts_of_times(times) and len(content) == found[1] + listed


def _kinds(times: Timeline) -> list[tuple[str, Timeline, int]]:
    parts = times.parts if isinstance(times, JoinedTimeline) else ((times, len(times)),)
    kinds = {EvenTimeline: "even", IndexTimeline: "index"}
    return [(kinds.get(type(one), "listed"), one, n_frames) for one, n_frames in parts]


def _facts_of_times(times: Timeline) -> Facts:
    facts: Facts = []
    for kind, one, n_frames in _kinds(times):
        more: list[Any] = []
        if isinstance(one, EvenTimeline):
            more = [one.step, one.shift, one.offset]
        elif isinstance(one, IndexTimeline):
            more = [one.path, one.offset]
        facts.append([kind, n_frames, *more])
    return facts


def times_in(content: bytes | None, n_frames: int, indexes: Callable[[], Mapping[str, XdrIndex]]) -> Timeline | None:
    """Return the times of so many frames that were packed; None if they are missing or damaged.

    `indexes` gives the indexes that were packed with them.
    """
    found = _facts(content)
    if found is None or content is None:
        return None
    facts, begin = found
    parts: list[tuple[Timeline, int]] = []
    try:
        for kind, count, *more in facts:
            if kind == "even":
                parts.append((EvenTimeline(count, *more), count))
            elif kind == "index":
                path, offset = more
                index = indexes()[path]
                if index.n_frames < count:
                    return None
                parts.append((IndexTimeline(index, path, offset), count))
            else:
                listed = np.frombuffer(content, "<f8", count, begin).astype(np.float64)
                parts.append((ListedTimeline(listed), count))
                begin += 8 * count
    except (ValueError, TypeError, KeyError):
        return None
    if sum(count for _, count in parts) != n_frames:
        return None
    return parts[0][0] if len(parts) == 1 and len(parts[0][0]) == n_frames else JoinedTimeline(parts)


def _head(facts: Iterable[Any]) -> bytes:
    text = json.dumps(facts).encode()
    return _HEAD.pack(_NAME, VERSION, len(text), crc32(text)) + text


def _facts(content: Stored | bytes | None) -> tuple[Facts, int] | None:
    """Return what a head says, and where it ends."""
    try:
        name, version, length, checksum = _HEAD.unpack(_bytes(content or b"", 0, _HEAD.size))
        if name != _NAME or version != VERSION or length > MOST_FACTS:
            return None
        text = _bytes(content or b"", _HEAD.size, length)
        return (json.loads(text), _HEAD.size + length) if crc32(text) == checksum else None
    except (OSError, ValueError, struct.error):
        return None


def _bytes(content: Stored | bytes, place: int, n_bytes: int) -> bytes:
    return content.read(place, n_bytes) if isinstance(content, Stored) else content[place : place + n_bytes]


def _part(content: Stored | bytes, begin: int, n_bytes: int) -> Any:
    if isinstance(content, Stored):
        return Stored(content.path, content.begin + begin, n_bytes)
    return np.frombuffer(content, np.uint8, n_bytes, begin)
