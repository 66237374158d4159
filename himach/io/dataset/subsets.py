"""Some atoms of a dataset's frames in a node's store, beside the whole frames: `Subsets`, those that serve a run.

A run that says which atoms it reads keeps these of every frame that it takes from the origin: as frames of few atoms,
in a dataset of the same generation, whose name ends with their number and a digest of them. Another run reads from
there the atoms that it asks for, if there are all of them, in one such dataset or in several.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from himach.frame import FIELDS, RawFrame
from himach.io.frame_source import ReadOptions, atom_ranges
from himach.io.store.bodhi import REASON_DAMAGED, REASONS
from himach.io.store.cached_frames import CachedFrames, Reading, base_name
from himach.io.store.store import Dataset, StoreError
from himach.io.timemajor.holding import NodeFrames, holding
from himach.io.trajectory.origin import Origin

__all__ = ["Subset", "SubsetReading", "Subsets", "count_in", "open_subsets", "readable", "subset_of", "subsets_beside"]

Numbers = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint64]

#: Name of the attachment that has the atoms: int64, first and last + 1 of each run. native/store/eviction.c knows it.
ATOMS = "atoms"
NAMES = ("positions", "velocities", "forces")
VECTOR = np.dtype("V12")  # three numbers as one item: numpy copies those several times as fast
COUNTED = re.compile(r"\[([0-9]+) atoms [0-9a-f]{16}\]$")


@dataclass(frozen=True)
class Subset:
    """Frames of some atoms.

    Attributes
    ----------
    dataset
        Whose frames have these atoms alone.
    atoms
        Which of a whole frame's they are, int64 (n,), ascending.
    """

    dataset: Dataset
    atoms: Numbers


def name_of(dataset: str, ranges: Numbers) -> str:
    """Return the name under which these runs of atoms of a dataset's frames are kept."""
    digest = hashlib.sha256(ranges.astype("<i8").tobytes()).hexdigest()[:16]
    return f"{dataset} [{int((ranges[:, 1] - ranges[:, 0]).sum())} atoms {digest}]"


def count_in(name: str) -> int:
    """Return how many atoms of each frame a dataset of this name has; 0: all, or it is no subset."""
    found = COUNTED.search(name)
    return 0 if found is None else int(found[1])


def subset_of(dataset: Dataset, atoms: Numbers) -> Subset:
    """Open the subset that has just these atoms of a dataset's frames; make it if it is not there.

    Raises
    ------
    StoreError
        It cannot be made.
    """
    ranges = atom_ranges(atoms)
    subset = dataset.store.dataset(name_of(dataset.name, ranges), dataset.generation)
    if subset.attachment(ATOMS) is None:
        subset.attach(ATOMS, ranges.astype("<i8").tobytes())
    return Subset(subset, atoms)


def subsets_beside(dataset: Dataset) -> list[Subset]:
    """Return all subsets of a dataset's frames that its store has."""
    found = []
    for name, generation in dataset.store.contents():
        if name == dataset.name or generation != dataset.generation or base_name(name) != dataset.name:
            continue
        if not count_in(name):
            continue
        with contextlib.suppress(StoreError):
            subset = dataset.store.dataset(name, generation, create=False)
            content = subset.own_attachment(ATOMS) or b""
            ranges = np.frombuffer(content[: len(content) // 16 * 16], "<i8").astype(np.int64).reshape(-1, 2)
            if name == name_of(dataset.name, ranges):  # else it is damaged, or is being made
                lengths = ranges[:, 1] - ranges[:, 0]
                offsets = ranges[:, 0] - np.cumsum(lengths) + lengths
                found.append(Subset(subset, np.arange(lengths.sum()) + np.repeat(offsets, lengths)))
    return found


def open_subsets(dataset: CachedFrames | None, atoms: Numbers | None, origin: Origin) -> Subsets | None:
    """Return what a store has of some atoms of a dataset's frames, beside whole ones.

    None where all atoms are asked for (`atoms` is None), or where the store is not this process's own to read.
    """
    if not isinstance(dataset, Dataset) or atoms is None or not len(atoms):
        return None
    try:
        return Subsets(dataset, atoms, origin.n_atoms)
    except StoreError:
        return None


def readable(dataset: CachedFrames | None, atoms: Numbers | None, origin: Origin) -> Readable | None:
    """Return what a node can read of a dataset for a run that asks for these atoms, as the protocol asks for it."""
    held = holding(dataset, atoms)
    subsets = None if held is None else open_subsets(dataset, atoms, origin)
    return held if held is None or subsets is None else WithSubsets(held, subsets)


class Subsets:
    """What a store has of the atoms that a run asks for, beside whole frames.

    Parameters
    ----------
    dataset
        Of the node's store.
    atoms
        What is asked for, int64 (n,), ascending, one at least.
    n_atoms
        Of a whole frame.

    Attributes
    ----------
    choices
        Subsets that have all these atoms: each that has them by itself, those of fewest atoms first, then several
        together.
    """

    def __init__(self, dataset: Dataset, atoms: Numbers, n_atoms: int) -> None:
        self._dataset = dataset
        self._atoms = atoms
        self._n_atoms = n_atoms
        self._memory: list[Vectors] = []
        self.choices = _choices(subsets_beside(dataset), atoms)

    def mark(self, frames: range, alien: Words) -> None:
        """Set the bits of those `frames` that can be read, as `CachedFrames.mark`."""
        for choice in self.choices:
            there = np.full_like(alien, ~np.uint64(0))
            for subset in choice:
                native, found = np.zeros_like(alien), np.zeros_like(alien)
                subset.dataset.mark(frames, native, found)
                there &= native | found
            alien |= there

    def choose(self, numbers: Numbers) -> Numbers:
        """Return from which of the choices each frame can be read, int64 (n,); -1: from none."""
        chosen = np.full(len(numbers), -1)
        for place, choice in reversed([*enumerate(self.choices)]):
            held = np.logical_and.reduce([subset.dataset.holds(numbers) for subset in choice])
            chosen[held] = place
        return chosen

    def read(self, place: int, numbers: Sequence[int] | Numbers, fields: int) -> SubsetReading:
        """Read frames from one of the choices; their arrays are the same for all calls."""
        return SubsetReading(self.choices[place], self._atoms, self._n_atoms, numbers, fields, self._memory)

    def read_late(self, number: int, fields: int) -> RawFrame | None:
        """Read one frame, while another is in use; None if it cannot be had."""
        (place,) = self.choose(np.array([number]))
        if place < 0:
            return None
        return next(SubsetReading(self.choices[place], self._atoms, self._n_atoms, [number], fields, []))

    def forget(self, place: int, number: int) -> None:
        """Drop a frame that is damaged, so that it is written anew."""
        for subset in self.choices[place]:
            with contextlib.suppress(StoreError):  # it stays a miss
                subset.dataset.drop([number])
                subset.dataset.refresh()

    def begin(self) -> Subset:
        """Return the subset of just these atoms, to be written to; raises StoreError if it cannot be."""
        return subset_of(self._dataset, self._atoms)


class WithSubsets:
    """The frames that a node can read for a run: those of its dataset, and those of which it has what is asked for.

    Parameters
    ----------
    held
        The dataset's, as the protocol asks for them.
    subsets
        Beside it.
    """

    def __init__(self, held: CachedFrames | NodeFrames, subsets: Subsets) -> None:
        self._held = held
        self._subsets = subsets

    @property
    def identity(self) -> str | None:
        """What tells this store from every other."""
        return self._held.identity

    def mark(self, frames: range, native: Words, alien: Words) -> None:
        """Set the bits of those `frames` that are held, as `CachedFrames.mark`; those of subsets count as aliens."""
        self._held.mark(frames, native, alien)
        if frames:
            self._subsets.mark(frames, alien)

    def holds(self, numbers: Numbers, native: bool = False) -> npt.NDArray[np.bool_]:
        """Return which frames are held, or held natively, as `CachedFrames.holds`."""
        held = self._held.holds(numbers, native)
        return held if native else held | (self._subsets.choose(numbers) >= 0)


Readable = CachedFrames | NodeFrames | WithSubsets


class _Part(NamedTuple):
    """What a subset gives: rows of its frames, which are these atoms of a whole one; its frames have `n_atoms` rows."""

    reading: Reading
    atoms: Numbers
    rows: Numbers
    n_atoms: int


class SubsetReading(Iterator[RawFrame | None]):
    """Frames out of subsets, one by one, in arrays for all atoms: rows of those that were not asked for hold anything.

    Parameters
    ----------
    choice
        Subsets that have all the atoms.
    atoms, n_atoms
        What is asked for, and of how many.
    numbers, fields
        Of the frames, and what of each: positions at least.
    memory
        Arrays for a frame's vectors; those that are missing are added.

    Attributes
    ----------
    reason
        Why the last frame was missed.
    """

    def __init__(
        self,
        choice: Sequence[Subset],
        atoms: Numbers,
        n_atoms: int,
        numbers: Sequence[int] | Numbers,
        fields: int,
        memory: list[Vectors],
    ) -> None:
        self._parts: list[_Part] = []
        self._unread = FIELDS & ~fields
        self._memory = memory
        self._shape = n_atoms, 3
        self.reason = ""
        missing = atoms
        for subset in choice:
            rows = np.searchsorted(subset.atoms, missing).clip(max=len(subset.atoms) - 1)
            there = subset.atoms[rows] == missing
            reading = subset.dataset.read(numbers, ReadOptions(rows[there], fields))
            self._parts.append(_Part(reading, missing[there], rows[there], len(subset.atoms)))
            missing = missing[~there]
        assert not len(missing)

    def __next__(self) -> RawFrame | None:
        """Return the next frame, whose arrays hold until the next call; None for a miss."""
        frames = [next(part.reading) for part in self._parts]
        for frame, part in zip(frames, self._parts, strict=True):
            if frame is None or len(frame.positions) != part.n_atoms:
                self.reason = part.reading.reason if frame is None else REASONS[REASON_DAMAGED]
                return None
        whole = frames[0]
        assert whole is not None
        for field, name in enumerate(NAMES):
            if getattr(whole, name) is not None:
                setattr(whole, name, self._put(field, [getattr(frame, name) for frame in frames]))
        whole.unread = self._unread
        return whole

    def _put(self, field: int, several: Sequence[Vectors]) -> Vectors:
        """Put rows where they are in a whole frame."""
        while field >= len(self._memory):
            self._memory.append(np.zeros(self._shape, dtype=np.float32))
        memory = self._memory[field]
        for vectors, part in zip(several, self._parts, strict=True):
            rows = vectors.view(VECTOR)[:, 0]
            memory.view(VECTOR)[part.atoms, 0] = rows if len(part.rows) == len(rows) else rows[part.rows]
        return memory

    @property
    def nbytes(self) -> int:
        """Bytes of records delivered so far."""
        return sum(part.reading.nbytes for part in self._parts)


def _choices(subsets: Sequence[Subset], atoms: Numbers) -> list[tuple[Subset, ...]]:
    """Return which of the subsets have all these atoms: each that has them alone, then others together."""
    common = [len(np.intersect1d(subset.atoms, atoms, assume_unique=True)) for subset in subsets]
    alone = [subset for subset, n in zip(subsets, common, strict=True) if n == len(atoms)]
    choices: list[tuple[Subset, ...]] = [(subset,) for subset in sorted(alone, key=lambda each: len(each.atoms))]
    others = [subset for subset, n in zip(subsets, common, strict=True) if 0 < n < len(atoms)]
    together: list[Subset] = []
    missing = atoms
    while len(missing):
        shares = [len(np.intersect1d(subset.atoms, missing, assume_unique=True)) for subset in others]
        if not any(shares):
            return choices
        together.append(others[int(np.argmax(shares))])
        missing = np.setdiff1d(missing, together[-1].atoms, assume_unique=True)
    return [*choices, tuple(together)]
