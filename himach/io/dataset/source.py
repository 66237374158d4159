"""Where the frames of a run come from: `Source`, the cache of this node, else the origin."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from himach.frame import FIELDS, Needs, RawFrame
from himach.io.dataset.writeback import Keeper, Kept, Quota
from himach.io.store.store import Dataset, StoreError
from himach.io.trajectory.origin import Origin

if TYPE_CHECKING:
    from himach.io.server.client import Client

__all__ = ["Source"]

Numbers = npt.NDArray[np.int64]


class Source:
    """Frames by number: from the cache where it holds them, else from the origin, and then kept in the cache.

    Parameters
    ----------
    origin
        Where the dataset is stored for good.
    cached
        What this node's store holds of it; None without a cache.
    quota
        What may be kept; None: nothing is.
    server
        A connection to the store's server, in which the dataset is open. Frames are then read as it says, in turn with
        its other readers; None: this process reads the store by itself.
    needs
        What of each frame is needed; more may be read.

    Attributes
    ----------
    bytes_origin, bytes_cache
        Bytes of the frames read so far from the origin and from the cache.
    """

    def __init__(
        self,
        origin: Origin,
        cached: Dataset | None = None,
        quota: Quota | None = None,
        server: Client | None = None,
        needs: Needs | None = None,
    ) -> None:
        self._origin = origin
        self._cached = cached
        self._server = server
        self._needs = Needs() if needs is None else needs
        self._keeper: Keeper | None = None
        if cached is not None and quota is not None and quota.nbytes > 0 and origin.present:
            self._keeper = Keeper(cached, quota)
        self.bytes_origin = 0
        self.bytes_cache = 0

    def read(self, numbers: Numbers) -> Iterator[RawFrame]:
        """Read frames in the order asked for; the arrays of one hold until the next (see `Origin.read`)."""
        if self._cached is None:
            yield from self._from_origin(numbers)
            return
        held = self._cached.holds(numbers)
        for start, stop in itertools.pairwise([0, *np.flatnonzero(np.diff(held)) + 1, len(numbers)]):
            from_cache = self._from_cache if self._server is None else self._by_server
            read = from_cache if held[start] else self._from_origin
            yield from read(numbers[start:stop])

    def close(self) -> Kept:
        """Close what is open, and return what came of keeping frames."""
        self._origin.close()
        if self._server is not None:
            self._server.close()
        return Kept() if self._keeper is None else self._keeper.close()

    def _by_server(self, numbers: Numbers) -> Iterator[RawFrame]:
        assert self._server is not None
        done, before = 0, self._server.nbytes
        try:
            for number, frame in zip(numbers.tolist(), self._server.read(numbers), strict=True):
                done += 1
                self.bytes_cache += self._server.nbytes - before
                before = self._server.nbytes
                if frame is None:
                    yield from self._from_origin(np.array([number]))
                else:
                    yield frame
        except StoreError:  # the server has ended or is at its limits: the store can be read without it
            self._server = None
            yield from self._from_cache(numbers[done:])

    def _from_cache(self, numbers: Numbers) -> Iterator[RawFrame]:
        done = 0
        while done < len(numbers):  # once, unless a map() comes to need another field on the way
            for frame in self._read_cached(numbers[done:], self._needs.fields):
                done += 1
                yield frame

    def _read_cached(self, numbers: Numbers, fields: int) -> Iterator[RawFrame]:
        """Read frames for as long as nothing but these fields is needed."""
        assert self._cached is not None
        reading = self._cached.read(numbers, self._needs.atoms, fields)
        try:
            for number, frame in zip(numbers.tolist(), reading, strict=True):
                if frame is None:
                    self._forget_damaged(number, reading.reason)
                    yield from self._from_origin(np.array([number]))
                else:
                    if fields != FIELDS:
                        frame.unread = FIELDS & ~fields
                        frame.more = partial(self._again, number)
                    yield frame
                if self._needs.fields != fields:
                    return
        finally:
            self.bytes_cache += reading.nbytes

    def _again(self, number: int, field: int) -> RawFrame:
        """Read a frame again with one more field, and all frames that follow."""
        self._needs.fields |= field
        (frame,) = self._from_cache(np.array([number]))
        arrays = (frame.positions, frame.velocities, frame.forces)
        positions, velocities, forces = (None if array is None else array.copy() for array in arrays)
        assert positions is not None
        return RawFrame(number, frame.time, positions, frame.box, velocities, forces)

    def _forget_damaged(self, number: int, reason: str) -> None:
        """Drop a frame that is damaged, so that it is kept anew."""
        if reason != "damaged" or self._keeper is None:
            return
        assert self._cached is not None
        try:
            for native in (False, True):
                self._cached.drop([number], native=native)
        except StoreError:  # it stays a miss
            pass

    def _from_origin(self, numbers: Numbers) -> Iterator[RawFrame]:
        for frame in self._origin.read(numbers, self._needed()):
            self.bytes_origin += self._origin.nbytes((frame.number,))
            if self._keeper is not None:
                self._keeper.keep(frame)
            yield frame

    def _needed(self) -> int | None:
        """Return how many atoms from the first on must be read from the origin; a frame that is kept is kept whole."""
        atoms = self._needs.atoms
        if atoms is None or self._keeper is not None:
            return None
        return int(atoms[-1]) + 1 if len(atoms) else 0
