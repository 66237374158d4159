"""Readahead of files: `Ahead` requests the bytes of frames from the operating system before they are decoded.

A rank decodes a frame while the disk or the file server loads the next ones. It requests its task's frames and those
that follow at the same stride: the next tasks of all ranks of its node, which share the page cache.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence

from himach.io.trajectories.urls.byte_file import ByteFile
from himach.io.trajectories.urls.mirror import join_places

BATCH_BYTES = 8 << 20  # per request; one to two batches are ahead of the reader
FIRST_BATCH_DIVISOR = 32  # the first batch is so many times smaller; each next one doubles
BATCH_FRAMES = 1024  # at most: the operating system reads ahead small frames by itself
HOLE_BYTES = 1 << 14  # largest gap between stretches that is read too; larger ones would slow others at the origin
REMEMBERED_BATCHES = 16  # batches that are not requested again


def ask_for(path: str, places: Iterable[tuple[int, int]]) -> None:
    """Request byte ranges in the background; returns at once and never raises OSError."""
    with contextlib.suppress(OSError), ByteFile(path) as file:  # reading the file raises again
        if file.mirror is not None:
            file.mirror.ask(places)
            return
        for start, stop in join_places(places, HOLE_BYTES):
            os.posix_fadvise(file.descriptor, start, stop - start, os.POSIX_FADV_WILLNEED)


class Ahead:
    """Requests frames ahead of a reader: `ask` does it by number; a frame has about `frame_bytes`.

    Batches start small and grow, so that the first frames of all ranks come before the later ones of any.
    """

    def __init__(self, n_frames: int, frame_bytes: int, ask: Callable[[Sequence[int]], object]) -> None:
        self._n_frames = n_frames
        self._batch = min(BATCH_FRAMES, max(1, BATCH_BYTES // max(1, frame_bytes)))
        self._size = max(1, self._batch // FIRST_BATCH_DIVISOR)
        self._ask = ask
        self._numbers: Sequence[int] = ()
        self._n_requested = self._batch_start = 0
        self._recent: set[int] = set()

    def start(self, numbers: Sequence[int]) -> None:
        """Set the frames that are read next, in this order."""
        self._n_requested = self._batch_start = 0
        self._numbers = numbers if len(numbers) < 2 else [*numbers, *self._following(*numbers[-2:])]

    def _following(self, before: int, last: int) -> range:
        """Return the frames that ranks take after a task, if the next tasks go on at its stride."""
        stride = last - before
        if stride <= 0:
            return range(0)
        return range(last + stride, min(self._n_frames, last + stride * (1 + self._batch)), stride)

    def reach(self, place: int) -> None:
        """Request what follows the frame at this index of `start`'s frames."""
        while self._n_requested < len(self._numbers) and self._batch_start <= place:  # the reader is at the last batch
            batch = self._numbers[self._n_requested : self._n_requested + self._size]
            self._batch_start = self._n_requested
            self._n_requested += len(batch)
            self._size = min(2 * self._size, self._batch)
            self._ask([number for number in batch if number not in self._recent])
            if len(self._recent) > REMEMBERED_BATCHES * self._batch:
                self._recent.clear()
            self._recent.update(batch)
