"""Slices in a node's store: `find_slices()`, by rank; `HeldSlices`, what they have of each frame.

The slices of one rank of a simulation are a dataset of their own, whose name is the simulation's with `SUFFIX` behind
it, and whose generation tells the rank and the launch. In it a slice is a frame that has some atoms; see
``native/net/pushing/slices.c``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.frame import RawFrame
from himach.io.push.launches import Followed, known, merged, remember, set_aside
from himach.io.push.slice_kinds import SUFFIX, SliceKind, told_by
from himach.io.store.bodhi import GatherHandle
from himach.io.store.store import Dataset, Store, StoreBusyError, StoreNotFoundError

__all__ = ["HeldSlices", "RankSlices", "Slice", "find_slices"]

Numbers = npt.NDArray[np.int64]

_AT_ONCE = 1 << 16
#: Segments of at least this part of the largest one's size are large.
LARGE_SEGMENT_PART = 4
#: How often slices are dropped that come back when segments are deleted; at last none is.
MAX_SWEEPS = 3


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
class RankSlices:
    """What one rank of a simulation has pushed: ascending frame numbers, and atoms of each."""

    rank: int
    dataset: Dataset
    numbers: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    dropping: threading.Lock = field(default_factory=threading.Lock)
    atoms: npt.NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))

    aside: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    dropped: list[Numbers] = field(default_factory=list)

    def drop(self, numbers: Numbers) -> None:
        """Drop slices durably, and delete segments in which none is left."""
        self.dropped.append(numbers)
        for left in reversed(range(MAX_SWEEPS)):
            self.dataset.drop(numbers, native=True)
            self.dataset.refresh()
            if not left or not _sweep(self.dataset):
                return
            # What a segment said that is deleted, namely that slices of others are dropped, has to be said again.
            self.dataset.refresh()
            ever = np.unique(np.concatenate(self.dropped))
            numbers = ever[self.dataset.holds(ever, native=True)]
            if not len(numbers):
                return

    def among(self, numbers: Numbers) -> Numbers:
        """Return those of some ascending frames of which there is a slice."""
        if not len(self.numbers) or not len(numbers):
            return numbers[:0]
        first, last = np.searchsorted(self.numbers, [numbers[0], numbers[-1] + 1])
        own = self.numbers[first:last]
        if len(own) == len(numbers) and np.array_equal(own, numbers):
            return numbers
        if not len(own):
            return numbers[:0]
        there: Numbers = numbers[own[np.minimum(np.searchsorted(own, numbers), len(own) - 1)] == numbers]
        return there


class HeldSlices:
    """The slices of one kind that a store has, as of the last `refresh`."""

    def __init__(self, ranks: Sequence[RankSlices] = ()) -> None:
        self._ranks = list(ranks)
        self._followed: Followed = {}
        self._was_known: Followed = {}

    def add(self, rank: int, dataset: Dataset) -> None:
        """Add what one rank has pushed; if all has become frames, only what is known of its launch."""
        if dataset.native:
            self._ranks.append(RankSlices(rank, dataset))
        else:
            self._was_known = merged(self._was_known, known(dataset))

    def part(self, index: int, of: int) -> HeldSlices:
        """Return what some of the ranks have pushed: those whose turn is `index` of `of`."""
        return HeldSlices([one for one in self._ranks if one.rank % of == index])

    @property
    def datasets(self) -> list[Dataset]:
        """Those of the ranks."""
        return [one.dataset for one in self._ranks]

    @property
    def ranks(self) -> list[int]:
        """The ranks that have pushed here."""
        return sorted(one.rank for one in self._ranks)

    def refresh(self, *, atoms: bool = True) -> None:
        """Take in what was pushed, or dropped, since; of what is known already nothing is asked again.

        Without `atoms`, nothing can be counted.
        """
        for one in self._ranks:
            one.dataset.refresh()
            numbers = _all_numbers(one.dataset)
            numbers, one.aside = set_aside(one.dataset, numbers, self._followed)
            if atoms:
                one.atoms = _count_atoms(one, numbers)
            one.numbers = numbers

    def began(self) -> tuple[int, int] | None:
        """Return the second in which the oldest slice was written, and the first frame; None without slices.

        What is old is dropped first, which leaves the order of launches as it was: one begins when another has ended.
        """
        firsts = [int(one.numbers[0]) for one in self._ranks if len(one.numbers)]
        segments = [one["id"] for dataset in self.datasets for one in dataset.segments()]
        return (min(segments) >> 32, min(firsts)) if firsts and segments else None

    @property
    def last_second(self) -> int:
        """The last second in which a segment was begun; 0 without slices."""
        return max((one["id"] >> 32 for dataset in self.datasets for one in dataset.segments()), default=0)

    @property
    def known(self) -> Followed:
        """By which launches this one is known to be followed, by now."""
        return merged(self._was_known, *(known(dataset) for dataset in self.datasets))

    def remember(self, followed: Followed) -> None:
        """Have it known, durably, also when no slice of the later launches is left."""
        remember(self.datasets, followed)

    def leave_aside(self, followed: Followed) -> None:
        """Know nothing any more of slices that later launches push anew, but that they are `aside`."""
        self._followed = followed

    @property
    def aside(self) -> Numbers:
        """The frames of which slices are left aside, ascending."""
        some = [one.aside for one in self._ranks]
        return np.unique(np.concatenate(some)) if some else np.empty(0, np.int64)

    def until(self, low: int, most: int) -> tuple[int, int] | None:
        """Return the first frame from `low` on of which there is a slice, and a later end of at most `most` a rank.

        None if there is none.
        """
        first, end = None, None
        for one in self._ranks:
            at = int(np.searchsorted(one.numbers, low))
            if at < len(one.numbers):
                first = int(one.numbers[at]) if first is None else min(first, int(one.numbers[at]))
                last = int(one.numbers[min(at + most, len(one.numbers)) - 1]) + 1
                cut = at + most < len(one.numbers)
                end = (cut, last) if end is None else _sooner(end, (cut, last))
        return None if first is None or end is None else (first, end[1])

    def numbers(self, low: int, high: int) -> Numbers:
        """Return the frames from `low` to `high` - 1 of which there is a slice, ascending."""
        some = [one.numbers[slice(*np.searchsorted(one.numbers, [low, high]))] for one in self._ranks]
        return np.unique(np.concatenate(some)) if len(some) > 1 else some[0] if some else np.empty(0, np.int64)

    def count(self, frames: range, counts: npt.NDArray[Any]) -> None:
        """Add to `counts` how many atoms there are of each of some frames, `frames` ascending; others are passed over.

        Those between two of them are to have no slice.
        """
        first, step = frames.start, frames.step
        for one in self._ranks:
            low, high = np.searchsorted(one.numbers, [first, frames.stop])
            numbers, atoms = one.numbers[low:high], one.atoms[low:high]
            if not len(numbers):
                continue
            begin, last = (int(numbers[0]) - first) // step, (int(numbers[-1]) - first) // step
            if last - begin == len(numbers) - 1:
                counts[begin : last + 1] += atoms
            else:
                counts[(numbers - first) // step] += atoms.astype(counts.dtype)

    def count_of(self, numbers: Numbers) -> Numbers:
        """Return how many atoms there are of each of some frames, ascending."""
        counts = np.zeros(len(numbers), np.int64)
        for one in self._ranks:
            low, high = np.searchsorted(one.numbers, [numbers[0], numbers[-1] + 1]) if len(numbers) else (0, 0)
            at = np.searchsorted(numbers, one.numbers[low:high])
            known = numbers[np.minimum(at, len(numbers) - 1)] == one.numbers[low:high] if high > low else at > 0
            counts[at[known]] += one.atoms[low:high][known]
        return counts

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
            wanted = one.among(numbers)
            for number, found in zip(wanted, one.dataset.read_slices(wanted), strict=True):
                yield (one.rank, int(number)) if found is None else Slice(one.rank, *found)

    def gather(self, into: GatherHandle, numbers: Numbers) -> dict[int, int]:
        """Read all slices of the frames of a round; of those that cannot be read, return frame number and rank."""
        unread: dict[int, int] = {}
        for one in self._ranks:
            wanted = one.among(numbers)
            if len(wanted):
                unread.update((number, one.rank) for number in one.dataset.gather_slices(into, one.rank, wanted))
        return unread

    def drop(self, numbers: Numbers) -> None:
        """Drop all slices of some frames, durably, and delete segments in which none is left."""
        for one in self._ranks:
            gone = one.among(numbers)
            if len(one.aside):
                gone = np.union1d(gone, np.intersect1d(one.aside, numbers))
            if len(gone):
                with one.dropping:
                    one.drop(gone)


def _sooner(a: tuple[bool, int], b: tuple[bool, int]) -> tuple[bool, int]:
    """Return of two ends the sooner one of those that cut something off, else the later one."""
    return (a[0] or b[0], min(one[1] for one in (a, b) if one[0]) if a[0] or b[0] else max(a[1], b[1]))


def _count_atoms(one: RankSlices, numbers: Numbers) -> npt.NDArray[np.uint32]:
    """Return the atoms of slices; the store is asked of those that are not known yet."""
    known = np.isin(numbers, one.numbers, assume_unique=True) if len(one.numbers) else np.zeros(len(numbers), bool)
    atoms = np.zeros(len(numbers), dtype=np.uint32)
    if known.any():
        atoms[known] = one.atoms[np.searchsorted(one.numbers, numbers[known])]
    for begin in range(0, len(fresh := np.flatnonzero(~known)), _AT_ONCE):
        some = fresh[begin : begin + _AT_ONCE]
        atoms[some] = one.dataset.atoms(numbers[some])
    return atoms


def _sweep(dataset: Dataset) -> bool:
    """Delete segments that hold nothing any more; return whether there were any.

    A small one, which may have nothing but what was dropped from others, goes after these. What goes too soon is made
    up for by whoever sees it: slices come back, and are dropped again, as their frame is there.
    """
    segments = sorted(dataset.segments(), key=lambda one: one["id"])
    large = max((one["bytes"] for one in segments), default=0) // LARGE_SEGMENT_PART
    first, any_gone = True, False
    for segment in segments:
        if segment["frames"] or segment["busy"]:
            first = False
        elif first or segment["bytes"] > large:
            try:
                dataset.store.evict(dataset.path.name, segment["id"], native=True, empty=True)
                any_gone = True
            except (StoreBusyError, StoreNotFoundError):
                first = False
    return any_gone


def _all_numbers(dataset: Dataset) -> Numbers:
    return np.asarray(dataset.native.to_array(), dtype=np.int64) if dataset.native else np.empty(0, np.int64)


def find_slices(
    store: Store, name: str, part: tuple[int, int] = (0, 1), *, past: bool = False
) -> dict[SliceKind, HeldSlices]:
    """Return what a store has of the slices of a simulation, by kind; of those of some ranks alone (`Held.part`).

    With `past`, kinds are among them of which all slices have become frames; of these, what followed is known.
    """
    found: dict[SliceKind, HeldSlices] = {}
    for generation in store.generations(name + SUFFIX):
        told = told_by(generation)
        if told is None or told[0] % part[1] != part[0]:
            continue
        rank, kind = told
        try:
            dataset = store.dataset(name + SUFFIX, generation, create=False)
        except StoreNotFoundError:  # deleted meanwhile
            continue
        if dataset.native or past:  # a restart has datasets of its own
            found.setdefault(kind, HeldSlices()).add(rank, dataset)
    return found
