"""The time-major form of a dataset as a node holds it: `TimeMajorForm`, opened beside the dataset's frames."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from himach.frame import POSITIONS
from himach.io.frame_source import ReadOptions, atom_ranges
from himach.io.store import bodhi
from himach.io.store.cached_frames import CachedFrames
from himach.io.store.store import Dataset, StoreError, StoreNotFoundError
from himach.io.timemajor.layout import CHUNK_FRAMES, FACTS, FORM, SUFFIX, ChunkLayout, ChunkStamps

__all__ = ["ChunkPart", "TimeMajorForm", "form_for", "open_form"]

Numbers = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]

DAMAGED = bodhi.REASONS[bodhi.REASON_DAMAGED]
ALONE = "alone"  # name of an attachment
TRACK_BYTES = 64 << 20  # bytes of a chunk's tracks that a rank keeps while it reads its frames
PAGE_BYTES = 4096  # bytes that are read at least
#: How few bytes at one place are read.
SMALL = ReadOptions(direct="off", ahead=False, sparse=True)


@dataclass(frozen=True)
class ChunkPart:
    """Atoms that are asked for of one block.

    Attributes
    ----------
    block
        Its number.
    atoms
        As they are counted in the block, int64 (n,), ascending.
    at
        Where among all that are asked for they are.
    """

    block: int
    atoms: Numbers
    at: slice

    def ranges(self, frames: int) -> Numbers:
        """Return which rows of a record with so many frames these are: int64 (k, 2), ascending and apart."""
        runs = atom_ranges(self.atoms)
        return np.ascontiguousarray(runs * frames)


class TimeMajorForm:
    """The time-major form of a dataset, held beside it in a node's store.

    Parameters
    ----------
    dataset
        Its own.
    layout
        How it is cut.
    """

    def __init__(self, dataset: Dataset, layout: ChunkLayout) -> None:
        self.dataset = dataset
        self.layout = layout

    def parts(self, atoms: Numbers) -> list[ChunkPart]:
        """Return the blocks that have some atoms; int64 (n,), ascending."""
        blocks = atoms // self.layout.block_atoms
        starts = np.flatnonzero(np.diff(blocks, prepend=-1))
        ends = np.append(starts[1:], len(atoms))
        return [
            ChunkPart(
                int(blocks[start]),
                np.ascontiguousarray(atoms[start:end] - blocks[start] * self.layout.block_atoms),
                slice(start, end),
            )
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]

    def whole(self, chunks: Numbers, parts: Iterable[ChunkPart] | None = None) -> npt.NDArray[np.bool_]:
        """Return which chunks are there, with all tracks of these parts, or of all atoms; as of the last refresh."""
        blocks = np.arange(self.layout.n_blocks) if parts is None else np.array([part.block for part in parts])
        there = self.dataset.holds(self.layout.stamps_record(chunks))
        for i in np.flatnonzero(there).tolist():
            there[i] = self.dataset.holds(self.layout.tracks_record(chunks[i], blocks)).all()
        return there

    def nbytes(self, chunk: int, parts: Sequence[ChunkPart]) -> int:
        """Return about how many bytes of the disk reading stamps and parts of a chunk takes."""
        blocks = np.array([part.block for part in parts])
        records = np.append(self.layout.tracks_record(chunk, blocks), self.layout.stamps_record(chunk))
        lengths = [0 if place is None else place[3] for place in self.dataset.locate(records)]
        total = lengths.pop() + PAGE_BYTES
        for part, length in zip(parts, lengths, strict=True):
            share = len(part.atoms) / len(self.layout.atoms_of(part.block))
            total += min(length, int(length * share)) + 2 * PAGE_BYTES
        return total

    def chunks(self) -> Numbers:
        """Return the chunks that are there, if damaged tracks do not speak against it, ascending."""
        records, found = self.layout.n_blocks + 1, list[int]()
        while (some := self.dataset.numbers(bodhi.NATIVE, (found[-1] + 1) * records if found else 0, 1)).size:
            found.append(int(some[0]) // records)  # those that lie nowhere between cost nothing
        candidates = np.array(found, dtype=np.int64)
        return candidates[self.dataset.holds(self.layout.stamps_record(candidates))]

    def stamps(self, chunk: int) -> ChunkStamps | None:
        """Read which frames a chunk has; None if that cannot be told."""
        reading = self.dataset.read([int(self.layout.stamps_record(chunk))], SMALL)
        frame = next(reading)
        first = chunk * self.layout.span
        told = None if frame is None else ChunkStamps.parse(frame.positions, first)
        if frame is None or told is None or told.key(self.layout, chunk) != frame.time:
            if (frame is not None or reading.reason == DAMAGED) and self._is_current():
                self.forget(chunk)
            return None
        return told

    def tracks(self, chunk: int, part: ChunkPart, frames: int, key: float) -> tuple[Vectors | None, int]:
        """Read the tracks of some atoms of a block.

        Returns
        -------
        tuple
            float32 (atoms, frames, 3), which holds until the next read; None where they are not there, damaged or of
            other frames. And the bytes that were read for it.
        """
        n_rows = len(self.layout.atoms_of(part.block)) * frames
        number, ranges = int(self.layout.tracks_record(chunk, part.block)), part.ranges(frames)
        reading = self.dataset.read([number], replace(SMALL, atoms=ranges, fields=POSITIONS))
        found = next(reading)
        if found is None or found.time != key or len(found.positions) != n_rows:
            if (found is not None or reading.reason == DAMAGED) and self._is_current():
                self.forget(chunk, part)
            return None, reading.nbytes
        rows = found.positions.reshape(-1, frames, 3)
        return rows[part.atoms[0] : part.atoms[-1] + 1] if len(ranges) == 1 else rows[part.atoms], reading.nbytes

    @property
    def is_alone(self) -> bool:
        """Whether frames were dropped from the dataset because they are here."""
        return self.dataset.attachment(ALONE) is not None

    def stand_alone(self, alone: bool = True) -> None:
        """Note that frames are to be dropped from the dataset because they are here, or that none is any more."""
        if alone:
            self.dataset.attach(ALONE, b"")
        else:
            self.dataset.detach(ALONE)

    def ends(self) -> tuple[int, int] | None:
        """Return the first number of the first chunk and the last one of the last; None if there is none."""
        chunks, span = self.chunks(), self.layout.span
        return (int(chunks[0]) * span, (int(chunks[-1]) + 1) * span - 1) if len(chunks) else None

    def frames_in(self, low: int, high: int, parts: Iterable[ChunkPart] | None) -> Iterator[Numbers]:
        """Yield, chunk by chunk, the frames from `low` to `high` whose tracks of these parts (None: all) are there."""
        chunks = self.chunks()
        chunks = chunks[(chunks >= low // self.layout.span) & (chunks <= high // self.layout.span)]
        for chunk in chunks[self.whole(chunks, parts)].tolist():
            stamps = self.stamps(chunk)
            if stamps is not None:
                yield stamps.numbers[(stamps.numbers >= low) & (stamps.numbers <= high)]

    def _is_current(self) -> bool:
        """Whether what is there now is still the form that was opened, and not one that was begun since."""
        return ChunkLayout.parse(self.dataset.attachment(FACTS)) == self.layout

    def forget(self, chunk: int, part: ChunkPart | None = None) -> None:
        """Drop the stamps of a chunk, and tracks that are damaged, so that these are made anew."""
        records = [self.layout.stamps_record(chunk)]
        records += [] if part is None else [self.layout.tracks_record(chunk, part.block)]
        with contextlib.suppress(StoreError):
            self.dataset.drop(np.array(records, dtype=np.int64), native=True)
            self.dataset.refresh()


def open_form(dataset: Dataset) -> TimeMajorForm | None:
    """Open the time-major form of a dataset; None if the store has none, or one of what had the name before."""
    store = dataset.store
    if dataset.generation not in store.generations(dataset.name + SUFFIX):
        return None
    try:
        form = store.dataset(dataset.name + SUFFIX, dataset.generation, create=False)
    except StoreNotFoundError:
        return None
    layout = ChunkLayout.parse(form.attachment(FACTS))
    if layout is None or dataset.attachment(FORM) != str(layout.identity).encode():
        return None
    return TimeMajorForm(form, layout)


def form_for(dataset: CachedFrames | None, atoms: Numbers | None) -> TimeMajorForm | None:
    """Open the time-major form of a dataset for a run that asks for some atoms, None for all.

    None if there is none, or if the atoms are so many that a rank would not keep a chunk's tracks in memory. It is read
    by the process itself, from a store of its own user.
    """
    if not isinstance(dataset, Dataset) or atoms is None or not 0 < len(atoms) * CHUNK_FRAMES * 12 <= TRACK_BYTES:
        return None
    try:
        form = open_form(dataset)
    except StoreError:
        return None
    return None if form is None or int(atoms[-1]) >= form.layout.n_atoms else form
