"""Where the frames of a run come from: `Source`, which counts the bytes it takes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from himach.frame import RawFrame
from himach.io.origin import Origin

__all__ = ["Source"]


class Source:
    """Frames by number, and how many bytes they took.

    Parameters
    ----------
    origin
        Where the dataset is stored for good.

    Attributes
    ----------
    bytes_origin, bytes_cache
        Bytes of the frames read so far from the origin and from the cache.
    """

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self.bytes_origin = 0
        self.bytes_cache = 0

    def read(self, numbers: npt.NDArray[np.int64]) -> Iterator[RawFrame]:
        """Read frames in the order asked for; the arrays of one hold until the next (see `Origin.read`)."""
        for frame in self._origin.read(numbers):
            self.bytes_origin += self._origin.nbytes((frame.number,))
            yield frame

    def close(self) -> None:
        """Close what is open."""
        self._origin.close()
