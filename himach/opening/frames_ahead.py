"""Frames of a dataset for a reader that is asked for one at a time: `FramesAhead` sees where calls go, and reads ahead.

MDAnalysis asks for frame after frame, for every tenth, or for any. Where three in turn are evenly spaced, or two are
neighbours, a task of the frames that come next is read at once, as the map loop of a run does.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np

from himach.frame import RawFrame
from himach.io.dataset.source import Source
from himach.opening.dataset import OpenDataset

__all__ = ["FramesAhead"]

TASK = 512  # frames that are read ahead, at most; the bytes ahead are bounded by the library


class FramesAhead:
    """The frames of a dataset by number; the files that are open close with it.

    Parameters
    ----------
    dataset
        Where they come from.
    """

    def __init__(self, dataset: OpenDataset) -> None:
        self._dataset = dataset
        self._frames = range(dataset.origin.n_frames)
        self._source: Source | None = None
        self._closing: weakref.finalize[[], FramesAhead] | None = None
        self._reading: Iterator[RawFrame] = iter(())
        self.rewind()

    def rewind(self) -> None:
        """Expect the first frame next, and its neighbours after it."""
        self._planned = range(0)
        self._last, self._step = -1, 1

    def frame(self, number: int) -> RawFrame:
        """Return a frame, whose arrays hold until the next call.

        Raises
        ------
        TrajectoryError
            It cannot be had, or is damaged.
        """
        if not self._planned or self._planned[0] != number:
            self._plan(number)
        try:
            raw = next(self._reading)
        except BaseException:
            self.rewind()
            raise
        self._last, self._planned = number, self._planned[1:]
        return raw

    def _plan(self, number: int) -> None:
        """Begin a task at this frame."""
        step = number - self._last
        if step and (step in (1, self._step)):
            end = self._frames.stop if step > 0 else -1
            self._planned = range(number, end, step)[:TASK]
        else:
            self._planned = range(number, number + 1)
        self._step = step
        self._reading = self._open().read(np.arange(self._planned.start, self._planned.stop, self._planned.step))

    def _open(self) -> Source:
        if self._source is None:
            self._source = self._dataset.source()
            # Also at the end of the process: what was read is kept.
            self._closing = weakref.finalize(self, self._source.close)
        return self._source

    def close(self) -> None:
        """Close what is open, when frames that were read are kept; a later call opens it again."""
        self._reading = iter(())
        self.rewind()
        if self._closing is not None:
            self._closing()
        self._source = self._closing = None
