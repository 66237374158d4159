"""`Source`: the frames of a run, from a chain of kept atoms, cached frames and the origin."""

import itertools
import time
from collections.abc import Iterator, Sequence
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
        self._writebacks: list[Writeback] = []
        if isinstance(cached, Dataset) and keep and origin.present:
            atoms = options.atoms if options.atoms is not None and len(options.atoms) else None
            holds = None if watch is None else watch.holds
            if atoms is not None:
                self._writebacks.append(Writeback(cached, holds, atoms=atoms))
            cores = CpuBudget(ranks, only_idle=atoms is not None)
            self._writebacks.append(Writeback(cached, holds, cores, first=first))
        self._cached = None if cached is None else StoredFrames(cached, bool(self._writebacks), _connect_server(cached))
        self._caches: list[StoredFrames] = [*open_kept_atoms(cached, options.atoms, origin.n_atoms)]
        if self._cached is not None:
            self._caches.append(self._cached)
        self._origin, self._watch = origin, watch
        self._has_read_origin = False
        self._check_at = 0.0
        self.bytes_origin = 0  # read so far from the origin

    @property
    def lost(self) -> str:
        """Why another user's store was abandoned; empty if it was not, or if none is used."""
        return "" if self._cached is None else self._cached.lost

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
                yield from self._read_origin(numbers[start:stop], options or self._options)
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

    def _read_origin(self, numbers: Numbers, options: ReadOptions, keep: bool = True) -> Iterator[RawFrame]:
        """Read frames of the origin, which is checked periodically; `keep` offers them to the writeback."""
        self._has_read_origin = True
        done = left = 0
        reading = self._origin.read(numbers, options)
        try:
            for frame in reading if self._watch is None else self._watch.reading(reading):
                if self._watch is not None and time.monotonic() > self._check_at:
                    self._watch.check()
                    self._check_at = time.monotonic() + CHECK_SECONDS
                done += 1
                for writeback in self._writebacks if keep else ():
                    writeback.offer(frame)
                left += frame.left if frame.coded is None else frame.coded.left
                yield frame
        finally:
            self.bytes_origin += self._origin.nbytes(numbers[:done]) - left

    def _read_field(self, options: ReadOptions, number: int, field: int) -> RawFrame:
        """Read a field of a frame from any place; later reads include that field."""
        if field == DATA:  # only the origin has it
            return replace(next(self._read_origin(np.array([number]), NO_ATOMS, keep=False)), unread=FIELDS)
        self._options = replace(self._options, fields=self._options.fields | field)
        return next(self._read(np.array([number]), replace(options, fields=field), 0))

    def confirm(self) -> None:
        """Check after the last frame that the origin did not change while this rank read it."""
        if self._watch is not None and self._has_read_origin:
            self._watch.check()

    def hurry(self) -> None:
        """Store the frames read so far before this process ends; may be called from any thread."""
        for writeback in self._writebacks:
            writeback.close()

    def close(self, keep: bool = True) -> WriteResult:
        """Close all places and return the result of caching frames, or their needed atoms; drop them unless `keep`."""
        self._origin.close()
        if self._cached is not None:
            self._cached.close()
        results = [writeback.close(keep) for writeback in self._writebacks]
        return results[0] if results else WriteResult()


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
