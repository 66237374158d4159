"""Frames of a file that is away, as far as others gave them: `AbsentFile`, one of the kinds of `FrameFile`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from himach.errors import TrajectoryError
from himach.frame import RawFrame
from himach.io.remote.byte_file import is_there
from himach.io.remote.url import is_url
from himach.io.trajectory.index.timeline import Timeline


def out_of_reach(path: str) -> str:
    """Return why a file is not read, and what to do."""
    if (os.path.isabs(path) or is_url(path)) and is_there(path):
        return f"{path} is not read for a dataset that goes by its name; name the file as the trajectory"
    return f"{path} cannot be reached; make it readable again"


class AbsentFile:
    """A file that cannot be reached, as of a `FrameFile`; `first` is the number in the dataset of its first frame.

    It has the `frames` that it is given, by their number in the dataset.
    """

    present = False
    timed = True
    topology: str | None = None
    stamps: tuple[str, ...] = ()

    def __init__(
        self,
        path: str,
        kind: str,
        n_frames: int,
        n_atoms: int,
        times: Timeline | None,
        keywords: Mapping[str, Any],
        first: int,
        frames: Mapping[int, RawFrame],
    ) -> None:
        self.path = path
        self.kind = kind
        self.n_frames = n_frames
        self.n_atoms = n_atoms
        self.times = times
        self.keywords = keywords
        self._first = first
        self._frames = frames

    def read(self, index: int, needed: int | None = None) -> RawFrame:
        """Return one frame, if it was given."""
        number = self._first + index
        if number not in self._frames:
            raise TrajectoryError(
                f"frame {number} cannot be had: no cache gives it, and {out_of_reach(self.path)}, or select frames "
                "that are cached"
            )
        return self._frames[number]

    def expect(self, indices: Sequence[int]) -> None:
        """Do nothing: there are no bytes to ask for."""

    def nbytes(self, indices: npt.NDArray[np.int64]) -> int:
        """Return 0: nothing is read from it."""
        return 0

    def release(self) -> None:
        """Do nothing: nothing is open."""
