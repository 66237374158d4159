"""Slices in a node's store: `find_slices()` finds those of a simulation, `HeldSlices` reads those of one kind.

The slices of each rank form a dataset. Its name is the simulation's with `SUFFIX` appended; its generation contains the
rank and the launch (``native/net/pushing/slices.c``). A slice is a frame with some of the atoms. Slices of equal
`SliceKind` belong together. `Followed` lists the launches after one; it is attached to that launch's slices, as those
of later launches may be gone.
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
#: Name of the attachment that lists later launches.
FOLLOWED = "followed"
_LINE = re.compile(rb"([0-9a-f]{16}) (\d{1,18}) (\d{1,18})", re.ASCII)


@dataclass(frozen=True)
class Since:
    """Start of a later launch."""

    frame: int  # first frame
    second: int  # when it began, or was first known, on this node


#: Later launches by `SliceKind.launch`.
Followed = Mapping[bytes, Since]


def merge(*all_known: Followed) -> Followed:
    """Merge known launches; keep the lowest frame and second of each."""
    merged: dict[bytes, Since] = {}
    for launches in all_known:
        for launch, since in launches.items():
            earlier = merged.get(launch, since)
            merged[launch] = Since(min(earlier.frame, since.frame), min(earlier.second, since.second))
    return merged


def later_launches(dataset: Dataset) -> Followed:
    """Return the known launches after the one that pushed these slices."""
    lines = (_LINE.fullmatch(line) for line in (dataset.attachment(FOLLOWED) or b"").splitlines())
    return merge(*({match[1]: Since(int(match[2]), int(match[3]))} for match in lines if match is not None))


def remember(datasets: Sequence[Dataset], launches: Followed) -> None:
    """Attach later launches durably to the slices of a launch: datasets of any ranks in one store."""
    if not launches or all(merge(earlier := later_launches(dataset), launches) == earlier for dataset in datasets):
        return
    with datasets[0].store.locked():  # other processes may attach other launches
        for dataset in datasets:
            merged = merge(earlier := later_launches(dataset), launches)
            if merged == earlier:
                continue
            lines = (b"%s %d %d\n" % (launch, since.frame, since.second) for launch, since in sorted(merged.items()))
            try:
                dataset.attach(FOLLOWED, b"".join(lines))
                _sync(dataset)
            except StoreSystemError:
                if dataset.place() is not None:  # else the slices were deleted
                    raise


def _sync(dataset: Dataset) -> None:
    """Sync the directory of a dataset to disk."""
    try:
        directory = os.open(dataset.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise StoreSystemError(f"{dataset.path}: {error.strerror}") from None


def set_aside(dataset: Dataset, numbers: Numbers, launches: Followed) -> tuple[Numbers, Numbers]:
    """Split ascending slices into the valid ones and those superseded by a later launch."""
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
    """Return the seconds in which the segments of slices were begun; all 0 if all were begun before `since`."""
    last = max((segment["id"] >> 32 for segment in dataset.segments() if segment["frames"]), default=0)
    if last < since:
        return np.zeros(len(numbers), np.int64)
    return np.array([0 if location is None else location[0] >> 32 for location in dataset.locate(numbers)], np.int64)


SUFFIX = SLICES_SUFFIX
_GENERATION = re.compile(rb"slices of rank (\d{1,18}), (\d{1,10}) atoms, launch ([0-9a-f]{16})\n", re.ASCII)


@dataclass(frozen=True, order=True)
class SliceKind:
    """Slices that belong together: generation of the frames' dataset, number of atoms, and launch."""

    generation: bytes
    n_atoms: int
    launch: bytes

    def is_same_dataset(self, other: SliceKind) -> bool:
        """Tell whether the other's frames belong to the same dataset, from any launch."""
        return (self.generation, self.n_atoms) == (other.generation, other.n_atoms)


def parse_generation(generation: bytes) -> tuple[int, SliceKind] | None:
    """Return the rank and kind of slices from their dataset's generation; None if it is not one of slices."""
    match = _GENERATION.match(generation)
    if match is None or not 0 < int(match[2]) < 1 << 32:
        return None
    return int(match[1]), SliceKind(generation[match.end() :], int(match[2]), match[3])


def names_with_slices(store: Store, names: Sequence[str]) -> list[str]:
    """Return the dataset names of which a store has slices."""
    return [name for name in names if store.generations(name + SUFFIX)]


_AT_ONCE = 1 << 16
#: A segment is large if it exceeds the largest one's size divided by this.
LARGE_SEGMENT_PART = 4
#: Rounds of dropping slices that reappear when segments are deleted; the last one deletes no segment.
MAX_SWEEPS = 3


@dataclass(frozen=True)
class Slice:
    """Some atoms of a frame; valid until the next slice is read."""

    rank: int  # process of the simulation that pushed it
    frame: RawFrame  # number, time, box, and the vectors of these atoms
    ids: npt.NDArray[np.uint32]  # atom numbers, uint32 (n,), ascending


@dataclass
class RankSlices:
    """Slices pushed by one rank: ascending frame numbers and the number of atoms of each."""

    rank: int
    dataset: Dataset
    numbers: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    drop_lock: threading.Lock = field(default_factory=threading.Lock)
    atoms: npt.NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))

    aside: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    dropped: list[Numbers] = field(default_factory=list)

    def drop(self, numbers: Numbers) -> None:
        """Drop slices durably and delete empty segments."""
        self.dropped.append(numbers)
        for sweeps_left in reversed(range(MAX_SWEEPS)):
            self.dataset.drop(numbers, native=True)
            self.dataset.refresh()
            if not sweeps_left or not _sweep(self.dataset):
                return
            # A deleted segment may have recorded drops of slices in other segments: drop these again.
            self.dataset.refresh()
            all_dropped = np.unique(np.concatenate(self.dropped))
            numbers = all_dropped[self.dataset.holds(all_dropped, native=True)]
            if not len(numbers):
                return

    def select(self, numbers: Numbers) -> Numbers:
        """Return the frames, of ascending `numbers`, that have a slice."""
        if not len(numbers):
            return numbers
        first, last = np.searchsorted(self.numbers, [numbers[0], numbers[-1] + 1])
        return np.intersect1d(numbers, self.numbers[first:last], assume_unique=True)


class HeldSlices:
    """Slices of one kind in a store, as of the last `refresh`."""

    def __init__(self, ranks: Sequence[RankSlices] = ()) -> None:
        self._ranks = list(ranks)
        self._launches: Followed = {}
        self._known_launches: Followed = {}

    def add(self, rank: int, dataset: Dataset) -> None:
        """Add one rank's slices; if all of them have become frames, only the launches known to follow."""
        if dataset.native:
            self._ranks.append(RankSlices(rank, dataset))
        else:
            self._known_launches = merge(self._known_launches, later_launches(dataset))

    def part(self, index: int, n_parts: int) -> HeldSlices:
        """Return the slices of the ranks with rank % n_parts == index."""
        return HeldSlices([item for item in self._ranks if item.rank % n_parts == index])

    @property
    def datasets(self) -> list[Dataset]:
        """Datasets of all ranks."""
        return [item.dataset for item in self._ranks]

    @property
    def ranks(self) -> list[int]:
        """Ranks that have pushed slices here, ascending."""
        return sorted(item.rank for item in self._ranks)

    def refresh(self, *, atoms: bool = True) -> None:
        """Take in slices pushed or dropped since; known slices are not queried again."""
        for item in self._ranks:
            item.dataset.refresh()
            numbers = _all_numbers(item.dataset)
            numbers, item.aside = set_aside(item.dataset, numbers, self._launches)
            if atoms:
                item.atoms = _count_atoms(item, numbers)
            item.numbers = numbers

    def first_write(self) -> tuple[int, int] | None:
        """Return the second in which the oldest segment was begun, and the first frame; None without slices.

        Dropping the oldest slices first preserves the order of launches: one begins after another has ended.
        """
        firsts = [int(item.numbers[0]) for item in self._ranks if len(item.numbers)]
        segments = [item["id"] for dataset in self.datasets for item in dataset.segments()]
        return (min(segments) >> 32, min(firsts)) if firsts and segments else None

    @property
    def last_second(self) -> int:
        """Last second in which a segment was begun; 0 without slices."""
        return max((segment["id"] >> 32 for dataset in self.datasets for segment in dataset.segments()), default=0)

    @property
    def later_launches(self) -> Followed:
        """Launches known to follow this one."""
        return merge(self._known_launches, *(later_launches(dataset) for dataset in self.datasets))

    def remember(self, launches: Followed) -> None:
        """Record later launches durably, for when none of their slices is left."""
        remember(self.datasets, launches)

    def leave_aside(self, launches: Followed) -> None:
        """Ignore slices that later launches supersede, from the next `refresh` on; only `aside` lists them."""
        self._launches = launches

    @property
    def aside(self) -> Numbers:
        """Frames with slices that are left aside, ascending."""
        arrays = [item.aside for item in self._ranks]
        return np.unique(np.concatenate(arrays)) if arrays else np.empty(0, np.int64)

    @property
    def frames(self) -> BitMap64:
        """Frames with slices, except those left aside."""
        return BitMap64.union(BitMap64(), *(own.dataset.native for own in self._ranks)) - BitMap64(self.aside.tolist())

    def count_atoms(self, numbers: range | Numbers, kind: npt.DTypeLike = np.int64) -> npt.NDArray[Any]:
        """Return the number of atoms of each frame; `numbers` are ascending, a range is contiguous."""
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
        """Return the ranks that have a slice of a frame."""
        return [item.rank for item in self._ranks if len(item.select(np.array([number])))]

    def read(self, numbers: Numbers) -> Iterator[Slice | tuple[int, int]]:
        """Read all slices of ascending frames, rank by rank, contiguous ones together.

        Yield rank and frame number of a slice that cannot be read.
        """
        for item in self._ranks:
            needed = item.select(numbers)
            for number, content in zip(needed, item.dataset.read_slices(needed), strict=True):
                yield (item.rank, int(number)) if content is None else Slice(item.rank, *content)

    def gather(self, gatherer: GatherHandle, numbers: Numbers) -> dict[int, int]:
        """Gather all slices of a round's frames; return frame number and rank of slices that cannot be read."""
        unread: dict[int, int] = {}
        for item in self._ranks:
            needed = item.select(numbers)
            if len(needed):
                unread.update((number, item.rank) for number in item.dataset.gather_slices(gatherer, item.rank, needed))
        return unread

    def drop(self, numbers: Numbers) -> None:
        """Drop all slices of some frames durably and delete empty segments."""
        for item in self._ranks:
            dropped = item.select(numbers)
            if len(item.aside):
                dropped = np.union1d(dropped, np.intersect1d(item.aside, numbers))
            if len(dropped):
                with item.drop_lock:
                    item.drop(dropped)


def _count_atoms(rank_slices: RankSlices, numbers: Numbers) -> npt.NDArray[np.uint32]:
    """Return the numbers of atoms of slices; query the store only for new ones."""
    atoms = np.zeros(len(numbers), dtype=np.uint32)
    _, known_rows, cached_rows = np.intersect1d(numbers, rank_slices.numbers, assume_unique=True, return_indices=True)
    atoms[known_rows] = rank_slices.atoms[cached_rows]
    for start in range(0, len(fresh := np.delete(np.arange(len(numbers)), known_rows)), _AT_ONCE):
        block = fresh[start : start + _AT_ONCE]
        atoms[block] = rank_slices.dataset.atoms(numbers[block])
    return atoms


def _sweep(dataset: Dataset) -> bool:
    """Delete empty segments; return whether there were any.

    A small one may only record drops from earlier segments, so it is deleted after these. If it is deleted too early,
    slices reappear; whoever sees them drops them again, as their frame exists.
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
    """Return the slices of a simulation in a store by kind; `part` as in `HeldSlices.part`."""
    slices: dict[SliceKind, HeldSlices] = {}
    for generation in store.generations(name + SUFFIX):
        parsed = parse_generation(generation)
        if parsed is None or parsed[0] % part[1] != part[0]:
            continue
        rank, kind = parsed
        try:
            dataset = store.dataset(name + SUFFIX, generation, create=False)
        except StoreNotFoundError:  # deleted in the meantime
            continue
        if dataset.native or past:  # a restart has its own datasets
            slices.setdefault(kind, HeldSlices()).add(rank, dataset)
    return slices
