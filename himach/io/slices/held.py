"""Slices in a node's store: `find_slices()`, by rank; `Held`, what they have of each frame.

The slices of one rank of a simulation are a dataset of their own, whose name is the simulation's with `SUFFIX` behind
it, and whose generation tells the rank and the launch. In it a slice is a frame that has some atoms; see
``native/net/pushing/slices.c``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from himach.frame import RawFrame
from himach.io.store.bodhi import SLICES_SUFFIX
from himach.io.store.store import Dataset, Store, StoreBusyError, StoreNotFoundError

__all__ = ["SUFFIX", "Held", "Kind", "Slice", "find_slices"]

SUFFIX = SLICES_SUFFIX

Numbers = npt.NDArray[np.int64]

_GENERATION = re.compile(rb"slices of rank (\d{1,18}), (\d{1,10}) atoms, launch ([0-9a-f]{16})\n", re.ASCII)
_AT_ONCE = 1 << 16


@dataclass(frozen=True, order=True)
class Kind:
    """Frames that slices make: the generation of their dataset, their atoms, and the launch that has pushed them."""

    generation: bytes
    n_atoms: int
    launch: bytes

    def alike(self, other: Kind) -> bool:
        """Tell whether the other's frames are those of this one's dataset, whoever launched them."""
        return (self.generation, self.n_atoms) == (other.generation, other.n_atoms)


@dataclass(frozen=True)
class Slice:
    """Some atoms of a frame, until the next is read.

    Attributes
    ----------
    rank
        Which process of the simulation has pushed it.
    frame
        Number, time, box, and the vectors of these atoms.
    ids
        uint32 (n,): which atoms they are, ascending.
    """

    rank: int
    frame: RawFrame
    ids: npt.NDArray[np.uint32]


@dataclass
class _OfRank:
    rank: int
    dataset: Dataset
    numbers: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    atoms: Numbers = field(default_factory=lambda: np.empty(0, np.int64))


class Held:
    """The slices of one kind that a store has, as of the last `refresh`."""

    def __init__(self) -> None:
        self._ranks: list[_OfRank] = []

    def add(self, rank: int, dataset: Dataset) -> None:
        """Add what one rank has pushed."""
        self._ranks.append(_OfRank(rank, dataset))

    @property
    def datasets(self) -> list[Dataset]:
        """Those of the ranks."""
        return [one.dataset for one in self._ranks]

    @property
    def ranks(self) -> list[int]:
        """The ranks that have pushed here."""
        return sorted(one.rank for one in self._ranks)

    def refresh(self) -> None:
        """Take in what was pushed, or dropped, since; of what is known already nothing is asked again."""
        for one in self._ranks:
            one.dataset.refresh()
            numbers = _all_numbers(one.dataset)
            known = np.isin(numbers, one.numbers, assume_unique=True)
            atoms = np.zeros(len(numbers), dtype=np.int64)
            atoms[known] = one.atoms[np.searchsorted(one.numbers, numbers[known])]
            for begin in range(0, len(fresh := np.flatnonzero(~known)), _AT_ONCE):
                some = fresh[begin : begin + _AT_ONCE]
                atoms[some] = one.dataset.atoms(numbers[some])
            one.numbers, one.atoms = numbers, atoms

    def ends(self) -> tuple[int, int] | None:
        """Return the first and the last frame of which there is a slice."""
        held = [one.numbers for one in self._ranks if len(one.numbers)]
        return (min(int(one[0]) for one in held), max(int(one[-1]) for one in held)) if held else None

    def began(self) -> int | None:
        """Return a number that is larger the later the oldest slice was pushed; None if there is none.

        What is old is dropped first, which leaves the order of launches as it was: one begins when another has ended.
        """
        return min((one["id"] for dataset in self.datasets for one in dataset.segments()), default=None)

    def drop_from(self, first: int) -> bool:
        """Drop all slices from a frame on, durably; say whether there were any."""
        behind = [one.numbers[np.searchsorted(one.numbers, first) :] for one in self._ranks]
        if not any(map(len, behind)):
            return False
        self.drop(np.unique(np.concatenate(behind)))
        self.refresh()
        return True

    def count(self, first: int, counts: npt.NDArray[np.uint32] | Numbers) -> None:
        """Add to `counts` how many atoms there are of each frame from `first` on."""
        for one in self._ranks:
            low, high = np.searchsorted(one.numbers, [first, first + len(counts)])
            counts[one.numbers[low:high] - first] += one.atoms[low:high].astype(counts.dtype)

    def having(self, number: int) -> list[int]:
        """Return the ranks that have pushed a slice of a frame."""
        found = []
        for one in self._ranks:
            at = np.searchsorted(one.numbers, number)
            if at < len(one.numbers) and one.numbers[at] == number:
                found.append(one.rank)
        return found

    def read(self, numbers: Numbers) -> Iterator[Slice | tuple[int, int]]:
        """Read all slices of some frames, ascending, rank by rank, neighbours together.

        Of one that cannot be read, rank and frame number are given.
        """
        for one in self._ranks:
            wanted = np.intersect1d(numbers, one.numbers, assume_unique=True)
            for number, found in zip(wanted, one.dataset.read_slices(wanted), strict=True):
                yield (one.rank, int(number)) if found is None else Slice(one.rank, *found)

    def drop(self, numbers: Numbers) -> None:
        """Drop all slices of some frames, durably, and delete segments in which none is left."""
        for one in self._ranks:
            gone = np.intersect1d(numbers, one.numbers, assume_unique=True)
            if len(gone):
                one.dataset.drop(gone, native=True)
                one.dataset.refresh()
                _sweep(one.dataset)


def _sweep(dataset: Dataset) -> None:
    """Delete the oldest segments that hold nothing any more.

    Only those before all that hold something: a later one may say what is dropped from an earlier one. Where two were
    begun at one moment their order may be another, and slices come back: they are dropped again, as their frame is
    there.
    """
    for segment in sorted(dataset.segments(), key=lambda one: one["id"]):
        if segment["frames"] or segment["busy"]:
            return
        try:
            dataset.store.evict(dataset.path.name, segment["id"], native=True)
        except (StoreBusyError, StoreNotFoundError):
            return


def _all_numbers(dataset: Dataset) -> Numbers:
    return np.asarray(dataset.native.to_array(), dtype=np.int64) if dataset.native else np.empty(0, np.int64)


def find_slices(store: Store, name: str) -> dict[Kind, Held]:
    """Return what a store has of the slices of a simulation, by kind."""
    found: dict[Kind, Held] = {}
    for generation in store.generations(name + SUFFIX):
        told = _GENERATION.match(generation)
        if told is None or not 0 < int(told[2]) < 1 << 32:
            continue
        try:
            dataset = store.dataset(name + SUFFIX, generation, create=False)
        except StoreNotFoundError:  # deleted meanwhile
            continue
        kind = Kind(generation[told.end() :], int(told[2]), told[3])
        found.setdefault(kind, Held()).add(int(told[1]), dataset)
    return found


def names_with_slices(store: Store, names: Sequence[str]) -> list[str]:
    """Return those of some datasets' names of which a store has slices."""
    return [name for name in names if store.generations(name + SUFFIX)]
