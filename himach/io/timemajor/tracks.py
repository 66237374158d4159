"""Frames out of the time-major form: `Tracks`, which tells for which frames it costs fewer bytes, and reads those."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from himach.frame import FIELDS, POSITIONS, RawFrame
from himach.io.store.cached_frames import CachedFrames
from himach.io.store.store import Dataset, StoreError
from himach.io.timemajor.form import TimeMajorForm, form_for
from himach.io.timemajor.layout import ChunkStamps

__all__ = ["Tracks", "open_tracks"]

Numbers = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]

PAGE_BYTES = 4096
FRAME_BLOCK = 4096  # atoms of a frame under one checksum
GAP_BYTES = 64 << 10  # gaps in a frame up to this size are read over
VECTOR_BYTES = 12
UNREAD = FIELDS & ~POSITIONS


@dataclass
class _Loaded:
    """A chunk in memory: its stamps, and vectors of the atoms asked for, (frames, atoms, 3)."""

    chunk: int
    stamps: ChunkStamps
    vectors: Vectors


class Tracks:
    """Some atoms of a dataset's frames, read from its time-major form.

    Parameters
    ----------
    form
        As the node's store holds it.
    frames
        The same dataset frame by frame, to compare with.
    atoms
        What is asked for, int64 (n,), ascending.

    Attributes
    ----------
    nbytes
        Bytes of records read so far.
    n_frames
        Frames given so far.
    """

    def __init__(self, form: TimeMajorForm, frames: Dataset, atoms: Numbers) -> None:
        self._form = form
        self._frames = frames
        self._atoms = atoms
        self._parts = form.parts(atoms)
        together = int(atoms[-1] - atoms[0]) + 1 == len(atoms)
        self._rows = slice(int(atoms[0]), int(atoms[-1]) + 1) if together else atoms
        self._loaded: _Loaded | None = None
        self._frame_bytes = 0
        self._positions = np.zeros((form.layout.n_atoms, 3), dtype=np.float32)
        self.nbytes = 0
        self.n_frames = 0

    def chosen(self, numbers: Numbers, held: npt.NDArray[np.bool_]) -> Numbers:
        """Return from which chunk each frame is to be read, int64 (n,), below 0: from none.

        Parameters
        ----------
        numbers
            Frame numbers.
        held
            Which of them can be read frame by frame from the same store.
        """
        chosen = numbers // self._form.layout.span
        chunks, places = np.unique(chosen, return_inverse=True)
        there = self._form.whole(chunks, self._parts)
        if self._loaded is not None:
            there |= chunks == self._loaded.chunk
        counts = np.bincount(places, minlength=len(chunks))
        away = np.bincount(places[~held], minlength=len(chunks))
        one = self._bytes_of_frame(numbers[held]) if held.any() else 0
        for i in np.flatnonzero(there).tolist():
            there[i] = away[i] > 0 or self._bytes_of(int(chunks[i])) < counts[i] * one
        return np.where(there[places], chosen, -1)

    def load(self, chunk: int, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """Read a chunk; return which of these frames it gives, bool (n,): none if any of it is damaged or gone."""
        if self._loaded is None or self._loaded.chunk != chunk:
            self._loaded = None
            try:
                self._loaded = self._read(chunk)
                if self._loaded is None:
                    self._form.dataset.refresh()
            except StoreError:  # what cannot be read here can be elsewhere
                self._loaded = None
        if self._loaded is None:
            return np.zeros(len(numbers), dtype=bool)
        return self._places(numbers)[1]

    def _places(self, numbers: Numbers) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        """Return where in the chunk frames are, and whether."""
        assert self._loaded is not None
        known = self._loaded.stamps.numbers
        places = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
        return places, known[places] == numbers

    def read(self, numbers: Numbers) -> Iterator[RawFrame]:
        """Give frames of the chunk that was loaded last, all of which it gives, in the order asked for.

        The arrays of one hold until the next; rows of atoms that were not asked for hold anything.
        """
        assert self._loaded is not None
        stamps, vectors = self._loaded.stamps, self._loaded.vectors
        places = self._places(numbers)[0]
        times, boxed, boxes = stamps.times[places].tolist(), stamps.boxed[places].tolist(), stamps.boxes[places]
        positions, rows = self._positions, self._rows
        self.n_frames += len(numbers)
        for i, (number, at) in enumerate(zip(numbers.tolist(), places.tolist(), strict=True)):
            positions[rows] = vectors[at]
            yield RawFrame(number, times[i], positions, boxes[i] if boxed[i] else None, unread=UNREAD)

    def _read(self, chunk: int) -> _Loaded | None:
        form = self._form
        stamps = form.stamps(chunk)
        if stamps is None:
            return None
        self.nbytes += stamps.nbytes
        n, key = len(stamps.numbers), stamps.key(form.layout, chunk)
        vectors = np.empty((n, len(self._atoms), 3), dtype=np.float32)
        for part in self._parts:
            tracks, nbytes = form.tracks(chunk, part, n, key)
            self.nbytes += nbytes
            if tracks is None:
                return None
            vectors[:, part.at] = tracks.transpose(1, 0, 2)
        return _Loaded(chunk, stamps, vectors)

    def _bytes_of(self, chunk: int) -> int:
        """Return about how many bytes reading a chunk takes; none of one that is in memory."""
        if self._loaded is not None and self._loaded.chunk == chunk:
            return 0
        return self._form.nbytes(chunk, self._parts)

    def _bytes_of_frame(self, numbers: Numbers) -> int:
        """Return about how many bytes reading the atoms of one frame takes, by the size of one."""
        if not self._frame_bytes:
            (place,) = self._frames.locate(numbers[:1])
            self._frame_bytes = 0 if place is None else bytes_of_frame(place[3], self._form.layout.n_atoms, self._atoms)
        return self._frame_bytes


def bytes_of_frame(length: int, n_atoms: int, atoms: Numbers) -> int:
    """Return about how many bytes of a frame's record of that length are read for some of its atoms, ascending.

    Blocks with asked atoms are read, and what lies between two that are near each other (native/read/window.c).
    """
    block = min(length * FRAME_BLOCK / n_atoms, FRAME_BLOCK * VECTOR_BYTES)
    apart = (np.diff(np.unique(atoms // FRAME_BLOCK)) - 1) * block
    asked = (len(apart) + 1) * block + float(apart[apart <= GAP_BYTES].sum())
    return min(length, int(asked) + PAGE_BYTES)


def open_tracks(dataset: CachedFrames | None, atoms: Numbers | None) -> Tracks | None:
    """Open the time-major form of a dataset for a run that asks for some atoms; None as of `form_for`."""
    form = form_for(dataset, atoms)
    if form is None or atoms is None or not isinstance(dataset, Dataset):
        return None
    return Tracks(form, dataset, atoms)
