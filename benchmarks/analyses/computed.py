"""A reader for MDAnalysis of frames that lie nowhere: it computes them. Importing it makes it known.

A file for it says in one line how many there are. Each has one atom, and is 1 ps behind the one before it.
"""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from MDAnalysis.coordinates.base import ReaderBase
from MDAnalysis.coordinates.timestep import Timestep

__all__ = ["Computed", "write"]


class Computed(ReaderBase):
    """Frames whose one atom goes along x."""

    format = "COMPUTED"
    units: ClassVar[dict[str, str]] = {"time": "ps", "length": "Angstrom"}

    def __init__(self, filename: str, **keywords: Any) -> None:
        keywords.setdefault("dt", 1.0)
        super().__init__(filename, **keywords)
        self.n_frames = int(Path(filename).read_text())
        self.n_atoms = 1
        self.ts: Timestep = Timestep(1, **self._ts_kwargs)
        self.ts.positions = np.zeros((1, 3), np.float32)
        self._read_frame(0)

    def _read_frame(self, frame: int) -> Timestep:
        self.ts.frame = frame
        self.ts._pos[0, 0] = frame % 1000
        return self.ts

    def _read_next_timestep(self, ts: Timestep | None = None) -> Timestep:
        if self.ts.frame + 1 >= self.n_frames:
            raise StopIteration
        return self._read_frame(self.ts.frame + 1)

    def _reopen(self) -> None:
        self.ts.frame = -1

    def close(self) -> None:
        """Do nothing: there is no file."""


def write(path: Path, n_frames: int) -> None:
    """Make a file of so many frames."""
    path.write_text(f"{n_frames}\n")
