"""Where the frames of a run come from: `Source`, the cache of this node, else the origin."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from himach.errors import TrajectoryError
from himach.frame import DATA, FIELDS, POSITIONS, Needs, RawFrame
from himach.io.dataset.cpu_budget import CpuBudget
from himach.io.dataset.origin_watch import OriginChangedError, OriginWatch
from himach.io.dataset.subsets import open_subsets
from himach.io.dataset.writeback import Writeback, Written
from himach.io.frame_source import WHOLE, ReadOptions
from himach.io.remote.byte_file import leave
from himach.io.store.bodhi import REASON_DAMAGED, REASON_UNREACHABLE, REASONS
from himach.io.store.cached_frames import CachedFrames
from himach.io.store.store import Dataset, StoreError
from himach.io.timemajor.tracks import open_tracks
from himach.io.trajectory.origin import Origin

if TYPE_CHECKING:
    from himach.io.server.client import Client

__all__ = ["Source"]

Numbers = npt.NDArray[np.int64]

CHECK_SECONDS = 1.0  # between two looks at the origin's files
NO_ATOMS = ReadOptions(np.empty(0, dtype=np.int64))
UNREACHABLE, DAMAGED = REASONS[REASON_UNREACHABLE], REASONS[REASON_DAMAGED]


class Source:
    """Frames by number: from the cache where it holds them, else from the origin, and then kept in the cache.

    Parameters
    ----------
    origin
        Where the dataset is stored for good.
    cached
        What this node's store holds of it; another user's, by its server. None without a cache.
    keep
        Keep there what was read from the origin.
    server
        A connection to the store's server, in which the dataset is open: frames are read as it says, and by this
        process alone when it has ended. None: this process reads the store by itself.
    needs
        What of each frame is needed; `late` reads what turns out to be needed beside that.
    watch
        Looks to it that the origin stays what it was.
    ranks
        How many share the cores that this process may use.
    first
        The frame that setup() sees, of which all atoms are kept, whatever is needed of others.
    tracks
        Read the time-major form of what is cached where that costs fewer bytes.

    Attributes
    ----------
    lost
        Why another user's store was not read to the end; empty if it was, or if there is none.
    bytes_origin, bytes_cache
        Bytes of the frames read so far from the origin and from the cache.
    damaged
        Copies in the cache that were damaged so far, in whose place the origin was read.
    """

    def __init__(
        self,
        origin: Origin,
        cached: CachedFrames | None = None,
        keep: bool = False,
        server: Client | None = None,
        needs: Needs | None = None,
        watch: OriginWatch | None = None,
        ranks: int = 1,
        first: int = -1,
        tracks: bool = True,
    ) -> None:
        self._origin = origin
        self._watch = watch
        self._cached = cached
        self._server = server
        self._wanted = ReadOptions(fields=FIELDS) if needs is None else ReadOptions(needs.atoms, needs.fields)
        self._tracks = open_tracks(cached, self._wanted.atoms) if tracks else None
        self._numbers: Numbers = np.empty(0, dtype=np.int64)
        self._late: dict[int, _LateReader] = {}
        self._writeback: Writeback | None = None
        self._writable = cached if isinstance(cached, Dataset) else None
        self._subsets = open_subsets(cached, self._wanted.atoms, origin)
        self._subset_writeback: Writeback | None = None
        self._first = first
        if self._writable is not None and keep and origin.present:
            cores = CpuBudget(ranks, only_idle=self._subsets is not None)
            self._writeback = Writeback(self._writable, None if watch is None else watch.holds, cores)
        self._read_some = False
        self._check_at = 0.0
        self.lost = ""
        self.bytes_origin = 0
        self.bytes_cache = 0
        self.damaged = 0

    def read(self, numbers: Numbers) -> Iterator[RawFrame]:
        """Read frames in the order asked for; the arrays of one hold until the next (see `Origin.read`).

        Of a frame from the cache, velocities and forces that were not asked for so far are unread.
        """
        self._numbers, self._late = numbers, {}
        if self._cached is None:
            yield from self._from_origin(numbers)
            return
        held = self._held(numbers)
        chunks = self._chunks(numbers, held)
        for start, stop in _runs(chunks):
            some = numbers[start:stop]
            if chunks[start] >= 0:
                yield from self._from_tracks(int(chunks[start]), some)
            else:
                yield from self._frame_by_frame(some, held[start:stop])

    def _frame_by_frame(self, numbers: Numbers, held: npt.NDArray[np.bool_]) -> Iterator[RawFrame]:
        places = self._choose_subsets(numbers)
        for start, stop in _runs(np.where(places < 0, -1 - held, places)):
            some = numbers[start:stop]
            if places[start] >= 0:
                yield from self._from_subsets(int(places[start]), some)
            else:
                yield from (self._from_cache if held[start] else self._from_origin)(some)

    def _choose_subsets(self, numbers: Numbers) -> Numbers:
        """Return from which subsets each frame is read; below 0: from none."""
        if self._subsets is None:
            return np.full(len(numbers), -1)
        try:
            return self._subsets.choose(numbers)
        except StoreError:  # it was deleted meanwhile
            self._subsets = None
            return np.full(len(numbers), -1)

    def _chunks(self, numbers: Numbers, held: npt.NDArray[np.bool_]) -> Numbers:
        """Return from which chunk of the time-major form each frame is read; below 0: it is read by itself."""
        if self._tracks is None or self._wanted.fields != POSITIONS:
            return np.full(len(numbers), -1)
        return self._tracks.chosen(numbers, held)

    def _from_tracks(self, chunk: int, numbers: Numbers) -> Iterator[RawFrame]:
        """Read frames of a chunk, and those by themselves that it does not give."""
        assert self._tracks is not None
        before = self._tracks.nbytes
        there = self._tracks.load(chunk, numbers)
        self.bytes_cache += self._tracks.nbytes - before
        for start, stop in _runs(there):
            some = numbers[start:stop]
            yield from self._tracks.read(some) if there[start] else self._frame_by_frame(some, self._held(some))

    def _held(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """Return which of the frames the cache holds, bool (n,)."""
        assert self._cached is not None
        try:
            return self._cached.holds(numbers)
        except StoreError as error:  # another user's server has ended
            self._lose(str(error))
            return np.zeros(len(numbers), dtype=bool)

    def _lose(self, why: str) -> None:
        self.lost = self.lost or f"frames are read from the origin, as the cache is away since: {why}"

    def late(self, number: int, field: int) -> RawFrame:
        """Read a field of a frame that was given out without it; from the next `read` on, it is read with every frame.

        Parameters
        ----------
        number
            The frame that was given out last.
        field
            One of `himach.frame.FIELDS`, or `DATA`, which the origin alone has.

        Returns
        -------
        RawFrame
            Has that field, at least; its arrays hold until the next call.
        """
        if field == DATA:
            self.bytes_origin += self._origin.nbytes((number,))
            return next(self._read_origin([number], NO_ATOMS))
        if not self._wanted.fields & field:
            self._wanted = replace(self._wanted, fields=self._wanted.fields | field)
        if field not in self._late:
            (place,) = np.flatnonzero(self._numbers == number)[:1]
            self._late[field] = _LateReader(self._frames, self._numbers[place:], replace(self._wanted, fields=field))
        reader = self._late[field]
        frame = reader.frame(number)
        self.bytes_cache += reader.nbytes()
        if frame is None and self._subsets is not None:
            frame = self._subsets.read_late(number, POSITIONS | field)
        if frame is None and reader.reason == UNREACHABLE and self._server is not None:
            self._server, self._late = None, {}  # the store can be read without it
            return self.late(number, field)
        return next(self._read_origin([number])) if frame is None else frame

    def confirm(self) -> None:
        """Check, after the last frame, that the origin stayed what it was while this rank read it.

        Raises
        ------
        OriginChangedError
            It did not; `close` must not keep what was read.
        """
        if self._watch is not None and self._read_some:
            self._watch.check()

    def hurry(self) -> None:
        """Have what was read so far kept before this process is ended; from any thread."""
        for writeback in (self._subset_writeback, self._writeback):
            if writeback is not None:
                writeback.close()

    def close(self, keep: bool = True) -> Written:
        """Close what is open, and return what came of keeping frames in the cache; unless `keep`, they are dropped."""
        self._origin.close()
        leave(self._origin.paths)
        if self._server is not None:
            self._server.close()
        written = Written() if self._writeback is None else self._writeback.close(keep)
        # What is kept of the atoms that were asked for is what the next run needs.
        return written if self._subset_writeback is None else self._subset_writeback.close(keep)

    @property
    def _frames(self) -> CachedFrames:
        """What cached frames are read from."""
        found = self._cached if self._server is None else self._server
        assert found is not None
        return found

    def _from_subsets(self, place: int, numbers: Numbers) -> Iterator[RawFrame]:
        assert self._subsets is not None
        reading = self._subsets.read(place, numbers, self._wanted.fields)
        try:
            for number, frame in zip(numbers.tolist(), reading, strict=True):
                if frame is not None:
                    yield frame
                    continue
                if reading.reason == DAMAGED:
                    self.damaged += 1
                    self._subsets.forget(place, number)
                some = np.array([number])
                yield from (self._from_cache if self._held(some).any() else self._from_origin)(some)
        finally:
            self.bytes_cache += reading.nbytes

    def _from_cache(self, numbers: Numbers) -> Iterator[RawFrame]:
        wanted = self._wanted
        reading = self._frames.read(numbers, wanted)
        try:
            for done, frame in enumerate(reading):
                if frame is not None:
                    frame.unread = FIELDS & ~wanted.fields
                    yield frame
                elif (
                    reading.reason == UNREACHABLE and self._server is not None
                ):  # the store can be read without its server
                    self._server = None
                    yield from self._from_cache(numbers[done:])
                    return
                else:
                    if reading.reason == UNREACHABLE:
                        self._lose("its server does not answer")
                    self._drop_damaged(int(numbers[done]), reading.reason)
                    yield from self._from_origin(numbers[done : done + 1])
        finally:
            self.bytes_cache += reading.nbytes

    def _drop_damaged(self, number: int, reason: str) -> None:
        """Drop a frame that is damaged, so that it is written anew."""
        if reason != DAMAGED:
            return
        self.damaged += 1
        if self._writeback is None:
            return
        assert self._writable is not None
        try:
            for native in (False, True):
                self._writable.drop([number], native=native)
        except StoreError:  # it stays a miss
            pass

    def _from_origin(self, numbers: Numbers) -> Iterator[RawFrame]:
        done = left = 0
        try:
            for frame in self._read_origin(numbers, WHOLE if self._decodes_whole() else self._wanted):
                done += 1
                self._keep(frame)
                left += frame.left if frame.coded is None else frame.coded.left
                yield frame
        finally:
            self.bytes_origin += self._origin.nbytes(numbers[:done]) - left

    def _keep(self, frame: RawFrame) -> None:
        """Have a frame of the origin kept: the atoms that are needed; and all of them, as cores allow."""
        if self._writeback is None:
            return
        if self._subsets is not None and self._subset_writeback is None:
            holds = None if self._watch is None else self._watch.holds
            try:
                self._subset_writeback = Writeback(self._subsets.begin().dataset, holds, atoms=self._wanted.atoms)
            except StoreError:  # no room for another directory: whole frames are kept, where they can be
                self._subsets = None
        if self._subset_writeback is not None:
            self._subset_writeback.offer(frame)
        if not frame.left:
            self._writeback.offer(frame, surely=frame.number == self._first)

    def _read_origin(self, numbers: Iterable[int], options: ReadOptions = WHOLE) -> Iterator[RawFrame]:
        """Read from the origin, which is looked at every so often, and if it cannot be read."""
        self._read_some = True
        if self._watch is None:
            yield from self._origin.read(numbers, options)
            return
        try:
            for frame in self._origin.read(numbers, options):
                if time.monotonic() > self._check_at:
                    self._watch.check(last=False)
                    self._check_at = time.monotonic() + CHECK_SECONDS
                yield frame
        except OriginChangedError:
            raise
        except TrajectoryError:
            self._watch.check()  # that it has changed says more
            raise

    def _decodes_whole(self) -> bool:
        """Tell whether frames of the origin are decoded whole, as those are that are kept and mostly needed."""
        needed = self._wanted.first_atoms
        kept = self._writeback is not None and self._subsets is None
        return kept and needed is not None and needed > self._origin.n_atoms // 2


def _runs(values: npt.NDArray[np.generic]) -> Iterator[tuple[int, int]]:
    """Yield where equal values that follow one another begin and end."""
    edges = np.flatnonzero(values[1:] != values[:-1]) + 1
    return itertools.pairwise([0, *edges.tolist(), len(values)] if len(values) else [])


class _LateReader:
    """A second reader over the frames of a task, for a field that turned out to be needed after the task had begun."""

    def __init__(self, frames: CachedFrames, numbers: Numbers, options: ReadOptions) -> None:
        self._reading = frames.read(numbers, options)
        self._numbers = iter(numbers.tolist())
        self._last: tuple[int, RawFrame | None] = (-1, None)
        self._counted = 0

    def frame(self, number: int) -> RawFrame | None:
        """Return the frame of the last call or one behind it; None if it cannot be read any more."""
        while self._last[0] != number:
            self._last = next(self._numbers), next(self._reading)
        return self._last[1]

    @property
    def reason(self) -> str:
        """Why the last frame that was missed was."""
        return self._reading.reason

    def nbytes(self) -> int:
        """Return the bytes read since this was last asked."""
        before, self._counted = self._counted, self._reading.nbytes
        return self._counted - before
