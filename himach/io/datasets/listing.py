"""Contents of this node's store for users: `open_existing()`, `entries()`, `status()` and `evict_chosen()`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from himach.errors import UsageError, nearest
from himach.io.datasets.lookup import dataset_name
from himach.io.datasets.subsets import parse_atom_count
from himach.io.server.survey import Holding
from himach.io.store.cached_frames import base_name
from himach.io.store.quota import Segment, chosen_quota, open_store, store_place, survey
from himach.io.store.sizes import show_size
from himach.io.store.store import Store, StoreBusyError, StoreError, StoreNotFoundError
from himach.io.trajectories.urls.mirror import copies_in, evict
from himach.ranks.communicator import node_name


@dataclass
class DatasetEntry(Holding):
    """A dataset in this node's store, with the bytes of its subsets, or a copy of a remote file."""

    note: str = ""
    subsets: tuple[DatasetEntry, ...] = ()
    is_copy: bool = False

    @property
    def atoms(self) -> int:
        """Number of atoms of each frame; 0: all."""
        return parse_atom_count(self.name)


def open_existing(choice: str | None, *, writing: bool = False) -> Store | None:
    """Open the store of this node; return None if there is none, raise StoreError if it cannot be used."""
    try:
        return open_store(choice, create=False, read_only=not writing)
    except StoreNotFoundError:
        return None


@dataclass
class EvictedDatasets:
    """What `evict_chosen` freed, and which segments it could not evict: text with dataset and reason."""

    nbytes: int = 0
    segments: int = 0
    busy: list[str] = field(default_factory=list)


def entries(store: Store) -> list[DatasetEntry]:
    """Return the datasets in a store and its copies of remote files, last used first."""
    listed = [
        DatasetEntry(copy.name, b"", copy.folder.name, copy.nbytes, copy.last_used, is_copy=True)
        for copy in copies_in(store.path)
    ]
    listed += _nest_subsets(list_directories(store))
    return sorted(listed, key=lambda entry: (-entry.last_used, entry.name))


def list_directories(store: Store) -> list[DatasetEntry]:
    """Return the datasets and subsets in a store, flat; one that cannot be opened goes by its directory."""
    listed = []
    for directory in sorted({*store.directories()} - {copy.folder.name for copy in copies_in(store.path)}):
        entry = DatasetEntry(directory, b"", directory, *_measure_directory(store.path / directory))
        try:
            dataset = store.open_directory(directory)
            facts = dataset.facts()
            entry.name, entry.generation = dataset.name, dataset.generation
            entry.n_native, entry.n_alien = facts["native"], facts["alien"]
            if n_refused := facts["refused_segments"]:
                entry.note = f"{n_refused} segments of another version or dataset are left alone"
        except StoreError as error:
            entry.note = str(error)
        listed.append(entry)
    return listed


def _nest_subsets(listed: list[DatasetEntry]) -> list[DatasetEntry]:
    """Move subsets into the entries of their datasets; a subset without its dataset stays an entry of its own."""
    subsets: dict[tuple[str, bytes], list[DatasetEntry]] = {}
    for entry in listed:
        if entry.atoms:
            subsets.setdefault((base_name(entry.name), entry.generation), []).append(entry)
    nested = []
    for entry in listed:
        parts = sorted(subsets.get((entry.name, entry.generation), []), key=lambda part: (-part.n_alien, part.name))
        nbytes = entry.nbytes + sum(part.nbytes for part in parts)
        nested.append(replace(entry, nbytes=nbytes, subsets=tuple(parts)))
    nested_directories = {part.directory for entry in nested for part in entry.subsets}
    return [entry for entry in nested if entry.directory not in nested_directories]


def status(choice: str | None, quota: str | None = None) -> dict[str, Any]:
    """Return facts about this node's store in display order; the store need not exist."""
    place = store_place(choice)
    facts: dict[str, Any] = {"node": node_name(), "place": str(place), "identity": None}
    facts["file_system"] = _file_system(place)
    facts |= dict.fromkeys(("size", "free", "reserve", "quota", "used", "copies", "datasets", "native", "alien"))
    notes: list[str] = []
    with _note_errors(notes):
        sizes = survey(place)
        facts |= {"size": sizes.size, "free": sizes.free, "reserve": sizes.reserve, "used": sizes.used}
    with _note_errors(notes, (StoreError, OSError) if quota is not None else (StoreError, OSError, UsageError)):
        facts["quota"] = chosen_quota(place, quota)
    with _note_errors(notes):
        store = open_existing(choice)
        listed = entries(store) if store is not None else []
        facts["identity"] = None if store is None else store.identity
        facts["copies"] = sum(entry.nbytes for entry in listed if entry.is_copy)
        facts["datasets"] = sum(not entry.is_copy for entry in listed)
        facts |= {"native": sum(entry.n_native for entry in listed), "alien": sum(entry.n_alien for entry in listed)}
        notes += [f"{entry.name}: {entry.note}" for entry in listed if entry.note]
    return facts | ({"note": "; ".join(dict.fromkeys(notes))} if notes else {})


@contextmanager
def _note_errors(notes: list[str], errors: tuple[type[Exception], ...] = (StoreError, OSError)) -> Iterator[None]:
    """Append errors to `notes` instead of raising them."""
    try:
        yield
    except errors as error:
        notes.append(str(error))


def evict_chosen(
    store: Store, dataset: str | None = None, *, aliens: bool = False, to: int | None = None
) -> EvictedDatasets:
    """Evict what the user chose."""
    names = _chosen_names(store.path, dataset)
    sizes = survey(store.path)
    evicted = EvictedDatasets()
    for copy in copies_in(store.path):
        if names.pop(copy.folder.name, None) is None or (to is not None and sizes.used - evicted.nbytes <= to):
            continue
        if evict(copy.folder):
            evicted.nbytes += copy.nbytes
        else:
            evicted.busy.append(f"{copy.name}: its local copy ({show_size(copy.nbytes)}): somebody reads it")
    for segment in sizes.segments:
        spared = (aliens and segment.native) or (segment.pushed and dataset is None and to is not None)
        if spared or segment.directory not in names:
            continue
        if to is not None and sizes.used - evicted.nbytes <= to:
            break
        try:
            store.evict(segment.directory, segment.id, native=segment.native)
        except StoreError as error:
            evicted.busy.append(_describe(names, segment, error))
        else:
            evicted.nbytes += segment.nbytes
            evicted.segments += 1
    if to is None:
        for directory, name in names.items():
            if not aliens or parse_atom_count(name):
                with suppress(StoreError, OSError):  # in use
                    store.remove(directory)
    return evicted


def _chosen_names(path: Path, dataset: str | None) -> dict[str, str]:
    """Return the names of the chosen datasets by subdirectory."""
    listed = entries(Store(path, create=False, read_only=True))  # listing must not count as use
    if dataset is None:
        return _names_by_directory(listed)
    requested = {dataset, dataset_name([dataset])}
    chosen = _names_by_directory(entry for entry in listed if entry.name in requested or entry.directory in requested)
    if not chosen:
        raise UsageError(f"{path} holds no dataset {dataset}{nearest(dataset, {entry.name for entry in listed})}")
    return chosen


def _names_by_directory(chosen: Iterable[DatasetEntry]) -> dict[str, str]:
    """Return the names of datasets by subdirectory, subsets first."""
    chosen_entries = list(chosen)
    subset_names = {subset.directory: subset.name for entry in chosen_entries for subset in entry.subsets}
    return subset_names | {entry.directory: entry.name for entry in chosen_entries}


def _describe(names: dict[str, str], segment: Segment, error: StoreError) -> str:
    kind = "n" if segment.native else "a"
    reason = "a writer or reader holds it" if isinstance(error, StoreBusyError) else str(error)
    return f"{names[segment.directory]}: segment {kind}-{segment.id:016x} ({show_size(segment.nbytes)}): {reason}"


def _measure_directory(folder: Path) -> tuple[int, int]:
    """Return the size of a dataset's files and the time of its last use."""
    total = last_used = 0
    with suppress(OSError):  # evicted in the meantime, or not readable
        for path in folder.iterdir():
            with suppress(OSError):
                file_status = path.stat(follow_symlinks=False)
                total += file_status.st_size
                last_used = int(file_status.st_mtime) if path.name == "meta" else last_used
    return total, last_used


def _file_system(place: Path) -> str:
    """Return the type and the mount point of the file system of a path."""
    absolute, best = f"{os.path.realpath(place)}/", ("", "unknown")
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            point, kind = (word.replace("\\040", " ") for word in line.split()[1:3])
            if absolute.startswith(point.rstrip("/") + "/") and len(point) >= len(best[0]):
                best = point, kind
    return f"{best[1]} at {best[0]}" if best[0] else best[1]
