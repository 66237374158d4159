"""Sources of arriving frames, a `Feed` each: `DatasetFeed` and `FileFeed` count the frames so far."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from himach.errors import TrajectoryError, UsageError
from himach.io.datasets.lookup import find, list_names, open_cache
from himach.io.push.held_slices import SUFFIX
from himach.io.store.store import Dataset, Store
from himach.io.trajectories.origin import open_origin


@dataclass(frozen=True)
class FramesSoFar:
    """State of the arriving frames, as a rank sees it."""

    frames: int = 0  # frames before this number can be analysed
    late: bool = False  # whether the engine waits, or skips frames, until an update is done
    over: str = ""  # why no more frames will arrive; "" while they may
    stored: bytes | None = None  # serialized numbers of this node's frames of a dataset that is being staged
    details: Mapping[str, Any] = field(default_factory=dict)  # for the record and messages
    missing: str = ""  # the error if no other node has anything either; "" for none
    members: Mapping[str, int] | None = None


class Feed:
    """Arriving frames, on a rank that leaves them to another one."""

    def start(self) -> None:
        """Let frames come."""

    def poll(self) -> FramesSoFar | None:
        """Return the state of the frames; None if another rank knows it."""
        return None

    def analysed(self, frames: int) -> None:
        """Note that the frames before this number are analysed, for a source that waits for the analysis."""

    def stop(self) -> None:
        """End the feed."""

    def close(self) -> None:
        """Free what the feed has."""


class Idle(Feed):
    """Base of feeds that end when no frame arrives for a while, or when stopped."""

    def __init__(self, idle: float | None) -> None:
        self._idle = idle
        self._frames = -1
        self._last_change = time.monotonic()
        self._stopped = ""

    def start(self) -> None:
        """Start the idle time."""
        self._last_change = time.monotonic()

    def stop(self) -> None:
        """End the feed."""
        self._stopped = "it was told to end"

    def over(self, frames: int) -> str:
        """Return why the feed is over, given the current number of frames; "" if it is not."""
        if frames != self._frames:
            self._frames, self._last_change = frames, time.monotonic()
        if self._idle is not None and time.monotonic() > self._last_change + self._idle:
            return self._stopped or "no frame came any more"
        return self._stopped


class DatasetFeed(Idle):
    """A dataset that is being pushed or staged."""

    def __init__(self, name: Path, cache: str, idle: float | None) -> None:
        super().__init__(idle)
        self._name = name
        self._store, reason = open_cache(cache)
        if self._store is None:
            raise UsageError(f"{name} is no file, and there is no store to find it in{': ' * bool(reason)}{reason}")
        self._dataset: Dataset | None = None
        self._pushed = False

    def poll(self) -> FramesSoFar:
        """Return the state of the frames in this node's store."""
        dataset = self._dataset = self._dataset or self._find_dataset()
        if dataset is None:
            missing = (
                f"there is no file {self._name}, and no dataset of this name yet: begin to push or stage it first, "
                "or say with --idle for how long to wait"
            )
            # Slices may have been pushed to this node, of which no frame is complete yet.
            slices = isinstance(self._store, Store) and self._store.generations(f"{self._name}{SUFFIX}")
            return FramesSoFar(over=self.over(0), missing="" if self._idle is not None or slices else missing)
        dataset.refresh()
        numbers = dataset.native | dataset.alien
        frames = numbers.max() + 1 if numbers else 0
        if self._pushed:
            return FramesSoFar(frames, over=self.over(frames))
        return FramesSoFar(over=self.over(len(numbers)), stored=numbers.serialize())

    def _find_dataset(self) -> Dataset | None:
        assert self._store is not None
        candidates = find(self._store, list_names([self._name]))
        if not candidates:
            return None
        best = candidates[0]
        self._pushed = best.stamp.is_pushed
        dataset = self._store.dataset(best.name, best.generation, create=False)
        if not isinstance(dataset, Dataset):
            raise UsageError(f"dataset {self._name} is in another user's store, which cannot be followed")
        return dataset


class FileFeed(Idle):
    """Files of which the last one grows."""

    def __init__(
        self, trajectories: Sequence[Path], topology: Path | None, keywords: Mapping[str, Any], idle: float | None
    ) -> None:
        super().__init__(idle)
        self._open_arguments = (trajectories, topology, keywords)
        self._watched_paths: list[str] = [os.path.expanduser(path) for path in trajectories]
        self._last_states: list[tuple[int, int]] = []
        self._count = self._atoms = 0
        self._next_poll = 0.0

    def poll(self) -> FramesSoFar:
        """Return the state of the frames; spend at most a tenth of the time on files that grow."""
        now = time.monotonic()
        if now >= self._next_poll:
            stats = [os.stat(path) for path in self._watched_paths]
            states = [(status.st_size, status.st_mtime_ns) for status in stats]
            if states != self._last_states:
                self._last_states = states
                self._reopen()
            self._next_poll = time.monotonic() + max(POLL_SECONDS, POLL_FACTOR * (time.monotonic() - now))
        return FramesSoFar(self._count, over=self.over(self._count))

    def _reopen(self) -> None:
        trajectories, topology, keywords = self._open_arguments
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # a cut last frame is expected
                origin = open_origin(trajectories, topology, keywords)
        except TrajectoryError:  # the file is being written
            return
        if origin.n_frames < self._count or (self._atoms and origin.n_atoms != self._atoms):
            raise TrajectoryError(
                f"{origin.paths[-1]} had {self._count} frames of {self._atoms} atoms and now has {origin.n_frames} of "
                f"{origin.n_atoms}: it was replaced while it was followed"
            )
        self._count, self._atoms = origin.n_frames, origin.n_atoms
        self._watched_paths = [path for file, _ in origin.files() for path in file.stamps]


POLL_SECONDS = 0.25  # minimum seconds between polls of files
POLL_FACTOR = 10
