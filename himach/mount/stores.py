"""Datasets of a local or served store for a mount: `StoreDatasets`, `Facts` of one, `StoreFrames`."""

import functools
import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from himach.errors import TrajectoryError, UsageError
from himach.frame import POSITIONS
from himach.io.datasets.attachment import format_suffix
from himach.io.datasets.listing import open_existing
from himach.io.datasets.lookup import Candidate, find, find_offline, open_cache
from himach.io.datasets.opening import FramesAhead, open_dataset
from himach.io.datasets.request import DatasetRequest
from himach.io.frame_source import ReadOptions
from himach.io.server.survey import ServedStore
from himach.io.store.cached_frames import CachedFrames, base_name
from himach.io.store.quota import find_other_owner, store_place
from himach.io.store.store import Dataset, Store, StoreNotFoundError
from himach.ranks.communicator import alone

log = logging.getLogger("himach.mount")
MAX_MESSAGES = 1000  # that are remembered
REPEAT_SECONDS = 600.0  # after which a message may be logged again


def warn(text: str) -> None:
    """Log a message, but not again for some minutes."""
    _log(text, time.monotonic() // REPEAT_SECONDS)


@functools.lru_cache(MAX_MESSAGES)
def _log(text: str, period: float) -> None:
    log.warning(text)


@dataclass(frozen=True)
class Facts:
    """Current properties of a dataset, known without reading all its frames."""

    name: str
    version: bytes  # changes when the name gets other frames, not when frames are added
    n_frames: int
    n_atoms: int
    has_velocities: bool
    has_forces: bool
    has_box: bool  # whether the first frame has a box; True if unknown
    changed: int  # time of the last change, ns since 1970
    topologies: Mapping[str, int] = field(default_factory=dict)


class StoreDatasets:
    """The datasets of a store in their last version; methods are thread-safe and may raise HimachError or OSError."""

    def __init__(self, cache: str = "auto") -> None:
        self._started = time.time_ns()
        self._cache = cache
        self._boxes: dict[tuple[str, bytes], bool] = {}
        self._sizes: dict[str, int] = {}
        self._remote: Store | ServedStore | None = None
        self._is_here = "://" not in cache and find_other_owner(cache) is None
        if self._is_here:
            self._cache = os.path.abspath(store_place(cache))
            open_existing(self._cache)
        else:
            self.names()

    def _store(self) -> Store | ServedStore:
        store = open_existing(self._cache) if self._is_here else self._remote
        if store is None:
            raise StoreNotFoundError(f"there is no store at {self._cache}")
        return store

    def names(self) -> list[str]:
        """Return the names of all datasets, without opening them."""
        if not self._is_here:
            self._remote, reason = open_cache(self._cache)
            if reason:
                warn(reason)
        store = open_existing(self._cache) if self._is_here else self._remote
        if store is None:
            return []
        names = getattr(store, "names", None)
        if names is None:
            raise UsageError(f"{self._cache} is another user's store, whose server does not tell what it holds")
        return [name for name in names() if base_name(name) == name]

    def facts(self, name: str) -> Facts | None:
        """Return the facts of a dataset, for which at most its first frame is read; None if there is no dataset now."""
        store = self._store()
        best = _best_candidate(store, name)
        if best is None:
            return None
        stamp = best.stamp
        dataset = store.dataset(name, best.generation, create=False)
        changed = max((file.modified for file in stamp.files), default=0) or _last_written(dataset) or self._started
        pushed = "" if stamp.files else stamp.first_frame  # another simulation may be pushed under this name
        version = f"{stamp.n_atoms} {stamp.has_velocities:d} {stamp.has_forces:d} {pushed} ".encode() + best.generation
        if (name, version) not in self._boxes:  # once, so that the size of files does not change
            bounds, options = dataset.bounds(), ReadOptions(np.zeros(1, np.int64), POSITIONS)
            frames = [] if bounds is None else list(dataset.read([bounds[0]], options))
            self._boxes[name, version] = not any(frame is not None and frame.box is None for frame in frames)
        for attached in stamp.topologies.values():
            if not self._sizes.get(attached):  # the name identifies the content
                self._sizes[attached] = len(dataset.attachment(attached) or b"")
        sizes = {format_suffix(path): self._sizes[attached] for path, attached in stamp.topologies.items()}
        flags = stamp.has_velocities, stamp.has_forces, self._boxes[name, version]
        topologies = {suffix: size for suffix, size in sizes.items() if size}
        return Facts(name, version, stamp.n_frames, stamp.n_atoms, *flags, changed, topologies)

    def topology(self, facts: Facts, suffix: str) -> bytes:
        """Return an attached topology."""
        store = self._store()
        best = _best_candidate(store, facts.name)
        if best is not None:
            dataset = store.dataset(facts.name, best.generation, create=False)
            attached = [name for path, name in best.stamp.topologies.items() if format_suffix(path) == suffix]
            content = dataset.attachment(attached[-1]) if attached else None
            if content is not None:
                return content
        raise TrajectoryError(f"the topology of {facts.name} is not in the cache any more")

    def open(self, facts: Facts) -> "StoreFrames":
        """Open a dataset for reading frames; frames read from its origin are cached."""
        best = _best_candidate(self._store(), facts.name)
        if best is None:
            raise StoreNotFoundError(f"{facts.name} is not in the cache any more")
        return StoreFrames(facts, self._cache, best)


class StoreFrames:
    """Frames of a dataset, from the store or else from its origin; for one thread at a time."""

    def __init__(self, facts: Facts, cache: str, best: Candidate) -> None:
        request = DatasetRequest([Path(facts.name)], keywords=json.loads(best.stamp.keywords), cache=cache)
        files = os.path.isabs(facts.name)  # the dataset has files, which are read if they exist
        name, by_name = ("", None) if files else (facts.name, True)
        self._dataset = open_dataset(alone(), request, name=name, by_name=by_name, reads_files=True)
        origin = self._dataset.origin
        if origin.n_atoms != facts.n_atoms or origin.n_frames < facts.n_frames:
            raise TrajectoryError(f"{facts.name} has changed: {origin.n_frames} frames of {origin.n_atoms} atoms now")
        self._ahead = FramesAhead(self._dataset)
        self.frame = self._ahead.frame

    def stamps(self) -> tuple[float, float]:
        """Return the first frame's time and the time step, ps; 0 for an unknown step."""
        origin = self._dataset.origin
        times = origin.known_times
        first = self.frame(0).time if times is None else times[0]
        return float(first), origin.timestep or 0.0

    def close(self) -> None:
        """Close the dataset."""
        self._ahead.close()


def _best_candidate(store: Store | ServedStore, name: str) -> Candidate | None:
    """Return the candidate of a dataset's last content, by the keywords with which it was cached."""
    candidates = find(store, [name])
    if not candidates:
        return None
    last = max(candidates, key=lambda candidate: candidate.stamp.sequence)
    chosen = find_offline(candidates, json.loads(last.stamp.keywords))
    return None if chosen is None else chosen[0]


def _last_written(dataset: CachedFrames) -> int:
    """Return the time of the last write to a dataset of this node, ns since 1970; 0 if unknown."""
    segments = dataset.path.glob("*.seg") if isinstance(dataset, Dataset) else ()
    return max((file.stat().st_mtime_ns for file in segments), default=0)
