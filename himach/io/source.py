"""Where the frames of a run come from: `Source`, the cache of this node, else the origin."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from himach.frame import RawFrame
from himach.io.keeper import Keeper, Kept, Quota
from himach.io.origin import Origin
from himach.io.store import Dataset, StoreError

if TYPE_CHECKING:
    from himach.io.client import Client

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
    ) -> None:
        self._origin = origin
        self._cached = cached
        self._server = server
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
        assert self._cached is not None
        reading = self._cached.read(numbers)
        before = 0
        for number, frame in zip(numbers.tolist(), reading, strict=True):
            if frame is None:
                self._forget_damaged(number, reading.reason)
                yield from self._from_origin(np.array([number]))
                continue
            self.bytes_cache += reading.nbytes - before
            before = reading.nbytes
            yield frame

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
        for frame in self._origin.read(numbers):
            self.bytes_origin += self._origin.nbytes((frame.number,))
            if self._keeper is not None:
                self._keeper.keep(frame)
            yield frame
