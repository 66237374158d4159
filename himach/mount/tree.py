"""Folders and files of a mount: `Tree` finds them by path, with sizes known without reading frames.

A dataset named by a path appears at that path below the mount, so that ``DIR/NAME`` works for any name.
"""

import functools
import hashlib
import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from himach.errors import HimachError
from himach.io.trajectories.formats import FORMATS
from himach.io.trajectories.layouts import Content, FileLayout
from himach.mount.stores import Facts, StoreDatasets, warn

#: Exceptions of requests for datasets or frames.
FAILURES = (HimachError, OSError)
#: Layouts of trajectory files, by the names of these.
LAYOUTS = {f"trajectory{item.suffixes[0]}": item.layout for item in FORMATS.values() if item.layout is not None}
TTL_SECONDS = 2.0  # validity of an answer
TTL_SHARE = 10.0  # of an answer that took long: so many times that time
MAX_NAME_BYTES = 255  # of a part of a path
#: Prefixes of the files in a dataset's folder, which folders may not have.
TAKEN = ("trajectory.", "topology.")

Path = tuple[str, ...]
T = TypeVar("T")


class TtlCache(Generic[T]):
    """Cached result of `ask`, `none` before the first; whoever finds it old renews it, others get the old one then."""

    def __init__(self, ask: Callable[[], T], none: T) -> None:
        self._ask, self.answer = ask, none
        self._lock = threading.Lock()
        self._until = float("-inf")

    def get(self) -> T:
        """Return the answer; the first one is waited for by all."""
        if time.monotonic() >= self._until and self._lock.acquire(blocking=math.isinf(self._until)):
            try:
                begun = time.monotonic()
                if begun >= self._until:
                    self.answer = self._ask()
                    now = time.monotonic()
                    self._until = now + max(TTL_SECONDS, TTL_SHARE * (now - begun))
            finally:
                self._lock.release()
        return self.answer


@dataclass(frozen=True)
class Folder:
    """A folder: names of its entries, and the time of their last change, ns since 1970."""

    names: tuple[str, ...]
    changed: int


@dataclass(frozen=True)
class File:
    """A file: facts of its dataset, its name, size in bytes, and time of the last change, ns since 1970."""

    facts: Facts
    name: str
    size: int
    changed: int


class Tree:
    """All files and folders of a mount."""

    def __init__(self, datasets: StoreDatasets) -> None:
        self._datasets = datasets
        self._started = time.time_ns()
        #: Datasets by path, and the entries of their parent folders.
        self._listing: TtlCache[tuple[dict[Path, str], dict[Path, dict[str, None]]]] = TtlCache(
            self._list, ({}, {(): {}})
        )
        self._facts: dict[str, TtlCache[Facts | None]] = {}

    def find(self, path: Path) -> Folder | File | None:
        """Return the folder or file at a path; None if there is none."""
        places, folders = self._listing.get()
        if path in folders or path in places:
            facts = self.find_facts(places[path]) if path in places else None
            files = () if facts is None else list_files(facts)
            names = (*(file.name for file in files), *folders.get(path, ()))
            return Folder(names, self._started if facts is None else facts.changed)
        name = places.get(path[:-1]) if path else None
        facts = None if name is None else self.find_facts(name)
        return None if facts is None else next((file for file in list_files(facts) if file.name == path[-1]), None)

    def _list(self) -> tuple[dict[Path, str], dict[Path, dict[str, None]]]:
        """List the datasets."""
        try:
            names = self._datasets.names()
        except FAILURES as error:
            warn(f"the datasets cannot be listed: {error}")
            names = list(self._facts)
        self._facts = {
            name: self._facts.get(name) or TtlCache(functools.partial(self._ask, name), None) for name in names
        }
        places = datasets_by_path(names)
        folders: dict[Path, dict[str, None]] = {(): {}}
        for path in places:
            for length, part in enumerate(path):
                folders.setdefault(path[:length], {})[part] = None
        return places, folders

    def find_facts(self, name: str) -> Facts | None:
        """Return the facts of a dataset; None if there is none, or they are unknown."""
        facts = self._facts.get(name)
        return None if facts is None else facts.get()

    def _ask(self, name: str) -> Facts | None:
        """Request the facts of a dataset; log why it cannot be opened, and return the last ones."""
        try:
            return self._datasets.facts(name)
        except FAILURES as error:
            warn(f"{name} cannot be looked at: {error}")
            last = self._facts.get(name)
            return None if last is None else last.answer  # it may come back


def make_layout(name: str, facts: Facts) -> FileLayout:
    """Return the layout of a trajectory file of a dataset."""
    return LAYOUTS[name](Content(facts.n_frames, facts.n_atoms, facts.has_velocities, facts.has_forces, facts.has_box))


def list_files(facts: Facts) -> list[File]:
    """Return the files of a dataset's folder, in the formats that can hold it."""
    layouts = [(name, make_layout(name, facts)) for name in LAYOUTS]
    sizes = [(name, layout.size) for name, layout in layouts if layout.possible]
    sizes += [(f"topology{suffix}", size) for suffix, size in facts.topologies.items()]
    return [File(facts, name, size, facts.changed) for name, size in sizes]


def dataset_path(name: str) -> tuple[str, ...]:
    """Return the parts of a dataset's path: those of its name, escaped by ``%`` where they are no valid file names."""
    return tuple(map(_part, name.removeprefix("/").split("/")))


def datasets_by_path(names: Iterable[str]) -> dict[tuple[str, ...], str]:
    """Return datasets by path; a file's path that collides with a given name has ``%2F`` for its first slash."""
    places: dict[tuple[str, ...], str] = {}
    for name in sorted(names, key=lambda name: (name.startswith("/"), name)):
        path = dataset_path(name)
        if path in places:
            path = ("%2F" + path[0], *path[1:])
        places[path] = name
    return places


def _part(part: str) -> str:
    part = part.replace("%", "%25")
    if not part.strip("."):  # "", "." and ".."
        return part.replace(".", "%2E") or "%"
    if part.startswith(TAKEN):
        part = f"%{ord(part[0]):02X}{part[1:]}"
    encoded = part.encode("utf-8", "surrogateescape")
    if len(encoded) <= MAX_NAME_BYTES:
        return part
    digest = hashlib.sha256(encoded).hexdigest()[:16]
    return f"{encoded[: MAX_NAME_BYTES - 17].decode('utf-8', 'ignore')}%{digest}"
