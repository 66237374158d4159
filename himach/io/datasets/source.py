"""`Source`: the frames of a run, from a chain of kept atoms, cached frames and the origin."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from himach.frame import DATA, FIELDS, RawFrame
from himach.io.datasets.origin_stamp import OriginWatch
from himach.io.datasets.subsets import StoredFrames, open_kept_atoms
from himach.io.datasets.writeback import CpuBudget, Writeback, WriteResult
from himach.io.frame_source import WHOLE, FrameSource, Numbers, ReadOptions
from himach.io.server.client import Client, find
from himach.io.store.cached_frames import CachedFrames
from himach.io.store.store import Dataset, StoreError
from himach.io.trajectories.origin import Origin

CHECK_SECONDS = 1.0  # between checks of the origin's files
NO_ATOMS = ReadOptions(np.empty(0, dtype=np.int64))


class Source(FrameSource):
    """Frames by number, each from the first place that holds it, or from the next place if that read fails."""

    def __init__(
        self,
        origin: Origin,
        cached: CachedFrames | None = None,
        keep: bool = False,
        options: ReadOptions = WHOLE,
        watch: OriginWatch | None = None,
        ranks: int = 1,
        first: int = -1,
    ) -> None:
        self._options = options
        self._writeback: Writeback | None = None
        if isinstance(cached, Dataset) and keep and origin.present:
            atoms = options.atoms if options.atoms is not None and len(options.atoms) else None
            cores = CpuBudget(ranks, only_idle=atoms is not None)
            self._writeback = Writeback(cached, None if watch is None else watch.holds, cores, atoms, first)
        self._cached = (
            None if cached is None else StoredFrames(cached, self._writeback is not None, _connect_server(cached))
        )
        self._caches: list[StoredFrames] = [*open_kept_atoms(cached, options.atoms, origin.n_atoms)]
        if self._cached is not None:
            self._caches.append(self._cached)
        self._origin = _OriginFrames(origin, watch, self._writeback)

    @property
    def lost(self) -> str:
        """Why another user's store was abandoned; empty if it was not, or if none is used."""
        return "" if self._cached is None else self._cached.lost

    @property
    def bytes_origin(self) -> int:
        """Bytes read so far from the origin."""
        return self._origin.nbytes

    @property
    def bytes_cache(self) -> int:
        """Bytes read so far from the cache."""
        return sum(cache.nbytes for cache in self._caches)

    @property
    def damaged(self) -> int:
        """Number of damaged frames found so far in the cache and read elsewhere."""
        return sum(cache.damaged for cache in self._caches)

    def holds(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """Return which of the frames exist, bool (n,)."""
        return self._origin.holds(numbers)

    def read(self, numbers: Sequence[int] | Numbers, options: ReadOptions | None = None) -> Iterator[RawFrame]:
        """Read frames in the given order; see `FrameSource.read`."""
        return self._read(np.asarray(numbers, dtype=np.int64), options, 0)

    def _read(self, numbers: Numbers, options: ReadOptions | None, first: int) -> Iterator[RawFrame]:
        """Read frames from the `first` place and later ones."""
        places = np.full(len(numbers), len(self._caches))
        for place in reversed(range(first, len(self._caches))):
            places[self._caches[place].holds(numbers)] = place
        for start, stop in _split_runs(places):
            if places[start] == len(self._caches):
                yield from self._origin.read(numbers[start:stop], options or self._options)
            else:
                yield from self._read_cache(int(places[start]), numbers[start:stop], options)

    def _read_cache(self, place: int, numbers: Numbers, options: ReadOptions | None) -> Iterator[RawFrame]:
        """Read frames that a cache holds; read misses from later places."""
        cache = self._caches[place]
        options = options or self._options
        for done, frame in enumerate(cache.read(numbers, options)):
            if frame is not None:
                frame.more = partial(self._read_field, options)
                yield frame
            elif cache.missed(int(numbers[done])):
                yield from self._read(numbers[done:], options, place)
                return
            else:
                yield from self._read(numbers[done : done + 1], options, place + 1)

    def _read_field(self, options: ReadOptions, number: int, field: int) -> RawFrame:
        """Read a field of a frame from any place; later reads include that field."""
        if field == DATA:  # only the origin has it
            return replace(next(self._origin.read_data(number)), unread=FIELDS)
        self._options = replace(self._options, fields=self._options.fields | field)
        return next(self._read(np.array([number]), replace(options, fields=field), 0))

    def confirm(self) -> None:
        """Check after the last frame that the origin did not change while this rank read it."""
        self._origin.confirm()

    def hurry(self) -> None:
        """Store the frames read so far before this process ends; may be called from any thread."""
        if self._writeback is not None:
            self._writeback.close()

    def close(self, keep: bool = True) -> WriteResult:
        """Close all places and return the result of caching frames; drop these frames unless `keep`."""
        self._origin.close()
        if self._cached is not None:
            self._cached.close()
        return WriteResult() if self._writeback is None else self._writeback.close(keep)


class _OriginFrames(FrameSource):
    """Frames of the origin, which is checked periodically; every frame is offered to the writeback."""

    def __init__(self, origin: Origin, watch: OriginWatch | None, writeback: Writeback | None) -> None:
        self._origin = origin
        self._watch = watch
        self._writeback = writeback
        self._has_read = False
        self._check_at = 0.0
        self.nbytes = 0

    def holds(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        return self._origin.holds(numbers)

    def read(self, numbers: Sequence[int] | Numbers, options: ReadOptions = WHOLE) -> Iterator[RawFrame]:
        done = left = 0
        try:
            for frame in self._read_watched(numbers, options):
                done += 1
                if self._writeback is not None:
                    self._writeback.offer(frame)
                left += frame.left if frame.coded is None else frame.coded.left
                yield frame
        finally:
            self.nbytes += self._origin.nbytes(numbers[:done]) - left

    def read_data(self, number: int) -> Iterator[RawFrame]:
        self.nbytes += self._origin.nbytes((number,))
        return self._read_watched([number], NO_ATOMS)

    def _read_watched(self, numbers: Iterable[int], options: ReadOptions) -> Iterator[RawFrame]:
        self._has_read = True
        if self._watch is None:
            yield from self._origin.read(numbers, options)
            return
        for frame in self._watch.reading(self._origin.read(numbers, options)):
            if time.monotonic() > self._check_at:
                self._watch.check()
                self._check_at = time.monotonic() + CHECK_SECONDS
            yield frame

    def confirm(self) -> None:
        if self._watch is not None and self._has_read:
            self._watch.check()

    def close(self) -> None:
        self._origin.close()


def _split_runs(values: Numbers) -> Iterator[tuple[int, int]]:
    """Return start and stop of each run of equal values."""
    edges = np.flatnonzero(values[1:] != values[:-1]) + 1
    return itertools.pairwise([0, *edges.tolist(), len(values)] if len(values) else [])


def _connect_server(dataset: CachedFrames) -> Client | None:
    """Open a dataset through the server of its store; return None without a server."""
    if not isinstance(dataset, Dataset) or not (dataset.store.path / "server" / "socket").exists():
        return None
    client = None
    try:
        client = find(dataset.store.path)
        return None if client is None else client.open(dataset.name, dataset.generation)
    except StoreError:  # refused or unknown dataset: the store is readable without a server
        if client is not None:
            client.close()
        return None
