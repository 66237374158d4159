"""Walks over the headers of XTC and TRR files, of a whole one or of a part: `read_index()`, `walk_part()`, `joined()`.

A walk decodes no coordinates. Who walks over a part that begins in the middle of a file looks for a frame there: for
what frames begin with, and for a header behind it where it says that there is one, and so on. What looks like that may
be coordinates after all, so parts make an index only if each ends where the next one begins: then all is as one walk
from the first byte finds it. A file that ends within its last frame is reported as cut; a senseless header with frames
after it is an error that names frame and byte.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from himach.errors import NoFrameError, TrajectoryError
from himach.io.remote.byte_file import ByteFile
from himach.io.trajectory.index.columns import PIECE_FRAMES, Piece, pack
from himach.io.trajectory.index.timeline import ListedTimeline, back_in, tolerance
from himach.io.trajectory.index.xdr_index import Span, XdrIndex
from himach.io.trajectory.xdr_header import (
    HEADER_BYTES,
    BadHeaderError,
    ShortError,
    TrrHeader,
    XtcHeader,
    marks,
    parse_trr,
    parse_xtc,
)

#: Headers that must follow one another where a frame seems to begin.
CHAINED_HEADERS = 16
#: Headers of an index that are looked at before more frames are added to it.
SAMPLED_HEADERS = 64
_CHUNK = 1 << 22

Parse = Callable[[bytes], XtcHeader | TrrHeader]


class Walked(NamedTuple):
    """What a walk found: frames, the first byte of the last of them, and where it ended."""

    span: Span
    last: int
    end: int
    n_atoms: int


def _parser(kind: str) -> Parse:
    return parse_xtc if kind == "XTC" else parse_trr


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
    with ByteFile(path) as file:
        size, _, changed = file.status
        try:
            _parser(kind)(file.pread(HEADER_BYTES, 0))
        except BadHeaderError:
            raise TrajectoryError(f"{path} is no {kind} file: it does not begin with a frame's header") from None
        except ShortError:
            pass
        walked, content = _walk(file, kind, 0, 0, size, size)
        _refuse_damage(path, kind, file, walked)
    if not walked.span.n_frames:
        raise NoFrameError(f"{path} holds no whole {kind} frame; it was cut off while its first frame was written")
    array = np.frombuffer(content, dtype=np.uint8)
    return XdrIndex(kind, walked.n_atoms, [walked.span], array, walked.end < size, size, changed)


def walk_part(path: str, kind: str, size: int, part: int, parts: int) -> tuple[Walked, bytes]:
    """Walk over the frames of a file that begin in one of so many parts of it, all of `size` bytes together."""
    begin, until = (size * bound // parts // 4 * 4 if bound < parts else size for bound in (part, part + 1))
    with ByteFile(path) as file:
        try:
            first = _parser(kind)(file.pread(HEADER_BYTES, 0))
            n_atoms = first.n_atoms
            look = _CHUNK if file.mirror is None else min(_CHUNK, first.size)
            found = begin if part == 0 else _find_chain(file, kind, n_atoms, begin, until, size, look)
            return _walk(file, kind, n_atoms, until if found is None else found, until, size)
        except (BadHeaderError, ShortError):
            return _walk(file, kind, 0, until, until, size)


def joined(path: str, kind: str, size: int, changed: int, parts: Sequence[Walked]) -> XdrIndex | None:
    """Return the index that parts make, without its content; None where they do not fit: one walk must decide then."""
    some = [part for part in parts if part.span.n_frames]
    if not some or some[0].span.begin != 0 or any(part.n_atoms != some[0].n_atoms for part in some):
        return None
    for one, following in itertools.pairwise(some):
        if one.end != following.span.begin:
            return None
    try:
        with ByteFile(path) as file:
            _refuse_damage(path, kind, file, some[-1])
    except TrajectoryError:
        return None
    spans, place = [], 0
    for part in some:
        spans.append(part.span._replace(place=place))
        place += part.span.n_bytes
    cut = some[-1].end < size
    return XdrIndex(kind, some[0].n_atoms, spans, np.empty(0, np.uint8), cut, size, changed)


def extended(index: XdrIndex, path: str) -> XdrIndex | None:
    """Return the index of a file that has grown since `index` was made of it; None where one walk must decide."""
    try:
        with ByteFile(path) as file:
            size, _, changed = file.status
            if size <= index.size or not _fits(index, file):
                return None
            *whole, span = index.spans
            kept = (span.n_frames - 1) // PIECE_FRAMES  # the last piece may have fewer frames than it will have
            start = index.n_frames - span.n_frames
            begin = index.place(start + kept * PIECE_FRAMES)[0]
            walked, content = _walk(file, index.kind, index.n_atoms, begin, size, size, kept * PIECE_FRAMES)
            _refuse_damage(path, index.kind, file, walked)
    except (TrajectoryError, ValueError):
        return None
    more = walked.span
    if start + kept * PIECE_FRAMES + more.n_frames < index.n_frames:
        return None
    if kept:
        before = index.time(start + kept * PIECE_FRAMES - 1)
        back = more.back + kept * PIECE_FRAMES if more.back >= 0 else -1
        back = kept * PIECE_FRAMES if more.first < before - tolerance(before) else back
        back = span.back if 0 <= span.back < kept * PIECE_FRAMES else back
        content, more = _appended(index, kept, content, more), more._replace(back=back)
    more = more._replace(n_frames=kept * PIECE_FRAMES + more.n_frames, begin=span.begin, place=span.place)
    more = more._replace(first=span.first if kept else more.first, n_bytes=len(content))
    head = index.bytes_at(0, span.place)
    array = np.frombuffer(bytes(head) + content, dtype=np.uint8)
    facts = (walked.end < size, size, changed)
    return XdrIndex(index.kind, index.n_atoms, [*whole, more], array, *facts, again=index.again)


def _appended(index: XdrIndex, kept: int, content: bytes, more: Span) -> bytes:
    """Return the bytes of an index's last span with more frames behind its first `kept` pieces."""
    span = index.spans[-1]
    old = bytes(index.bytes_at(span.place, span.n_bytes))
    pieces = -(-span.n_frames // PIECE_FRAMES)
    places = np.frombuffer(old, "<u8", kept + 1)
    added = np.frombuffer(content, "<u8", -(-more.n_frames // PIECE_FRAMES) + 1)
    body = old[places[0] : places[kept]] + content[added[0] :]
    table = 8 * (kept + len(added))
    old_places = places - 8 * (pieces + 1) + table
    return np.concatenate([old_places[:kept], added - added[0] + old_places[kept]]).astype("<u8").tobytes() + body


def _fits(index: XdrIndex, file: ByteFile) -> bool:
    """Tell whether frames all over an index are in the file as it says."""
    parse = _parser(index.kind)
    some = {index.n_frames - 1, *(index.n_frames * sample // SAMPLED_HEADERS for sample in range(SAMPLED_HEADERS))}
    for number in sorted(some):
        begin, end = index.place(number)
        try:
            header = parse(file.pread(HEADER_BYTES, begin))
        except (BadHeaderError, ShortError):
            return False
        same = struct.pack("<d", header.time) == struct.pack("<d", index.time(number))
        if (header.n_atoms, header.size) != (index.n_atoms, end - begin) or not same:
            return False
    return True


def _walk(
    file: ByteFile, kind: str, n_atoms: int, begin: int, until: int, size: int, first: int = 0
) -> tuple[Walked, bytes]:
    """Walk over the frames that begin at `begin` and behind it, before `until`, as far as there are whole ones.

    The first one is frame `first` of its span, at the beginning of a piece.
    """
    parse = _parser(kind)
    packed = _Packed(begin, first)
    at = last = begin
    streams = file.mirror is not None and file.mirror.most
    while at < until:
        try:
            if streams and file.mirror is not None:
                file.mirror.stream(at, until)
            header = parse(file.pread(HEADER_BYTES, at))
        except (BadHeaderError, ShortError):
            break
        n_atoms = n_atoms or header.n_atoms
        if header.n_atoms != n_atoms or at + header.size > size:
            break
        last = at
        at += header.size
        packed.add(at, header.time, header.has)
    span, content = packed.span()
    return Walked(span, last, at, n_atoms), content


class _Packed:
    """Frames on their way into a span."""

    def __init__(self, begin: int, first: int = 0) -> None:
        self._begin, self._number = begin, first
        self._offsets, self._has = [begin], bytearray()
        self._times: list[float] = []
        self._pieces: list[bytes] = []
        self._n_frames = 0
        self._first = self._last = 0.0
        self._back = -1

    def add(self, end: int, time: float, has: int) -> None:
        """Take note of a frame that ends there."""
        self._offsets.append(end)
        self._times.append(time)
        self._has.append(has)
        if len(self._has) == PIECE_FRAMES:
            self._close()

    def span(self) -> tuple[Span, bytes]:
        """Return what was noted."""
        if self._has:
            self._close()
        places = np.cumsum([8 * (len(self._pieces) + 1), *map(len, self._pieces)], dtype=np.uint64)
        content = b"".join([places.astype("<u8").tobytes(), *self._pieces])
        ends = (self._begin, self._offsets[-1], self._first, self._last)
        return Span(self._n_frames, *ends, self._back, 0, len(content)), content

    def _close(self) -> None:
        times = np.array(self._times, dtype=np.float64)
        piece = Piece(
            self._number + self._n_frames,
            np.array(self._offsets, dtype=np.int64),
            times,
            np.frombuffer(self._has, np.uint8),
        )
        self._pieces.append(pack(piece))
        if not self._n_frames:
            self._first = self._last = self._times[0]
        if self._back < 0:
            back = back_in(ListedTimeline(np.concatenate([[self._last], times])), len(times) + 1)
            self._back = -1 if back is None else self._n_frames + back - 1
        self._last = self._times[-1]
        self._n_frames += len(times)
        self._offsets, self._times, self._has = self._offsets[-1:], [], bytearray()


def _refuse_damage(path: str, kind: str, file: ByteFile, walked: Walked) -> None:
    """Check that no frames follow the last whole one. One with a damaged size may swallow others: it is looked into."""
    found = _find_mark(file, walked.last + 4, walked.end, marks(kind, walked.n_atoms))
    if found is None:
        return
    number, begin = walked.span.n_frames, walked.end
    if found <= walked.end:
        number, begin = number - 1, walked.last
    raise TrajectoryError(
        f"{path}: frame {number} is damaged (at byte {begin}), and frames follow it; "
        f"copy the file again, or cut it to its first {number} frames with: head -c {begin} {path}"
    )


def _find_mark(file: ByteFile, begin: int, but: int, wanted: list[bytes]) -> int | None:
    """Return the first byte, from `begin` on, at which a frame seems to begin, not counting the one at byte `but`."""
    overlap = max(map(len, wanted)) - 1
    while len(chunk := file.pread(_CHUNK, begin)) > overlap:
        for mark in wanted:
            place = chunk.find(mark)
            if begin + place == but:
                place = chunk.find(mark, place + 1)
            if place >= 0:
                return begin + place
        begin += len(chunk) - overlap
    return None


def _find_chain(
    file: ByteFile, kind: str, n_atoms: int, begin: int, until: int, size: int, look: int = _CHUNK
) -> int | None:
    """Return the first byte of a part at which a frame begins, as far as what follows tells; None if none seems to.

    So many bytes are looked at together.
    """
    parse, wanted = _parser(kind), marks(kind, n_atoms)
    overlap = max(map(len, wanted)) - 1
    at = begin
    while at < until:
        chunk = file.pread(min(look, until - at) + overlap, at)
        places = sorted(at + place for mark in wanted for place in _finds(chunk, mark))
        for place in places:
            if place < until and place % 4 == 0 and _is_chain(file, parse, n_atoms, place, size):
                return place
        if len(chunk) <= overlap:
            return None
        at += len(chunk) - overlap
    return None


def _finds(chunk: bytes, mark: bytes) -> list[int]:
    found, place = [], chunk.find(mark)
    while place >= 0:
        found.append(place)
        place = chunk.find(mark, place + 1)
    return found


def _is_chain(file: ByteFile, parse: Parse, n_atoms: int, at: int, size: int) -> bool:
    for _ in range(CHAINED_HEADERS):
        try:
            header = parse(file.pread(HEADER_BYTES, at))
        except ShortError:
            return True  # of a frame that was not finished
        except BadHeaderError:
            return False
        at += header.size
        if header.n_atoms != n_atoms:
            return False
        if at >= size:
            return True
    return True


def taken(index: XdrIndex, path: str, newer: Callable[[], XdrIndex | None]) -> XdrIndex:
    """Return an index that was kept; what is wrong with it costs a walk, unless a `newer` one is in its place."""
    return replace(index, again=partial(_anew, path, index.kind, newer), _pieces={})


def _anew(path: str, kind: str, newer: Callable[[], XdrIndex | None]) -> XdrIndex:
    found = newer()
    if found is not None:
        with ByteFile(path) as file:
            if _fits(found, file):
                return found
    return read_index(path, kind)
