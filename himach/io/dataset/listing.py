"""What the store of this node has, for people: `open_existing()`, `entries()`, `status()` and `evict_chosen()`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from himach.errors import UsageError, nearest
from himach.io.dataset.lookup import dataset_name
from himach.io.dataset.subsets import count_in
from himach.io.remote.copies import copies_in, evict
from himach.io.store.cached_frames import base_name
from himach.io.store.quota import Segment, chosen_quota, open_store, store_place, survey
from himach.io.store.sizes import show_size
from himach.io.store.store import Store, StoreBusyError, StoreError, StoreNotFoundError
from himach.parallel.communicator import node_name


@dataclass(frozen=True)
class Entry:
    """A dataset in a store: its name, its generation in hexadecimal, its subdirectory, and how many frames it has."""

    name: str
    generation: str
    directory: str
    native: int
    alien: int
    nbytes: int
    last_used: int
    note: str = ""
    subsets: tuple[Entry, ...] = ()
    is_copy: bool = False

    @property
    def atoms(self) -> int:
        """How many atoms of each frame it has; 0: all."""
        return count_in(self.name)


def open_existing(choice: str | None, *, writing: bool = False) -> Store | None:
    """Open the store of this node, or return None if there is none; raises StoreError if it is refused."""
    try:
        return open_store(choice, create=False, read_only=not writing)
    except StoreNotFoundError:
        return None


@dataclass
class Evicted:
    """What `evict_chosen` freed, and what was to go and did not: each segment with dataset and reason, for people."""

    nbytes: int = 0
    segments: int = 0
    busy: list[str] = field(default_factory=list)


def entries(store: Store) -> list[Entry]:
    """Return the datasets in a store, and copies of files elsewhere, the one used last first."""
    found = [
        Entry(copy.name, "", copy.folder.name, 0, 0, copy.nbytes, int(copy.last_used), is_copy=True)
        for copy in copies_in(store.path)
    ]
    for directory in sorted({*store.directories()} - {copy.directory for copy in found}):
        nbytes, last_used = _bytes_in(store.path / directory)
        try:
            dataset = store.open_directory(directory)
            facts = dataset.facts()
        except StoreError as error:
            found.append(Entry(directory, "", directory, 0, 0, nbytes, last_used, str(error)))
            continue
        refused = facts["refused_segments"]
        note = f"{refused} segments of another version or dataset are left alone" if refused else ""
        counts = facts["native"], facts["alien"]
        found.append(Entry(dataset.name, dataset.generation.hex(), directory, *counts, nbytes, last_used, note))
    return sorted(_joined(found), key=lambda one: (-one.last_used, one.name))


def _joined(found: list[Entry]) -> list[Entry]:
    """Return datasets with what lies beside them, which is listed by itself only where it is left alone."""
    subsets: dict[tuple[str, str], list[Entry]] = {}
    for one in found:
        if one.atoms:
            subsets.setdefault((base_name(one.name), one.generation), []).append(one)
    joined = []
    for one in found:
        some = sorted(subsets.get((one.name, one.generation), []), key=lambda other: (-other.alien, other.name))
        nbytes = one.nbytes + sum(other.nbytes for other in some)
        joined.append(replace(one, nbytes=nbytes, subsets=tuple(some)))
    gone = {other.directory for one in joined for other in one.subsets}
    return [one for one in joined if one.directory not in gone]


def status(choice: str | None, quota: str | None = None) -> dict[str, Any]:
    """Return facts of this node's store, in the order in which to show them; there need be none yet."""
    where = store_place(choice)
    facts: dict[str, Any] = {"node": node_name(), "place": str(where), "identity": None}
    facts["file_system"] = _file_system(where)
    facts |= dict.fromkeys(("size", "free", "reserve", "quota", "used", "copies", "datasets", "native", "alien"))
    notes: list[str] = []
    with _noted(notes):
        found = survey(where)
        facts |= {"size": found.size, "free": found.free, "reserve": found.reserve, "used": found.used}
    with _noted(notes, (StoreError, OSError) if quota is not None else (StoreError, OSError, UsageError)):
        facts["quota"] = chosen_quota(where, quota)
    with _noted(notes):
        store = open_existing(choice)
        there = entries(store) if store is not None else []
        facts["identity"] = None if store is None else store.identity
        facts["copies"] = sum(one.nbytes for one in there if one.is_copy)
        facts["datasets"] = sum(not one.is_copy for one in there)
        facts |= {"native": sum(one.native for one in there), "alien": sum(one.alien for one in there)}
        notes += [f"{one.name}: {one.note}" for one in there if one.note]
    return facts | ({"note": "; ".join(dict.fromkeys(notes))} if notes else {})


@contextmanager
def _noted(notes: list[str], refused: tuple[type[Exception], ...] = (StoreError, OSError)) -> Iterator[None]:
    """Note what is refused, in place of raising it."""
    try:
        yield
    except refused as error:
        notes.append(str(error))


def evict_chosen(store: Store, dataset: str | None = None, *, aliens: bool = False, to: int | None = None) -> Evicted:
    """Evict what a person chose."""
    names = _names(store.path, dataset)
    found = survey(store.path)
    evicted = Evicted()
    for copy in copies_in(store.path):
        if names.pop(copy.folder.name, None) is None or (to is not None and found.used - evicted.nbytes <= to):
            continue
        if evict(copy.folder):
            evicted.nbytes += copy.nbytes
        else:
            evicted.busy.append(f"{copy.name}: its local copy ({show_size(copy.nbytes)}): somebody reads it")
    for segment in found.segments:
        spared = (aliens and segment.native) or (segment.pushed and dataset is None and to is not None)
        if spared or segment.directory not in names:
            continue
        if to is not None and found.used - evicted.nbytes <= to:
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
            if not aliens or count_in(name):
                with suppress(StoreError, OSError):  # a segment is held, or somebody has just begun to use it
                    store.remove(directory)
    return evicted


def _names(path: Path, dataset: str | None) -> dict[str, str]:
    """Return the names of the datasets that are meant, by subdirectory."""
    known = entries(Store(path, create=False, read_only=True))  # looking is no use
    if dataset is None:
        return _with_names(known)
    wanted = {dataset, dataset_name([dataset])}
    chosen = _with_names(one for one in known if one.name in wanted or one.directory in wanted)
    if not chosen:
        raise UsageError(f"{path} holds no dataset {dataset}{nearest(dataset, {one.name for one in known})}")
    return chosen


def _with_names(chosen: Iterable[Entry]) -> dict[str, str]:
    """Return the names of datasets by subdirectory; what lies beside them comes first."""
    several = list(chosen)
    beside = {other.directory: other.name for one in several for other in one.subsets}
    return beside | {one.directory: one.name for one in several}


def _describe(names: dict[str, str], segment: Segment, error: StoreError) -> str:
    kind = "n" if segment.native else "a"
    reason = "a writer or reader holds it" if isinstance(error, StoreBusyError) else str(error)
    return f"{names[segment.directory]}: segment {kind}-{segment.id:016x} ({show_size(segment.nbytes)}): {reason}"


def _bytes_in(folder: Path) -> tuple[int, int]:
    """Return the bytes of a dataset's files and when it was last used."""
    total = last_used = 0
    with suppress(OSError):  # evicted meanwhile, or not to be looked into
        for path in folder.iterdir():
            with suppress(OSError):
                facts = path.stat(follow_symlinks=False)
                total += facts.st_size
                last_used = int(facts.st_mtime) if path.name == "meta" else last_used
    return total, last_used


def _file_system(where: Path) -> str:
    """Return the type of the file system at a place, and where it is mounted."""
    absolute, best = f"{os.path.realpath(where)}/", ("", "unknown")
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            point, kind = (word.replace("\\040", " ") for word in line.split()[1:3])
            if absolute.startswith(point.rstrip("/") + "/") and len(point) >= len(best[0]):
                best = point, kind
    return f"{best[1]} at {best[0]}" if best[0] else best[1]
