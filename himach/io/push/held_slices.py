"""Slices in a node's store: `find_slices()`, by rank; `HeldSlices`, what they have of each frame.

The slices of one rank of a simulation are a dataset of their own, whose name is the simulation's with `SUFFIX` behind
it, and whose generation tells the rank and the launch. In it a slice is a frame that has some atoms; see
``native/net/pushing/slices.c``.

Which slices belong together: `SliceKind`, by the generation of a rank's dataset (as in ``net/pushing/slices.c``).

By which launches another is followed: `Followed`, kept beside its slices, as those of the later ones may be gone.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from himach.frame import RawFrame
from himach.io.store.bodhi import SLICES_SUFFIX, GatherHandle
from himach.io.store.store import Dataset, Store, StoreBusyError, StoreNotFoundError, StoreSystemError

Numbers = npt.NDArray[np.int64]
#: Name of the attachment.
FOLLOWED = "followed"
_LINE = re.compile(rb"([0-9a-f]{16}) (\d{1,18}) (\d{1,18})", re.ASCII)


@dataclass(frozen=True)
class Since:
    """From when on there is a later launch."""

    frame: int  # its first
    second: int  # in which it began on this node, or was first known of there


#: The later launches, as `SliceKind.launch` names them.
Followed = Mapping[bytes, Since]


def merge(*all_known: Followed) -> Followed:
    """Return what all of these know; of a launch the lowest frame and second that any has."""
    merged: dict[bytes, Since] = {}
    for launches in all_known:
        for launch, since in launches.items():
            earlier = merged.get(launch, since)
            merged[launch] = Since(min(earlier.frame, since.frame), min(earlier.second, since.second))
    return merged


def later_launches(dataset: Dataset) -> Followed:
    """Return what is known of the launch that has pushed these slices."""
    lines = (_LINE.fullmatch(line) for line in (dataset.attachment(FOLLOWED) or b"").splitlines())
    return merge(*({match[1]: Since(int(match[2]), int(match[3]))} for match in lines if match is not None))


def remember(datasets: Sequence[Dataset], launches: Followed) -> None:
    """Attach to the slices of a launch, of any ranks of one store, by which it is followed; it is on disk then."""
    if not launches or all(merge(earlier := later_launches(dataset), launches) == earlier for dataset in datasets):
        return
    with datasets[0].store.locked():  # others may do it, too, and know of others
        for dataset in datasets:
            merged = merge(earlier := later_launches(dataset), launches)
            if merged == earlier:
                continue
            lines = (b"%s %d %d\n" % (launch, since.frame, since.second) for launch, since in sorted(merged.items()))
            try:
                dataset.attach(FOLLOWED, b"".join(lines))
                _sync(dataset)
            except StoreSystemError:
                if dataset.place() is not None:  # else somebody has deleted the slices
                    raise


def _sync(dataset: Dataset) -> None:
    """Have the names of a dataset's files on disk."""
    try:
        directory = os.open(dataset.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise StoreSystemError(f"{dataset.path}: {error.strerror}") from None


def set_aside(dataset: Dataset, numbers: Numbers, launches: Followed) -> tuple[Numbers, Numbers]:
    """Return of slices, ascending, those that are meant, and those that were left behind by a later launch."""
    if not launches:
        return numbers, numbers[:0]
    cut = np.searchsorted(numbers, min(since.frame for since in launches.values()))
    later = numbers[cut:]
    begin_seconds = _begin_seconds(dataset, later, min(since.second for since in launches.values()))
    superseded = np.zeros(len(later), np.bool_)
    for since in launches.values():
        superseded |= (later >= since.frame) & (begin_seconds < since.second)
    return np.concatenate([numbers[:cut], later[~superseded]]), later[superseded]


def _begin_seconds(dataset: Dataset, numbers: Numbers, since: int) -> Numbers:
    """Return the seconds in which the segments of slices were begun, 0 for all if that was before `since`."""
    last = max((segment["id"] >> 32 for segment in dataset.segments() if segment["frames"]), default=0)
    if last < since:
        return np.zeros(len(numbers), np.int64)
    return np.array([0 if location is None else location[0] >> 32 for location in dataset.locate(numbers)], np.int64)


SUFFIX = SLICES_SUFFIX
_GENERATION = re.compile(rb"slices of rank (\d{1,18}), (\d{1,10}) atoms, launch ([0-9a-f]{16})\n", re.ASCII)


@dataclass(frozen=True, order=True)
class SliceKind:
    """Frames that slices make: the generation of their dataset, their atoms, and the launch that has pushed them."""

    generation: bytes
    n_atoms: int
    launch: bytes

    def is_same_dataset(self, other: SliceKind) -> bool:
        """Tell whether the other's frames are those of this one's dataset, whoever launched them."""
        return (self.generation, self.n_atoms) == (other.generation, other.n_atoms)


def parse_generation(generation: bytes) -> tuple[int, SliceKind] | None:
    """Return the rank and the kind of slices by the generation of their dataset; None: it is none of slices."""
    match = _GENERATION.match(generation)
    if match is None or not 0 < int(match[2]) < 1 << 32:
        return None
    return int(match[1]), SliceKind(generation[match.end() :], int(match[2]), match[3])


def names_with_slices(store: Store, names: Sequence[str]) -> list[str]:
    """Return those of some datasets' names of which a store has slices."""
    return [name for name in names if store.generations(name + SUFFIX)]


_AT_ONCE = 1 << 16
#: Segments of at least this part of the largest one's size are large.
LARGE_SEGMENT_PART = 4
#: How often slices are dropped that come back when segments are deleted; at last none is.
MAX_SWEEPS = 3


@dataclass(frozen=True)
class Slice:
    """Some atoms of a frame, until the next is read."""

    rank: int  # which process of the simulation has pushed it
    frame: RawFrame  # number, time, box, and the vectors of these atoms
    ids: npt.NDArray[np.uint32]  # uint32 (n,): which atoms they are, ascending


@dataclass
class RankSlices:
    """What one rank of a simulation has pushed: ascending frame numbers, and atoms of each."""

    rank: int
    dataset: Dataset
    numbers: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    drop_lock: threading.Lock = field(default_factory=threading.Lock)
    atoms: npt.NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))

    aside: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    dropped: list[Numbers] = field(default_factory=list)

    def drop(self, numbers: Numbers) -> None:
        """Drop slices durably, and delete segments in which none is left."""
        self.dropped.append(numbers)
        for sweeps_left in reversed(range(MAX_SWEEPS)):
            self.dataset.drop(numbers, native=True)
            self.dataset.refresh()
            if not sweeps_left or not _sweep(self.dataset):
                return
            # What a segment said that is deleted, namely that slices of others are dropped, has to be said again.
            self.dataset.refresh()
            all_dropped = np.unique(np.concatenate(self.dropped))
            numbers = all_dropped[self.dataset.holds(all_dropped, native=True)]
            if not len(numbers):
                return

    def select(self, numbers: Numbers) -> Numbers:
        """Return those of some ascending frames of which there is a slice."""
        if not len(numbers):
            return numbers
        first, last = np.searchsorted(self.numbers, [numbers[0], numbers[-1] + 1])
        return np.intersect1d(numbers, self.numbers[first:last], assume_unique=True)


class HeldSlices:
    """The slices of one kind that a store has, as of the last `refresh`."""

    def __init__(self, ranks: Sequence[RankSlices] = ()) -> None:
        self._ranks = list(ranks)
        self._launches: Followed = {}
        self._known_launches: Followed = {}

    def add(self, rank: int, dataset: Dataset) -> None:
        """Add what one rank has pushed; if all has become frames, only what is known of its launch."""
        if dataset.native:
            self._ranks.append(RankSlices(rank, dataset))
        else:
            self._known_launches = merge(self._known_launches, later_launches(dataset))

    def part(self, index: int, n_parts: int) -> HeldSlices:
        """Return what some of the ranks have pushed: those whose turn is `index` of `n_parts`."""
        return HeldSlices([item for item in self._ranks if item.rank % n_parts == index])

    @property
    def datasets(self) -> list[Dataset]:
        """Those of the ranks."""
        return [item.dataset for item in self._ranks]

    @property
    def ranks(self) -> list[int]:
        """The ranks that have pushed here."""
        return sorted(item.rank for item in self._ranks)

    def refresh(self, *, atoms: bool = True) -> None:
        """Take in what was pushed, or dropped, since; of what is known already nothing is asked again."""
        for item in self._ranks:
            item.dataset.refresh()
            numbers = _all_numbers(item.dataset)
            numbers, item.aside = set_aside(item.dataset, numbers, self._launches)
            if atoms:
                item.atoms = _count_atoms(item, numbers)
            item.numbers = numbers

    def first_write(self) -> tuple[int, int] | None:
        """Return the second in which the oldest slice was written, and the first frame; None without slices.

        What is old is dropped first, which leaves the order of launches as it was: one begins when another has ended.
        """
        firsts = [int(item.numbers[0]) for item in self._ranks if len(item.numbers)]
        segments = [item["id"] for dataset in self.datasets for item in dataset.segments()]
        return (min(segments) >> 32, min(firsts)) if firsts and segments else None

    @property
    def last_second(self) -> int:
        """The last second in which a segment was begun; 0 without slices."""
        return max((segment["id"] >> 32 for dataset in self.datasets for segment in dataset.segments()), default=0)

    @property
    def later_launches(self) -> Followed:
        """By which launches this one is known to be followed, by now."""
        return merge(self._known_launches, *(later_launches(dataset) for dataset in self.datasets))

    def remember(self, launches: Followed) -> None:
        """Have it known, durably, also when no slice of the later launches is left."""
        remember(self.datasets, launches)

    def leave_aside(self, launches: Followed) -> None:
        """Know nothing any more of slices that later launches push anew, but that they are `aside`."""
        self._launches = launches

    @property
    def aside(self) -> Numbers:
        """The frames of which slices are left aside, ascending."""
        arrays = [item.aside for item in self._ranks]
        return np.unique(np.concatenate(arrays)) if arrays else np.empty(0, np.int64)

    @property
    def frames(self) -> BitMap64:
        """The frames of which there is a slice that is not left aside."""
        return BitMap64.union(BitMap64(), *(own.dataset.native for own in self._ranks)) - BitMap64(self.aside.tolist())

    def count_atoms(self, numbers: range | Numbers, kind: npt.DTypeLike = np.int64) -> npt.NDArray[Any]:
        """Return how many atoms there are of each of some frames, ascending; a range is of neighbours."""
        counts = np.zeros(len(numbers), kind)
        for item in self._ranks if len(numbers) else ():
            low, high = np.searchsorted(item.numbers, [numbers[0], numbers[-1] + 1])
            own, atoms = item.numbers[low:high], item.atoms[low:high]
            if isinstance(numbers, range):
                together = len(own) and own[-1] - own[0] == len(own) - 1
                counts[slice(own[0] - numbers[0], own[-1] - numbers[0] + 1) if together else own - numbers[0]] += atoms
                continue
            places = np.searchsorted(numbers, own)
            is_known = numbers[places] == own
            counts[places[is_known]] += atoms[is_known]
        return counts

    def ranks_with(self, number: int) -> list[int]:
        """Return the ranks that have pushed a slice of a frame."""
        return [item.rank for item in self._ranks if len(item.select(np.array([number])))]

    def read(self, numbers: Numbers) -> Iterator[Slice | tuple[int, int]]:
        """Read all slices of some frames, ascending, rank by rank, neighbours together.

        Of one that cannot be read, rank and frame number are given.
        """
        for item in self._ranks:
            needed = item.select(numbers)
            for number, content in zip(needed, item.dataset.read_slices(needed), strict=True):
                yield (item.rank, int(number)) if content is None else Slice(item.rank, *content)

    def gather(self, gatherer: GatherHandle, numbers: Numbers) -> dict[int, int]:
        """Read all slices of the frames of a round; of those that cannot be read, return frame number and rank."""
        unread: dict[int, int] = {}
        for item in self._ranks:
            needed = item.select(numbers)
            if len(needed):
                unread.update((number, item.rank) for number in item.dataset.gather_slices(gatherer, item.rank, needed))
        return unread

    def drop(self, numbers: Numbers) -> None:
        """Drop all slices of some frames, durably, and delete segments in which none is left."""
        for item in self._ranks:
            dropped = item.select(numbers)
            if len(item.aside):
                dropped = np.union1d(dropped, np.intersect1d(item.aside, numbers))
            if len(dropped):
                with item.drop_lock:
                    item.drop(dropped)


def _count_atoms(rank_slices: RankSlices, numbers: Numbers) -> npt.NDArray[np.uint32]:
    """Return the atoms of slices; the store is asked of those that are not known yet."""
    atoms = np.zeros(len(numbers), dtype=np.uint32)
    _, known_rows, cached_rows = np.intersect1d(numbers, rank_slices.numbers, assume_unique=True, return_indices=True)
    atoms[known_rows] = rank_slices.atoms[cached_rows]
    for start in range(0, len(fresh := np.delete(np.arange(len(numbers)), known_rows)), _AT_ONCE):
        block = fresh[start : start + _AT_ONCE]
        atoms[block] = rank_slices.dataset.atoms(numbers[block])
    return atoms


def _sweep(dataset: Dataset) -> bool:
    """Delete segments that hold nothing any more; return whether there were any.

    A small one, which may have nothing but what was dropped from others, goes after these. What goes too soon is made
    up for by whoever sees it: slices come back, and are dropped again, as their frame is there.
    """
    segments = sorted(dataset.segments(), key=lambda item: item["id"])
    large = max((item["bytes"] for item in segments), default=0) // LARGE_SEGMENT_PART
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
    """Return what a store has of the slices of a simulation, by kind; `part` as that of `HeldSlices.part`."""
    slices: dict[SliceKind, HeldSlices] = {}
    for generation in store.generations(name + SUFFIX):
        parsed = parse_generation(generation)
        if parsed is None or parsed[0] % part[1] != part[0]:
            continue
        rank, kind = parsed
        try:
            dataset = store.dataset(name + SUFFIX, generation, create=False)
        except StoreNotFoundError:  # deleted meanwhile
            continue
        if dataset.native or past:  # a restart has datasets of its own
            slices.setdefault(kind, HeldSlices()).add(rank, dataset)
    return slices
