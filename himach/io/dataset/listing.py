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
from himach.io.store.cached_frames import base_name
from himach.io.store.place import open_store, store_place
from himach.io.store.quota import Segment, chosen_quota, survey
from himach.io.store.sizes import show_size
from himach.io.store.store import Store, StoreBusyError, StoreError, StoreNotFoundError
from himach.io.timemajor.layout import SUFFIX
from himach.parallel.communicator import node_name


@dataclass(frozen=True)
class Entry:
    """A dataset in a store: its name, its generation in hexadecimal, its subdirectory, and how many frames it has.

    `nbytes` are those of all its files, `last_used` is in seconds since 1970, and `note` says why nothing more can be
    said of it, or what was refused; "" as a rule. `time_major` are the bytes of its time-major form, which `nbytes` has
    in it, and `form` is the subdirectory of that; 0 and "" if it has none. `subsets` are those of some atoms of its
    frames, whose bytes it has in it, too.
    """

    name: str
    generation: str
    directory: str
    native: int
    alien: int
    nbytes: int
    last_used: int
    note: str = ""
    time_major: int = 0
    form: str = ""
    subsets: tuple[Entry, ...] = ()

    @property
    def atoms(self) -> int:
        """How many atoms of each frame it has; 0: all."""
        return count_in(self.name)

    @property
    def layout(self) -> str:
        """How it is kept: ``"frame"``, ``"time"`` or ``"both"``."""
        return "frame" if not self.form else "both" if self.native + self.alien else "time"


def open_existing(choice: str | None, *, writing: bool = False) -> Store | None:
    """Open the store of this node, or return None if there is none; raises StoreError if it is refused.

    Unless it is opened for `writing`, nothing is changed, and looking at a dataset is no use of it.
    """
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
    """Return the datasets in a store, the one used last first."""
    found = []
    for directory in store.directories():
        nbytes, last_used = _bytes_in(store.path / directory)
        try:
            dataset = store.open_directory(directory)
            facts = dataset.facts()
        except StoreError as error:
            found.append(Entry(directory, "", directory, 0, 0, nbytes, last_used, str(error)))
            continue
        note = ""
        if facts["refused_segments"]:
            note = f"{facts['refused_segments']} segments of another version or dataset are left alone"
        generation = dataset.generation.hex()
        found.append(
            Entry(dataset.name, generation, directory, facts["native"], facts["alien"], nbytes, last_used, note)
        )
    return sorted(_joined(found), key=lambda one: (-one.last_used, one.name))


def _joined(found: list[Entry]) -> list[Entry]:
    """Return datasets with what lies beside them, which is listed by itself only where it is left alone."""
    forms = {(one.name, one.generation): one for one in found if one.name.endswith(SUFFIX)}
    subsets: dict[tuple[str, str], list[Entry]] = {}
    for one in found:
        if one.atoms:
            subsets.setdefault((base_name(one.name), one.generation), []).append(one)
    joined = []
    for one in found:
        form = forms.get((one.name + SUFFIX, one.generation))
        some = subsets.get((one.name, one.generation), [])
        beside = some if form is None else [*some, form]
        joined.append(
            replace(
                one,
                nbytes=one.nbytes + sum(other.nbytes for other in beside),
                time_major=0 if form is None else form.nbytes,
                form="" if form is None else form.directory,
                subsets=tuple(sorted(some, key=lambda other: (-other.alien, other.name))),
            )
        )
    gone = {one.form for one in joined} | {other.directory for one in joined for other in one.subsets}
    return [one for one in joined if one.directory not in gone]


def status(choice: str | None, quota: str | None = None) -> dict[str, Any]:
    """Return facts of this node's store, in the order in which to show them; there need be none yet.

    Returns
    -------
    dict
        ``node``, ``place``, ``identity`` (None: there is no store yet), ``file_system``, and in bytes ``size``,
        ``free``, ``reserve``, ``quota``, ``used``; then ``datasets``, ``native``, ``alien`` (counts). What cannot be
        said is None, and ``note`` says why, if there is anything.
    """
    where = store_place(choice)
    facts: dict[str, Any] = {"node": node_name(), "place": str(where), "identity": None}
    facts["file_system"] = _file_system(where)
    facts |= dict.fromkeys(("size", "free", "reserve", "quota", "used", "datasets", "native", "alien"))
    notes: list[str] = []
    with _noted(notes):
        found = survey(where)
        facts |= {"size": found.size, "free": found.free, "reserve": found.reserve, "used": found.used}
    with _noted(notes, (StoreError, OSError) if quota is not None else (StoreError, OSError, UsageError)):
        facts["quota"] = chosen_quota(where, quota)
    with _noted(notes):
        store = open_existing(choice)
        there = entries(store) if store is not None else []
        facts |= {"identity": None if store is None else store.identity, "datasets": len(there)}
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
    """Evict what a person chose.

    Parameters
    ----------
    store
        Open for writing.
    dataset
        Name or path of a dataset, of which all generations are meant; None for all datasets.
    aliens
        Aliens only.
    to
        Only until the store holds so many bytes; what was not used for longest goes first. What was pushed, and is
        nowhere else, goes only if its dataset is named.

    Returns
    -------
    Evicted
        Datasets of which everything went are gone as a whole.

    Raises
    ------
    UsageError
        If there is no dataset of this name.
    """
    names = _names(store.path, dataset)
    found = survey(store.path)
    evicted = Evicted()
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
                _remove(store, directory)
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
    beside = {one.form: one.name for one in several if one.form}
    beside |= {other.directory: other.name for one in several for other in one.subsets}
    return beside | {one.directory: one.name for one in several}


def _describe(names: dict[str, str], segment: Segment, error: StoreError) -> str:
    kind = "n" if segment.native else "a"
    reason = "a writer or reader holds it" if isinstance(error, StoreBusyError) else str(error)
    return f"{names[segment.directory]}: segment {kind}-{segment.id:016x} ({show_size(segment.nbytes)}): {reason}"


def _remove(store: Store, directory: str) -> None:
    with suppress(StoreError, OSError):  # a segment of it is held, or somebody has just begun to use it
        store.remove(directory)


def _bytes_in(folder: Path) -> tuple[int, int]:
    """Return the bytes of a dataset's files and when it was last used."""
    total = last_used = 0
    try:
        paths = list(folder.iterdir())
    except OSError:  # evicted meanwhile, or not to be looked into
        return 0, 0
    for path in paths:
        try:
            facts = path.stat(follow_symlinks=False)
        except OSError:
            continue
        total += facts.st_size
        if path.name == "meta":
            last_used = int(facts.st_mtime)
    return total, last_used


def _file_system(where: Path) -> str:
    """Return the type of the file system at a place, and where it is mounted."""
    absolute = os.path.realpath(where)
    best = ("", "unknown")
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            point, kind = line.split()[1:3]
            point = point.replace("\\040", " ")
            inside = absolute == point or absolute.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best[0]):
                best = point, kind
    return f"{best[1]} at {best[0]}" if best[0] else best[1]
