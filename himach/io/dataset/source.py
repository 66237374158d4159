"""Where the frames of a run come from: `Source`, the cache of this node, else the origin."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from himach.errors import TrajectoryError
from himach.frame import DATA, FIELDS, POSITIONS, Needs, RawFrame
from himach.io.dataset.origin_watch import OriginChangedError, OriginWatch
from himach.io.dataset.writeback import Writeback, Written
from himach.io.store.bodhi import REASON_UNREACHABLE, REASONS
from himach.io.store.cached_frames import CachedFrames
from himach.io.store.store import Dataset, StoreError
from himach.io.timemajor.tracks import open_tracks
from himach.io.trajectory.origin import Origin

if TYPE_CHECKING:
    from himach.io.server.client import Client

__all__ = ["Source"]

Numbers = npt.NDArray[np.int64]

CHECK_SECONDS = 1.0  # between two looks at the origin's files
UNREACHABLE = REASONS[REASON_UNREACHABLE]


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
    tracks
        Read the time-major form of what is cached where that costs fewer bytes.

    Attributes
    ----------
    lost
        Why another user's store was not read to the end; empty if it was, or if there is none.
    bytes_origin, bytes_cache
        Bytes of the frames read so far from the origin and from the cache.
    """

    def __init__(
        self,
        origin: Origin,
        cached: Dataset | Client | None = None,
        keep: bool = False,
        server: Client | None = None,
        needs: Needs | None = None,
        watch: OriginWatch | None = None,
        ranks: int = 1,
        tracks: bool = True,
    ) -> None:
        self._origin = origin
        self._watch = watch
        self._cached = cached
        self._server = server
        self._atoms = None if needs is None else needs.atoms
        self._fields = FIELDS if needs is None else needs.fields
        self._tracks = open_tracks(cached, self._atoms) if tracks else None
        self._numbers: Numbers = np.empty(0, dtype=np.int64)
        self._late: dict[int, _LateReader] = {}
        self._writeback: Writeback | None = None
        self._writable = cached if isinstance(cached, Dataset) else None
        if self._writable is not None and keep and origin.present:
            self._writeback = Writeback(self._writable, None if watch is None else watch.holds, ranks)
        self._read_some = False
        self._check_at = 0.0
        self.lost = ""
        self.bytes_origin = 0
        self.bytes_cache = 0

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
        for start, stop in _runs(held):
            read = self._from_cache if held[start] else self._from_origin
            yield from read(numbers[start:stop])

    def _chunks(self, numbers: Numbers, held: npt.NDArray[np.bool_]) -> Numbers:
        """Return from which chunk of the time-major form each frame is read; below 0: it is read by itself."""
        if self._tracks is None or self._fields != POSITIONS:
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
            return next(self._read_origin([number], 0))
        self._fields |= field
        if field not in self._late:
            (place,) = np.flatnonzero(self._numbers == number)[:1]
            self._late[field] = _LateReader(self._frames, self._numbers[place:], self._atoms, field)
        reader = self._late[field]
        frame = reader.frame(number)
        self.bytes_cache += reader.nbytes()
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
        if self._writeback is not None:
            self._writeback.close()

    def close(self, keep: bool = True) -> Written:
        """Close what is open, and return what came of keeping frames in the cache; unless `keep`, they are dropped."""
        self._origin.close()
        if self._server is not None:
            self._server.close()
        return Written() if self._writeback is None else self._writeback.close(keep)

    @property
    def _frames(self) -> CachedFrames:
        """What cached frames are read from."""
        found = self._cached if self._server is None else self._server
        assert found is not None
        return found

    def _from_cache(self, numbers: Numbers) -> Iterator[RawFrame]:
        fields = self._fields
        reading = self._frames.read(numbers, self._atoms, fields)
        try:
            for done, frame in enumerate(reading):
                if frame is not None:
                    frame.unread = FIELDS & ~fields
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
        if reason != "damaged" or self._writeback is None:
            return
        assert self._writable is not None
        try:
            for native in (False, True):
                self._writable.drop([number], native=native)
        except StoreError:  # it stays a miss
            pass

    def _from_origin(self, numbers: Numbers) -> Iterator[RawFrame]:
        done = 0
        try:
            for frame in self._read_origin(numbers, self._first_atoms()):
                done += 1
                if self._writeback is not None:
                    self._writeback.offer(frame)
                yield frame
        finally:
            self.bytes_origin += self._origin.nbytes(numbers[:done])

    def _read_origin(self, numbers: Iterable[int], needed: int | None = None) -> Iterator[RawFrame]:
        """Read from the origin, which is looked at every so often, and if it cannot be read."""
        self._read_some = True
        if self._watch is None:
            yield from self._origin.read(numbers, needed)
            return
        try:
            for frame in self._origin.read(numbers, needed):
                if time.monotonic() > self._check_at:
                    self._watch.check(last=False)
                    self._check_at = time.monotonic() + CHECK_SECONDS
                yield frame
        except OriginChangedError:
            raise
        except TrajectoryError:
            self._watch.check()  # that it has changed says more
            raise

    def _first_atoms(self) -> int | None:
        """Return how many atoms from the first on must be read from the origin.

        A frame that is kept is kept whole; where most of its atoms are needed, it is decoded once for both.
        """
        if self._atoms is None:
            return None
        needed = int(self._atoms[-1]) + 1 if len(self._atoms) else 0
        return None if self._writeback is not None and needed > self._origin.n_atoms // 2 else needed


def _runs(values: npt.NDArray[np.generic]) -> Iterator[tuple[int, int]]:
    """Yield where equal values that follow one another begin and end."""
    edges = np.flatnonzero(values[1:] != values[:-1]) + 1
    return itertools.pairwise([0, *edges.tolist(), len(values)] if len(values) else [])


class _LateReader:
    """A second reader over the frames of a task, for a field that turned out to be needed after the task had begun."""

    def __init__(self, frames: CachedFrames, numbers: Numbers, atoms: Numbers | None, field: int) -> None:
        self._reading = frames.read(numbers, atoms, field)
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
