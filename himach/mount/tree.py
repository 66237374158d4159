"""Folders and files of a mount: `Tree`, what lies where, and how long each file is, told without reading frames."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from himach.errors import HimachError
from himach.formats.dcd import Dcd
from himach.formats.layout import Content, FileLayout
from himach.formats.netcdf import NetCdf
from himach.formats.trr import Trr
from himach.mount.datasets import Datasets, Facts
from himach.mount.names import places_of
from himach.mount.ttl_cache import TtlCache

__all__ = ["FAILURES", "File", "Folder", "Tree", "layout_of"]

log = logging.getLogger("himach.mount")

#: What asking for datasets or frames may end with.
FAILURES = (HimachError, OSError)
FORMATS: dict[str, Callable[[Content], FileLayout]] = {f"trajectory{one.suffix}": one for one in (Trr, Dcd, NetCdf)}

Path = tuple[str, ...]


@dataclass(frozen=True)
class Folder:
    """A folder: what lies in it, and when that changed, ns since 1970."""

    names: tuple[str, ...]
    changed: int


@dataclass(frozen=True)
class File:
    """A file: of which dataset, its name, its length, and when it changed, ns since 1970."""

    facts: Facts
    name: str
    size: int
    changed: int


class _Listing:
    """Where datasets lie, and what lies in the folders that lead to them."""

    def __init__(self, places: Mapping[Path, str]) -> None:
        self.places = places
        self.inner: dict[Path, dict[str, None]] = {(): {}}
        for path in places:
            for length, part in enumerate(path):
                self.inner.setdefault(path[:length], {})[part] = None


class Tree:
    """All that a mount shows.

    Parameters
    ----------
    datasets
        What there is.
    """

    def __init__(self, datasets: Datasets) -> None:
        self._datasets = datasets
        self._begun = time.time_ns()
        self._lock = threading.Lock()
        self._listed = TtlCache(self._list, _Listing(places_of([])))
        self._facts: dict[str, TtlCache[Facts | None]] = {}
        self._last: dict[str, Facts] = {}
        self._told: dict[str, str] = {}

    def find(self, path: Path) -> Folder | File | None:
        """Return what lies at a path; None if there is nothing."""
        listing = self._listed.get()
        inner, name = listing.inner.get(path), listing.places.get(path)
        facts = None if name is None else self.look(name)
        if inner is not None or name is not None:
            files = () if facts is None else files_of(facts)
            names = (*(file.name for file in files), *(inner or ()))
            return Folder(names, self._begun if facts is None else facts.changed)
        name = listing.places.get(path[:-1]) if path else None
        facts = None if name is None else self.look(name)
        if facts is None:
            return None
        return next((file for file in files_of(facts) if file.name == path[-1]), None)

    def _list(self) -> _Listing:
        """Learn which datasets there are."""
        try:
            names = self._datasets.names()
            self._told.pop("", None)
        except FAILURES as error:
            self._tell("", f"the datasets cannot be listed: {error}")
            with self._lock:
                names = list(self._facts)
        with self._lock:
            self._facts = {name: self._facts.get(name) or TtlCache(partial(self._ask, name), None) for name in names}
        return _Listing(places_of(names))

    def look(self, name: str) -> Facts | None:
        """Return what is known of a dataset; None if there is none, or nothing is known."""
        with self._lock:
            facts = self._facts.get(name)
        return None if facts is None else facts.get()

    def _ask(self, name: str) -> Facts | None:
        """Ask for what is known of a dataset; of one that cannot be opened, the log says why."""
        try:
            facts = self._datasets.facts(name)
            self._told.pop(name, None)
        except FAILURES as error:
            self._tell(name, f"{name} cannot be looked at: {error}")
            return self._last.get(name)  # it may be there again
        if facts is None:
            self._last.pop(name, None)
        else:
            self._last[name] = facts
        return facts

    def _tell(self, about: str, text: str) -> None:
        """Log once what stays so."""
        if self._told.get(about) != text:
            self._told[about] = text
            log.warning(text)


def layout_of(name: str, facts: Facts) -> FileLayout:
    """Return the layout of a trajectory file of a dataset."""
    return FORMATS[name](Content(facts.n_frames, facts.n_atoms, facts.has_velocities, facts.has_forces, facts.has_box))


def files_of(facts: Facts) -> list[File]:
    """Return the files of a dataset's folder; formats that cannot hold it are left out."""
    layouts = [(name, layout_of(name, facts)) for name in FORMATS]
    sizes = [(name, layout.size) for name, layout in layouts if layout.possible]
    sizes += [(f"topology{suffix}", size) for suffix, size in facts.topologies.items()]
    return [File(facts, name, size, facts.changed) for name, size in sizes]
