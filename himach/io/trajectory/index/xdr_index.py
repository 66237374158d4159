"""`XdrIndex`: where the frames of an XTC or TRR file begin and when they were taken, read where it is needed.

An index is made of spans, each of frames that were walked over together (`himach.io.trajectory.index.walk`). A span is
a table of where its pieces lie, and the pieces, of `PIECE` frames each but the last (see `columns`). The bytes of all
spans lie in memory, which ranks of a node may share, or in a file; a piece is read and checked when a frame of it is
asked for, and a few are kept. What is damaged costs a walk over the file, on the rank that needs it.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from himach.io.remote.byte_file import status_of
from himach.io.trajectory.index.columns import PIECE_FRAMES, DamagedPieceError, Piece, unpack
from himach.io.trajectory.index.timeline import Numbers, Times, tolerance

#: Pieces that a process keeps unpacked.
MAX_PIECES = 4
_PLACE = struct.Struct("<QQ")


class Span(NamedTuple):
    """Frames that were walked over together.

    Attributes
    ----------
    n_frames
        Whole frames in it.
    begin, end
        First byte in the trajectory of its first frame, and the one after its last.
    first, last
        Times (ps) of its first and its last frame.
    back
        The first frame in it that was taken before the one before it; -1 if none was.
    place, n_bytes
        Where table and pieces lie in the bytes of the index, and how many they are.
    """

    n_frames: int
    begin: int
    end: int
    first: float
    last: float
    back: int
    place: int
    n_bytes: int


@dataclass(frozen=True)
class Stored:
    """Bytes of an index in a file, from byte `begin` on. They are read, not mapped: a bad sector is an error."""

    path: str
    begin: int
    n_bytes: int

    def __len__(self) -> int:
        return self.n_bytes

    def read(self, place: int, n_bytes: int) -> bytes:
        """Return some bytes; fewer where there are no more."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, min(n_bytes, self.n_bytes - place), self.begin + place)
        finally:
            os.close(descriptor)


Bytes = npt.NDArray[np.uint8] | Stored


@dataclass
class XdrIndex:
    """The frames of one XTC or TRR file.

    Attributes
    ----------
    kind
        ``"XTC"`` or ``"TRR"``.
    n_atoms
        Atoms in each frame.
    spans
        In the order of frames; each begins where the one before it ends.
    content
        Their bytes.
    cut
        Whether bytes of an unfinished frame follow the last whole one.
    size, changed
        Size of the file when the walk began, and when its inode had changed last (ns): tools that copy set the time
        of modification as they like.
    stays
        Whether the bytes are left behind where the index is pickled: who unpickles it has them, and calls `become`.
    again
        Walks over the file once more, where the index came from a store and is damaged, or not of the file after all.
    """

    kind: str
    n_atoms: int
    spans: Sequence[Span]
    content: Bytes
    cut: bool
    size: int
    changed: int
    again: Callable[[], XdrIndex] | None = None
    stays: bool = False
    _pieces: dict[tuple[int, int], Piece] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._starts = np.cumsum([0] + [span.n_frames for span in self.spans])
        self.n_frames = int(self._starts[-1])

    def __getstate__(self) -> dict[str, object]:
        content = np.empty(0, np.uint8) if self.stays else self.content
        return {**self.__dict__, "_pieces": {}, "content": content}

    def is_of(self, path: str) -> bool:
        """Tell whether the file is there and has not changed since, by its size and time."""
        try:
            status = status_of(path)
        except FileNotFoundError:
            return False
        return (status.size, status.changed) == (self.size, self.changed)

    def with_content(self, content: Bytes) -> XdrIndex:
        """Return the same index with its bytes elsewhere."""
        return replace(self, content=content, _pieces={})

    def become(self, other: XdrIndex) -> None:
        """Take another index of the same frames for this one, and maybe more."""
        self.spans, self.content, self.again, self._starts = other.spans, other.content, other.again, other._starts
        self._pieces.clear()

    @property
    def facts(self) -> tuple[object, ...]:
        """What two indexes of the same content of a file have in common."""
        return self.kind, self.n_atoms, self.n_frames, self.cut, self.size, self.changed

    @property
    def n_bytes(self) -> int:
        """How many bytes it has."""
        return sum(span.n_bytes for span in self.spans)

    @property
    def end(self) -> int:
        """The byte after the last whole frame."""
        return self.spans[-1].end

    def place(self, number: int) -> tuple[int, int]:
        """Return the first byte of a frame, and the one after its last."""
        piece, at = self._piece(number)
        return int(piece.offsets[at]), int(piece.offsets[at + 1])

    def time(self, number: int) -> float:
        """Return when a frame was taken, ps."""
        piece, at = self._piece(number)
        return float(piece.times[at])

    def has(self, number: int) -> int:
        """Return what is in a frame: bits of `himach.io.trajectory.xdr_header`."""
        piece, at = self._piece(number)
        return int(piece.has[at])

    def times(self, numbers: Numbers) -> Times:
        """Return the times of frames, float64 (n,), ps."""
        return self._gathered(numbers, lambda piece: piece.times)

    def sizes(self, numbers: Numbers) -> Numbers:
        """Return the bytes of frames, int64 (n,)."""
        return self._gathered(numbers, lambda piece: np.diff(piece.offsets)).astype(np.int64)

    def back(self, n_frames: int) -> int | None:
        """Return what `Timeline.back` does."""
        before = None
        for start, span in zip(self._starts.tolist(), self.spans, strict=False):
            if start >= n_frames:
                break
            if before is not None and span.first < before - tolerance(before):
                return int(start)
            if span.back >= 0 and start + span.back < n_frames:
                return int(start) + span.back
            before = span.last
        return None

    def _gathered(self, numbers: Numbers, column: Callable[[Piece], npt.NDArray[np.generic]]) -> Times:
        """Return a value for each frame; frames that lie in one piece and follow one another are looked up at once."""
        numbers = np.asarray(numbers, dtype=np.int64)
        values = np.empty(len(numbers))
        span = np.searchsorted(self._starts, numbers, side="right") - 1
        of_piece = span * (1 << 40) + (numbers - self._starts[span]) // PIECE_FRAMES
        ends = [0, *(np.flatnonzero(np.diff(of_piece)) + 1).tolist(), len(numbers)]
        for begin, end in itertools.pairwise(ends):
            if begin < end:
                piece, at = self._piece(int(numbers[begin]))
                values[begin:end] = column(piece)[numbers[begin:end] - numbers[begin] + at]
        return values

    def renew(self) -> bool:
        """Put what a new walk over the file finds in the place of what a store had; tell whether that was so.

        Raises
        ------
        ValueError
            If the file has become shorter.
        """
        again, self.again = self.again, None
        if again is None:
            return False
        new = again()
        if new.n_frames < self.n_frames:
            raise ValueError("the file has become shorter since it was opened")
        self.become(new)
        return True

    def _piece(self, number: int) -> tuple[Piece, int]:
        """Return the piece that a frame lies in, and the frame's place there."""
        span = int(np.searchsorted(self._starts, number, side="right")) - 1 if len(self.spans) > 1 else 0
        which, at = divmod(number - int(self._starts[span]), PIECE_FRAMES)
        piece = self._pieces.get((span, which))
        if piece is None:
            if len(self._pieces) >= MAX_PIECES:
                self._pieces.pop(next(iter(self._pieces)), None)
            piece = self._unpacked(span, which)
            if piece is None:
                if not self.renew():
                    raise DamagedPieceError("an index of frames is damaged")
                return self._piece(number)
            self._pieces[span, which] = piece
        return piece, at

    def _unpacked(self, number: int, which: int) -> Piece | None:
        span = self.spans[number]
        try:
            first, last = _PLACE.unpack(self.bytes_at(span.place + 8 * which, _PLACE.size))
            if not 0 <= first < last <= span.n_bytes:
                raise DamagedPieceError("an index of frames is damaged")
            piece = unpack(self.bytes_at(span.place + first, last - first))
            whole = piece.first == which * PIECE_FRAMES and len(piece.has) == min(
                PIECE_FRAMES, span.n_frames - which * PIECE_FRAMES
            )
            if not whole or not span.begin <= piece.offsets[0] < piece.offsets[-1] <= span.end:
                raise DamagedPieceError("an index of frames is damaged")
        except (DamagedPieceError, OSError, struct.error):
            return None
        return piece

    def bytes_at(self, place: int, n_bytes: int) -> bytes | memoryview:
        """Return some of the bytes of the index; fewer where there are no more."""
        if isinstance(self.content, Stored):
            return self.content.read(place, n_bytes)
        return memoryview(self.content)[place : place + n_bytes]
