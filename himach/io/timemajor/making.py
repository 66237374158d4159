"""Making the time-major form of what a node holds natively: chunk by chunk, in bounded memory, by several processes.

A chunk is there when its stamps are, which are written when its tracks can be read. A process that is killed leaves
tracks of a chunk without stamps, which the next one writes again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from himach.errors import UsageError
from himach.frame import RawFrame
from himach.io.frame_source import ReadOptions
from himach.io.store import bodhi
from himach.io.store.cached_frames import between
from himach.io.store.store import Dataset, StoreConflictError, StoreError
from himach.io.timemajor.form import TimeMajorForm, open_form
from himach.io.timemajor.layout import FACTS, FORM, MOST_FRAMES, SUFFIX, ChunkLayout, ChunkStamps, span_for

__all__ = ["Maker", "begin_form", "forget_frames", "remove_form", "unmade"]

Numbers = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]

POSITION_BYTES = 128 << 20  # bytes of positions that are turned at a time
FRAMES_AT_ONCE = 32  # whose rows go to their tracks together
SLAB_ATOMS = 4096  # atoms that frames are read by, at least: blocks of packed positions
ATOM_BYTES = 12
VECTOR = np.dtype("V12")


def begin_form(dataset: Dataset, n_atoms: int) -> TimeMajorForm:
    """Open the form of a dataset, or begin one that suits what is held natively; by who alone is `making` it."""
    form, natives = open_form(dataset), dataset.native
    largest = natives.max() if natives else 0
    if form is not None and form.layout.n_atoms == n_atoms and form.layout.has_room(largest):
        span = form.layout.span
        if form.is_alone or all(
            natives.range_cardinality(at * span, (at + 1) * span) <= MOST_FRAMES for at in _chunks(natives, span)
        ):
            return form
    layout = ChunkLayout.drawn(n_atoms, span_for(len(natives), natives.min(), natives.max()))
    if not layout.has_room(largest):
        raise UsageError(
            f"{dataset.name}: its largest frame number is {largest}, too large beside {n_atoms} atoms for the "
            "time-major form: number frames from 0, or leave out --layout"
        )
    remove_form(dataset)
    own = dataset.store.dataset(dataset.name + SUFFIX, dataset.generation)
    own.attach(FACTS, layout.encode())
    dataset.attach(FORM, str(layout.identity).encode())
    return TimeMajorForm(own, layout)


def remove_form(dataset: Dataset) -> bool:
    """Delete the time-major form of a dataset; tell whether there was one.

    Raises
    ------
    StoreBusyError
        A run is reading from it.
    StoreConflictError
        Somebody has pushed frames under its name.
    """
    store, name = dataset.store, dataset.name + SUFFIX
    if dataset.generation not in store.generations(name):
        return False
    form = store.dataset(name, dataset.generation, create=False)
    if ChunkLayout.parse(form.attachment(FACTS)) is None and form.native:
        raise StoreConflictError(
            f"dataset {name} is no time-major form, though it is called so: 'himach cache evict' it, or {dataset.name}"
        )
    store.remove(form.path.name)
    return True


def forget_frames(dataset: Dataset, numbers: Sequence[int]) -> None:
    """Drop the chunks that have frames which were dropped because they may be another trajectory's."""
    form = open_form(dataset) if len(numbers) else None
    if form is not None:
        for chunk in np.unique(np.asarray(numbers, dtype=np.int64) // form.layout.span).tolist():
            form.forget(chunk)


def unmade(dataset: Dataset, form: TimeMajorForm) -> Iterator[int]:
    """Yield the chunks that lack some of the frames that are held natively, and may be made anew.

    To make one anew is to drop it first, so that one that alone has frames stays as it is.
    """
    natives = dataset.native
    for chunk in _chunks(natives, form.layout.span):
        stamps = form.stamps(chunk) if form.whole(np.array([chunk]))[0] else None
        there = None if stamps is None else BitMap64(stamps.numbers)
        if there is None or (there <= natives and not _natives_in(natives, chunk, form.layout.span) <= there):
            yield chunk


def _chunks(natives: BitMap64, span: int) -> Iterator[int]:
    """Yield the chunks that frames are in, ascending."""
    at = natives.next_set_bit(0) if natives else None
    while at is not None:
        yield at // span
        try:
            at = natives.next_set_bit((at // span + 1) * span)
        except ValueError:  # there is none
            at = None


def _natives_in(natives: BitMap64, chunk: int, span: int) -> BitMap64:
    return between(natives, chunk * span, (chunk + 1) * span)


@dataclass
class Maker:
    """Turns chunks of a dataset's frames; one of the processes that do so at once, each with chunks of its own.

    Parameters
    ----------
    dataset
        The frames.
    form
        Their time-major form.
    memory
        Bytes of positions that are turned at a time.
    """

    dataset: Dataset
    form: TimeMajorForm
    memory: int = POSITION_BYTES

    def make(self, chunk: int) -> bool:
        """Make a chunk of the frames held natively, in place of the one that is there.

        Returns
        -------
        bool
            False if frames vanished meanwhile, or another process has made another chunk of that number.

        Raises
        ------
        StoreFullError, StoreSystemError, StorePoisonedError
            Of writing; what is written of the chunk does no harm.
        """
        held = _natives_in(self.dataset.native, chunk, self.form.layout.span)
        natives = np.array(held.to_array(), dtype=np.int64)
        stamps = self._stamps(natives) if len(natives) else None
        if stamps is None:
            return False
        self.form.forget(chunk)
        first = chunk * self.form.layout.span
        key, n = stamps.key(self.form.layout, chunk), len(stamps.numbers)
        writing = _Writing(self.form.dataset, n)
        try:
            for begin, end in self._slabs(n):
                tracks = self._turned(natives, begin, end)
                if tracks is None:
                    return False
                for block in range(begin // self.form.layout.block_atoms, -(-end // self.form.layout.block_atoms)):
                    atoms = self.form.layout.atoms_of(block)
                    rows = tracks[atoms.start - begin : atoms.stop - begin].reshape(-1, 3)
                    writing.write(int(self.form.layout.tracks_record(chunk, block)), key, rows)
            writing.flush()
            # Frames that were dropped meanwhile may have been another trajectory's.
            if not self._still_held(natives):
                return False
            writing.write(int(self.form.layout.stamps_record(chunk)), key, stamps.encode(first))
            writing.flush()
        except StoreConflictError:
            return False
        finally:
            writing.close()
        if not self._still_held(natives):
            self.form.forget(chunk)
            return False
        return True

    def _still_held(self, numbers: Numbers) -> bool:
        self.dataset.refresh()
        return bool(self.dataset.holds(numbers).all())

    def _slabs(self, n_frames: int) -> Iterator[tuple[int, int]]:
        """Yield first atoms and those behind the last, as many as memory allows."""
        layout = self.form.layout
        size = max(layout.block_atoms, self.memory // (n_frames * ATOM_BYTES))
        unit = SLAB_ATOMS if size >= SLAB_ATOMS else layout.block_atoms
        for begin in range(0, layout.n_atoms, size // unit * unit):
            yield begin, min(layout.n_atoms, begin + size // unit * unit)

    def _stamps(self, numbers: Numbers) -> ChunkStamps | None:
        """Read times and boxes of frames; None if one is a miss, or has another number of atoms."""
        times, boxed = np.zeros(len(numbers)), np.zeros(len(numbers), dtype=bool)
        boxes = np.zeros((len(numbers), 6), dtype=np.float32)
        for i, frame in enumerate(self._read(numbers, 0, 1)):
            if frame is None or len(frame.positions) != self.form.layout.n_atoms:
                return None
            times[i] = frame.time
            if frame.box is not None:
                boxed[i], boxes[i] = True, frame.box
        return ChunkStamps(numbers, times, boxed, boxes)

    def _read(self, numbers: Numbers, begin: int, end: int) -> Iterator[RawFrame | None]:
        return self.dataset.read(numbers, ReadOptions(np.array([[begin, end]], dtype=np.int64), bodhi.POSITIONS))

    def _turned(self, numbers: Numbers, begin: int, end: int) -> Vectors | None:
        """Return the tracks of atoms, (end - begin, frames, 3); None at a miss."""
        tracks = np.empty((end - begin, len(numbers), 3), dtype=np.float32)
        rows = np.empty((FRAMES_AT_ONCE, end - begin, 3), dtype=np.float32)
        # Vectors as one item each: numpy copies those several times as fast.
        of_tracks, of_rows = tracks.view(VECTOR)[..., 0], rows.view(VECTOR)[..., 0]
        frames = self._read(numbers, begin, end)
        for start in range(0, len(numbers), FRAMES_AT_ONCE):
            stop = min(start + FRAMES_AT_ONCE, len(numbers))
            for i in range(stop - start):
                frame = next(frames)
                if frame is None:
                    return None
                rows[i] = frame.positions[begin:end]
            of_tracks[:, start:stop] = of_rows[: stop - start].T
        return tracks


class _Writing:
    """A writer of records whose checksums are one for each track."""

    def __init__(self, dataset: Dataset, frames: int) -> None:
        self._dataset = dataset
        self._writer = dataset.writer(frames)

    def write(self, number: int, key: float, rows: Vectors) -> None:
        """Append a record, in place of one of other frames that is there under its number."""
        rows = np.ascontiguousarray(rows)
        try:
            self._writer.append(number, key, rows, None, None, None)
        except StoreConflictError:
            self._dataset.drop([number], native=True)
            self._writer.append(number, key, rows, None, None, None)

    def flush(self) -> None:
        self._writer.flush(False)

    def close(self) -> None:
        with contextlib.suppress(StoreError):
            self._writer.close()
