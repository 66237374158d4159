"""Subsets: the atoms that a run declared, of each frame that it read from the origin, for later runs; `KeptAtoms`.

A subset is a dataset of the same generation, whose name ends with the number of atoms and a digest of their ranges.
"""

import contextlib
import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from himach.frame import DATA, FIELDS, NAMES, RawFrame
from himach.io.frame_source import WHOLE, FrameSource, Numbers, ReadOptions, atom_ranges
from himach.io.server.client import Client
from himach.io.store.bodhi import REASON_DAMAGED, REASON_UNREACHABLE, REASONS
from himach.io.store.cached_frames import CachedFrames, base_name
from himach.io.store.store import Dataset, StoreError

Vectors = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint64]

UNREACHABLE, DAMAGED = REASONS[REASON_UNREACHABLE], REASONS[REASON_DAMAGED]
#: Attachment with the atoms: int64, first and last + 1 of each range. native/store/eviction.c knows this name.
ATOMS = "atoms"
VECTOR = np.dtype("V12")  # three float32 as one item: numpy copies these several times as fast
ATOM_COUNT = re.compile(r"\[([0-9]+) atoms [0-9a-f]{16}\]$")


@dataclass(frozen=True)
class Subset:
    """Frames of some atoms."""

    dataset: Dataset  # its frames have only these atoms
    atoms: Numbers  # indices in a whole frame, int64 (n,), ascending


def subset_name(dataset: str, ranges: Numbers) -> str:
    """Return the name of the subset that has these ranges of atoms of a dataset."""
    digest = hashlib.sha256(ranges.astype("<i8").tobytes()).hexdigest()[:16]
    return f"{dataset} [{int((ranges[:, 1] - ranges[:, 0]).sum())} atoms {digest}]"


def parse_atom_count(name: str) -> int:
    """Return the number of atoms of the subset of this name; 0 if it is no subset."""
    match = ATOM_COUNT.search(name)
    return 0 if match is None else int(match[1])


def open_subset(dataset: Dataset, atoms: Numbers) -> Subset:
    """Open the subset that has exactly these atoms of a dataset; create it if it does not exist."""
    ranges = atom_ranges(atoms)
    subset = dataset.store.dataset(subset_name(dataset.name, ranges), dataset.generation)
    if subset.attachment(ATOMS) is None:
        subset.attach(ATOMS, ranges.astype("<i8").tobytes())
    return Subset(subset, atoms)


def list_subsets(dataset: Dataset) -> list[Subset]:
    """Return all subsets of a dataset in its store."""
    subsets = []
    for name, generation in dataset.store.contents():
        if name == dataset.name or generation != dataset.generation or base_name(name) != dataset.name:
            continue
        if not parse_atom_count(name):
            continue
        with contextlib.suppress(StoreError):
            subset = dataset.store.dataset(name, generation, create=False)
            content = subset.own_attachment(ATOMS) or b""
            ranges = np.frombuffer(content[: len(content) // 16 * 16], "<i8").astype(np.int64).reshape(-1, 2)
            if name == subset_name(dataset.name, ranges):  # else it is damaged or still being created
                subsets.append(Subset(subset, _expand_ranges(ranges)))
    return subsets


def _expand_ranges(ranges: Numbers) -> Numbers:
    """Return the atoms of ranges, int64 (n,)."""
    lengths = ranges[:, 1] - ranges[:, 0]
    atoms: Numbers = np.arange(lengths.sum()) + np.repeat(ranges[:, 0] - np.cumsum(lengths) + lengths, lengths)
    return atoms


def open_kept_atoms(dataset: CachedFrames | None, atoms: Numbers | None, n_atoms: int) -> "list[KeptAtoms]":
    """Return the subsets in this process's own store that have these atoms, fewest atoms first; none for all atoms."""
    if not isinstance(dataset, Dataset) or atoms is None or not len(atoms):
        return []
    try:
        subsets = [subset for subset in list_subsets(dataset) if np.isin(atoms, subset.atoms).all()]
    except StoreError:
        return []
    return [KeptAtoms(subset, n_atoms) for subset in sorted(subsets, key=lambda subset: len(subset.atoms))]


def open_readable(dataset: CachedFrames, atoms: Numbers | None, n_atoms: int) -> "Readable":
    """Return the frames that a node can read for a run that needs these atoms."""
    kept = open_kept_atoms(dataset, atoms, n_atoms)
    return WithKeptAtoms(dataset, kept) if kept else dataset


class StoredFrames(FrameSource):
    """Frames of a store, through its server while it answers; without it another user's store is `lost`."""

    def __init__(self, cached: CachedFrames, drops: bool = True, server: Client | None = None) -> None:
        self._cached, self._drops, self._server = cached, drops, server
        self._reason = ""
        self.lost = ""
        self.nbytes = 0
        self.damaged = 0

    def holds(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """Return which of the frames are cached, bool (n,)."""
        try:
            if not self.lost:
                return self._cached.holds(numbers)
        except StoreError as error:  # another user's server has stopped, or the dataset was deleted
            self._lose(str(error))
        return np.zeros(len(numbers), dtype=bool)

    def read(self, numbers: Sequence[int] | Numbers, options: ReadOptions = WHOLE) -> Iterator[RawFrame | None]:
        """Read frames in the given order, None for a miss; see `FrameSource.read`."""
        unread = (FIELDS | DATA) & ~(options.fields or FIELDS)
        reading = (self._server or self._cached).read(numbers, options)
        try:
            for frame in reading:
                if frame is None:
                    self._reason = reading.reason
                else:
                    frame.unread = unread
                yield frame
        finally:
            self.nbytes += reading.nbytes

    def missed(self, number: int) -> bool:
        """Handle the last miss; return whether later frames must be read in another way or elsewhere."""
        if self._reason == DAMAGED:
            self._drop(number)
        elif self._reason == UNREACHABLE:
            self._server = None  # the user's own store is readable without it
            if not isinstance(self._cached, Dataset):
                self._lose("its server does not answer")
        return self._reason == UNREACHABLE

    def _drop(self, number: int) -> None:
        """Drop a damaged frame, so that it is written again."""
        self.damaged += 1
        if self._drops and isinstance(self._cached, Dataset):
            with contextlib.suppress(StoreError):  # it stays a miss
                for native in (False, True):
                    self._cached.drop([number], native=native)
                self._cached.refresh()

    def _lose(self, reason: str) -> None:
        self.lost = self.lost or f"frames are read from the origin, as the cache is away since: {reason}"

    def close(self) -> None:
        """Close the connection to the server."""
        if self._server is not None:
            self._server.close()


class KeptAtoms(StoredFrames):
    """Reads frames from a subset; all frames share the same arrays."""

    def __init__(self, subset: Subset, n_atoms: int) -> None:
        super().__init__(subset.dataset)
        self._atoms = subset.atoms
        self._shape = n_atoms, 3
        self._memory: dict[str, tuple[Vectors, npt.NDArray[np.void]]] = {}

    def mark(self, frames: range, alien: "Words") -> None:
        """Set the bits of the `frames` that the subset holds; see `CachedFrames.mark`."""
        native = np.zeros_like(alien)
        self._cached.mark(frames, native, alien)
        alien |= native

    def read(self, numbers: Sequence[int] | Numbers, options: ReadOptions = WHOLE) -> Iterator[RawFrame | None]:
        """Read frames into arrays for all atoms; every frame is a miss if the subset lacks a needed atom."""
        needed = np.arange(self._shape[0]) if options.ranges is None else _expand_ranges(options.ranges)
        if not np.isin(needed, self._atoms).all():
            self._reason = ""
            yield from itertools.repeat(None, len(numbers))
            return
        rows = np.searchsorted(self._atoms, needed)
        for frame in super().read(numbers, replace(options, atoms=rows)):
            is_whole = frame is not None and self._spread(frame, options.fields or FIELDS, needed, rows)
            if frame is not None and not is_whole:
                self._reason = DAMAGED
            yield frame if is_whole else None

    def _spread(self, frame: RawFrame, fields: int, needed: Numbers, rows: Numbers) -> bool:
        """Scatter vectors of `needed` atoms into a whole frame; return False if the number of atoms differs."""
        for name in [name for field, name in NAMES.items() if field & fields]:
            vectors = getattr(frame, name)
            if vectors is None:
                continue
            if len(vectors) != len(self._atoms):
                return False
            if name not in self._memory:
                memory = np.zeros(self._shape, dtype=np.float32)
                self._memory[name] = memory, memory.view(VECTOR)[:, 0]
            whole, items = self._memory[name]
            own_items = vectors.view(VECTOR)[:, 0]
            items[needed] = own_items if len(rows) == len(own_items) else own_items[rows]
            setattr(frame, name, whole)
        return True


class WithKeptAtoms:
    """Frames that a node can read for a run: those of its dataset and those of subsets with the needed atoms."""

    def __init__(self, cached: CachedFrames, kept: Sequence[KeptAtoms]) -> None:
        self._cached = cached
        self._kept = kept

    @property
    def identity(self) -> str | None:
        """Unique identity of this store."""
        return self._cached.identity

    def mark(self, frames: range, native: "Words", alien: "Words") -> None:
        """Set the bits of the held `frames`, see `CachedFrames.mark`; frames of subsets count as aliens."""
        self._cached.mark(frames, native, alien)
        for kept in self._kept if frames else ():
            kept.mark(frames, alien)

    def holds(self, numbers: Numbers, native: bool = False) -> npt.NDArray[np.bool_]:
        """Return which frames are held, or held natively; see `CachedFrames.holds`."""
        present = self._cached.holds(numbers, native)
        for kept in () if native else self._kept:
            present = present | kept.holds(numbers)
        return present


Readable = CachedFrames | WithKeptAtoms
