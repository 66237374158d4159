"""Slices in a node's store: `find_slices()` finds those of a simulation, `HeldSlices` are those of one launch.

A dataset has the slices of a rank; its generation names rank and launch (``native/net/slices.c``). A launch has a mark
on all nodes, and a number in each store, which is higher for a later one (``native/store/author.c``).
"""

import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from himach.io.frame_source import Numbers, ReadOptions
from himach.io.store.bodhi import SLICES_SUFFIX, GatherHandle
from himach.io.store.store import ALL_OF_SLICES, Dataset, Store, StoreBusyError, StoreNotFoundError, StoreSystemError

#: Name of the attachment with the first frame whose slices a later launch supersedes.
SUPERSEDED = "superseded"

SUFFIX = SLICES_SUFFIX
_GENERATION = re.compile(
    rb"slices of rank (\d{1,18}), (\d{1,10}) atoms, launch (\d{10}), mark ([0-9a-f]{16})\n", re.ASCII
)


@dataclass(frozen=True, order=True)
class SliceKind:
    """Slices that belong together: generation of the frames' dataset, number of atoms, and mark of the launch."""

    generation: bytes
    n_atoms: int
    mark: bytes

    def is_same_dataset(self, other: "SliceKind") -> bool:
        """Tell whether the other's frames belong to the same dataset, from any launch."""
        return (self.generation, self.n_atoms) == (other.generation, other.n_atoms)


def parse_generation(generation: bytes) -> tuple[int, int, SliceKind] | None:
    """Return rank, number of the launch, and kind of slices from their dataset's generation; None if it is another."""
    match = _GENERATION.match(generation)
    if match is None or not 0 < int(match[2]) < 1 << 32:
        return None
    return int(match[1]), int(match[3]), SliceKind(generation[match.end() :], int(match[2]), match[4])


_AT_ONCE = 1 << 16


def _no_numbers() -> Numbers:
    return np.empty(0, np.int64)


@dataclass
class RankSlices:
    """Slices pushed by one rank: ascending frame numbers and the number of atoms of each."""

    rank: int
    dataset: Dataset
    launch: int = 0  # number of the launch in this store
    numbers: Numbers = field(default_factory=_no_numbers)
    atoms: npt.NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))
    aside: Numbers = field(default_factory=_no_numbers)  # frames that a later launch supersedes

    @property
    def superseded(self) -> int | None:
        """First frame whose slices a later launch is known to supersede."""
        text = self.dataset.attachment(SUPERSEDED) or b""
        return int(text) if re.fullmatch(rb"\d{1,18}\n", text) else None

    def supersede(self, first: int) -> None:
        """Record durably that a later launch supersedes the slices from a frame on."""
        if not self._supersedes_more(first):
            return
        with self.dataset.store.locked():  # another process may record an earlier frame
            try:
                if self._supersedes_more(first):
                    self.dataset.attach(SUPERSEDED, b"%d\n" % first)
                    _sync(self.dataset)
            except StoreSystemError:
                if self.dataset.place() is not None:  # else the slices were deleted
                    raise

    def _supersedes_more(self, first: int) -> bool:
        superseded = self.superseded
        return superseded is None or first < superseded

    def refresh(self) -> None:
        """Take in slices pushed or dropped since; those that are superseded go to `aside`."""
        self.dataset.refresh()
        native = self.dataset.native
        numbers = np.asarray(native.to_array(), dtype=np.int64) if native else _no_numbers()
        superseded = self.superseded  # after the list: it is recorded before slices of the later launch are dropped
        end = len(numbers) if superseded is None else int(np.searchsorted(numbers, superseded))
        self.numbers, self.aside = numbers[:end], numbers[end:]

    def drop(self, numbers: Numbers) -> None:
        """Drop slices durably and delete segments without any."""
        self.dataset.drop(numbers, native=True)
        self.dataset.refresh()
        for segment in sorted(self.dataset.segments(), key=lambda item: item["id"]):
            if not segment["frames"] and not segment["busy"]:
                # One that records drops from others is busy, or what it records moves to another.
                with contextlib.suppress(StoreBusyError, StoreNotFoundError):
                    self.dataset.store.evict(self.dataset.path.name, segment["id"], native=True, empty=True)

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
        self._past: list[RankSlices] = []  # all of these have become frames

    def add(self, rank: int, launch: int, dataset: Dataset) -> None:
        """Add one rank's slices of the launch with this number in the store."""
        (self._ranks if dataset.native else self._past).append(RankSlices(rank, dataset, launch))

    @property
    def datasets(self) -> list[Dataset]:
        """Datasets of all ranks."""
        return [item.dataset for item in self._ranks]

    @property
    def ranks(self) -> list[int]:
        """Ranks that have pushed slices here, ascending."""
        return sorted(item.rank for item in self._ranks)

    def refresh(self) -> None:
        """Take in slices pushed or dropped since; known slices are not queried again."""
        for item in self._ranks:
            numbers = item.numbers
            item.refresh()
            item.atoms = _count_atoms(item, numbers)

    @property
    def launch(self) -> int:
        """Number of the launch in this store: of its last start, if several have had its mark."""
        return max(item.launch for item in (*self._ranks, *self._past))

    @property
    def first(self) -> int | None:
        """First frame with a slice of that start; None if there is none, or it is superseded."""
        items = [item for item in self._ranks if item.launch == self.launch and item.superseded is None]
        return min((int(item.numbers[0]) for item in items if len(item.numbers)), default=None)

    @property
    def superseded(self) -> int | None:
        """First frame whose slices a later launch is known to supersede."""
        known = [item.superseded for item in (*self._ranks, *self._past)]
        return min((first for first in known if first is not None), default=None)

    def supersede(self, firsts: Sequence[int | None]) -> None:
        """Record durably that later launches supersede the slices from these frames on."""
        last, restart = self.launch, self.first
        for item in (*self._ranks, *self._past):
            own = [*firsts, restart if item.launch < last and item.superseded is not None else None]
            known = [first for first in own if first is not None]
            if known:
                item.supersede(min(known))

    @property
    def aside(self) -> Numbers:
        """Frames with slices that are left aside, ascending."""
        arrays = [item.aside for item in self._ranks]
        return np.unique(np.concatenate(arrays)) if arrays else _no_numbers()

    @property
    def frames(self) -> BitMap64:
        """Frames with slices, except those left aside."""
        valid = (item.dataset.native - BitMap64(item.aside.tolist()) for item in self._ranks)
        return BitMap64.union(BitMap64(), *valid)

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

    def gather(self, gatherer: GatherHandle, numbers: Numbers) -> dict[int, int]:
        """Gather all slices of a round's frames; return frame number and rank of slices that cannot be read."""
        unread: dict[int, int] = {}
        for item in self._ranks:
            needed = item.select(numbers)
            if len(needed):
                reader = item.dataset.open_reader(needed, ReadOptions(fields=ALL_OF_SLICES, direct="on"))
                unread.update(dict.fromkeys(gatherer.read(item.rank, reader), item.rank))
        return unread

    def drop(self, numbers: Numbers) -> None:
        """Drop all slices of some frames durably and delete empty segments."""
        for item in self._ranks:
            dropped = item.select(numbers)
            if len(item.aside):
                dropped = np.union1d(dropped, np.intersect1d(item.aside, numbers))
            if len(dropped):
                item.drop(dropped)


def _count_atoms(rank_slices: RankSlices, known: Numbers) -> npt.NDArray[np.uint32]:
    """Return the numbers of atoms of slices; query the store only for those whose number is not yet known."""
    numbers = rank_slices.numbers
    atoms = np.zeros(len(numbers), dtype=np.uint32)
    _, known_rows, cached_rows = np.intersect1d(numbers, known, assume_unique=True, return_indices=True)
    atoms[known_rows] = rank_slices.atoms[cached_rows]
    for start in range(0, len(fresh := np.delete(np.arange(len(numbers)), known_rows)), _AT_ONCE):
        block = fresh[start : start + _AT_ONCE]
        atoms[block] = rank_slices.dataset.atoms(numbers[block])
    return atoms


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


def find_slices(store: Store, name: str, *, past: bool = False) -> dict[SliceKind, HeldSlices]:
    """Return the slices of a simulation in a store by kind; `past`: also where all have become frames."""
    slices: dict[SliceKind, HeldSlices] = {}
    for generation in store.generations(name + SUFFIX):
        parsed = parse_generation(generation)
        if parsed is None:
            continue
        rank, launch, kind = parsed
        try:
            dataset = store.dataset(name + SUFFIX, generation, create=False)
        except StoreNotFoundError:  # deleted in the meantime
            continue
        if dataset.native or past:  # a restart has its own datasets
            slices.setdefault(kind, HeldSlices()).add(rank, launch, dataset)
    return slices
