"""The datasets of a store for a mount, however it is reached: `StoreDatasets`."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from himach.errors import TrajectoryError, UsageError
from himach.frame import POSITIONS, RawFrame
from himach.io.dataset.attachment import suffix_of
from himach.io.dataset.listing import open_existing
from himach.io.dataset.lookup import Candidate, find, offline_candidate, open_cache
from himach.io.frame_source import ReadOptions
from himach.io.store.cached_frames import base_name
from himach.io.store.place import owner_of, store_place
from himach.io.store.store import Dataset, Store, StoreNotFoundError
from himach.mount.datasets import Facts
from himach.opening.dataset import OpenRequest, open_dataset
from himach.opening.frames_ahead import FramesAhead
from himach.opening.options import DatasetRequest
from himach.parallel.communicator import alone

if TYPE_CHECKING:
    from himach.io.server.served_store import ServedStore
    from himach.io.store.cached_frames import CachedFrames

__all__ = ["StoreDatasets"]

log = logging.getLogger("himach.mount")


class StoreDatasets:
    """The datasets of a store, each as it last was.

    Parameters
    ----------
    cache
        The store, as of ``himach run --cache``; a store of this node's need not be there yet.

    Raises
    ------
    UsageError
        It cannot be a store, or is another user's, who alone can list it.
    StoreError
        It cannot be reached.
    """

    def __init__(self, cache: str = "auto") -> None:
        self._begun = time.time_ns()
        self._cache = cache
        self._boxes: dict[str, tuple[bytes, bool]] = {}
        self._sizes: dict[str, int] = {}
        self._reason = ""
        self._remote: Store | ServedStore | None = None
        self._is_here = "://" not in cache and owner_of(cache) is None
        if self._is_here:
            self._cache = os.path.abspath(store_place(cache))
            open_existing(self._cache)
        else:
            self.names()

    def _store(self) -> Store | ServedStore:
        found = open_existing(self._cache) if self._is_here else self._remote
        if found is None:
            raise StoreNotFoundError(f"there is no store at {self._cache}")
        return found

    def names(self) -> list[str]:
        """Return the names of all datasets, without opening them."""
        store: Store | ServedStore | None
        if self._is_here:
            store = open_existing(self._cache)
        else:
            store, reason = open_cache(self._cache)
            if reason and reason != self._reason:
                log.warning(reason)
            self._remote, self._reason = store, reason
        if store is None:
            return []
        names = getattr(store, "names", None)
        if names is None:
            raise UsageError(f"{self._cache} is another user's store, whose server does not tell what it holds")
        return [name for name in names() if base_name(name) == name]

    def facts(self, name: str) -> Facts | None:
        """Return what there is to know of a dataset without reading its frames; None if there is none now."""
        store = self._store()
        best = _best(store, name)
        if best is None:
            return None
        stamp = best.stamp
        dataset = store.dataset(name, best.generation, create=False)
        changed = max((file.modified for file in stamp.files), default=0) or _last_written(dataset) or self._begun
        pushed = "" if stamp.files else stamp.sketch  # of its first frame: another simulation may come by this name
        version = f"{stamp.n_atoms} {stamp.has_velocities:d} {stamp.has_forces:d} {pushed} ".encode() + best.generation
        sizes = {suffix_of(path): self._size(dataset, attached) for path, attached in stamp.topologies.items()}
        has = stamp.has_velocities, stamp.has_forces, self._has_box(name, version, dataset)
        known = {suffix: size for suffix, size in sizes.items() if size}
        return Facts(name, version, stamp.n_frames, stamp.n_atoms, *has, changed, known)

    def _size(self, dataset: CachedFrames, attached: str) -> int:
        """Return the bytes of a topology, whose name tells its content; 0 if it was not kept."""
        if isinstance(dataset, Dataset):
            try:
                return os.stat(dataset.path / f"x-{attached}").st_size
            except OSError:
                return 0
        if attached not in self._sizes:
            self._sizes[attached] = len(dataset.attachment(attached) or b"")
        return self._sizes[attached]

    def _has_box(self, name: str, version: bytes, dataset: CachedFrames) -> bool:
        """Tell by the first frame in the store, once, so that files stay as long as they are."""
        known = self._boxes.get(name)
        if known is None or known[0] != version:
            ends = dataset.ends()
            frames = (
                [] if ends is None else list(dataset.read([ends[0]], ReadOptions(np.zeros(1, np.int64), POSITIONS)))
            )
            known = version, not any(frame is not None and frame.box is None for frame in frames)
            self._boxes[name] = known
        return known[1]

    def topology(self, facts: Facts, suffix: str) -> bytes:
        """Return an attached topology."""
        store = self._store()
        best = _best(store, facts.name)
        if best is not None:
            dataset = store.dataset(facts.name, best.generation, create=False)
            attached = [one for path, one in best.stamp.topologies.items() if suffix_of(path) == suffix]
            content = dataset.attachment(attached[-1]) if attached else None
            if content is not None:
                return content
        raise TrajectoryError(f"the topology of {facts.name} is not in the cache any more")

    def open(self, facts: Facts) -> StoreFrames:
        """Open a dataset for reading frames; what is read from its origin is kept."""
        best = _best(self._store(), facts.name)
        if best is None:
            raise StoreNotFoundError(f"{facts.name} is not in the cache any more")
        return StoreFrames(facts, self._cache, best)


class StoreFrames:
    """The frames of a dataset: from the store, else from its origin.

    Parameters
    ----------
    facts
        As of `StoreDatasets.facts`.
    cache
        The store.
    best
        What of it was found under its name.

    Raises
    ------
    TrajectoryError
        It cannot be read, or has changed since.
    """

    def __init__(self, facts: Facts, cache: str, best: Candidate) -> None:
        asked = DatasetRequest([Path(facts.name)], keywords=json.loads(best.stamp.keywords), cache=cache)
        files = os.path.isabs(facts.name)  # its files are read, where they are there
        name, by_name = ("", None) if files else (facts.name, True)
        self._dataset = open_dataset(alone(), OpenRequest(asked, name=name, by_name=by_name, reads_files=True))
        origin = self._dataset.origin
        if origin.n_atoms != facts.n_atoms or origin.n_frames < facts.n_frames:
            raise TrajectoryError(f"{facts.name} has changed: {origin.n_frames} frames of {origin.n_atoms} atoms now")
        self._ahead = FramesAhead(self._dataset)

    def stamps(self) -> tuple[float, float]:
        """Return the first frame's time and the time between two frames, ps; 0 for what is not known."""
        origin = self._dataset.origin
        times = origin.known_times
        first = self._ahead.frame(0).time if times is None else times.at(np.zeros(1, np.int64))[0]
        return float(first), origin.timestep or 0.0

    def read(self, start: int, stop: int) -> Iterator[RawFrame]:
        """Read frames in order; the arrays of one hold until the next."""
        return map(self._ahead.frame, range(start, stop))

    def close(self) -> None:
        """Close what is open."""
        self._ahead.close()


def _best(store: Store | ServedStore, name: str) -> Candidate | None:
    """Return what stands for a dataset: the content that it had last, with the keywords with which it was kept."""
    found = find(store, [name])
    if not found:
        return None
    last = max(found, key=lambda one: one.stamp.sequence)
    chosen = offline_candidate(found, json.loads(last.stamp.keywords))
    return None if chosen is None else chosen[0]


def _last_written(dataset: CachedFrames) -> int:
    """Return when frames were last written to a dataset of this node, ns since 1970."""
    if not isinstance(dataset, Dataset):
        return 0
    latest = 0
    with os.scandir(dataset.path) as entries:
        for entry in entries:
            if entry.name.endswith(".seg"):
                latest = max(latest, entry.stat().st_mtime_ns)
    return latest
