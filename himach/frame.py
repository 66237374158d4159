"""Frames: `RawFrame` as it comes from a source, `Frame` as a map() sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from MDAnalysis import Universe

__all__ = ["Frame", "RawFrame"]

Vectors = npt.NDArray[np.float32]


@dataclass(slots=True)
class RawFrame:
    """One frame as read: plain values, no molecules. Its arrays are the reader's and hold until the next frame is read.

    Attributes
    ----------
    number
        Frame number in the dataset.
    time
        Time in ps.
    positions
        float32 (n_atoms, 3), Å, C-contiguous and writable.
    box
        float32 (6,): lengths in Å and angles in degrees; None without a box.
    velocities, forces
        float32 (n_atoms, 3) in Å/ps and kJ/(mol Å), or None.
    """

    number: int
    time: float
    positions: Vectors
    box: Vectors | None = None
    velocities: Vectors | None = None
    forces: Vectors | None = None


@dataclass(slots=True)
class Frame:
    """One frame as map() sees it.

    Attributes
    ----------
    number
        Frame number in the dataset.
    step
        Position of the frame in the selection (start, stop, step), from 0.
    time
        Time in ps.
    positions
        float32 (n_atoms, 3), Å, writable; holds until map() ends.
    box
        float32 (6,): lengths in Å and angles in degrees; None without a box.
    velocities, forces
        float32 (n_atoms, 3) in Å/ps and kJ/(mol Å), or None where the trajectory has none.
    universe
        This analysis's own Universe, at this frame.
    """

    number: int
    step: int
    time: float
    positions: Vectors
    box: Vectors | None
    velocities: Vectors | None
    forces: Vectors | None
    universe: Universe
