"""Frames: `RawFrame` as it comes from a source, `Frame` as a map() sees it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from MDAnalysis import Universe

Vectors = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]

#: What a frame may hold, or-ed.
POSITIONS, VELOCITIES, FORCES = 1, 2, 4
FIELDS = POSITIONS | VELOCITIES | FORCES
#: Beside these, what no cache keeps: see `RawFrame.data`.
DATA = 8
#: Their names in a frame.
NAMES = {POSITIONS: "positions", VELOCITIES: "velocities", FORCES: "forces", DATA: "data"}


@dataclass(slots=True)
class Coded:
    """All positions of a frame as XTC compresses them."""

    memory: npt.NDArray[np.uint8]  # the reader's; who keeps it leaves other memory in its place, of any size
    begin: int = 0  # where the compressed part lies in it; what a decoder may read beyond lies behind it
    n_bytes: int = 0
    ends: tuple[int, ...] = ()  # the least and the greatest coordinate of each axis
    index: int = 0  # number of the small sizes at the beginning
    precision: float = 0.0  # steps per nm
    scale: float = 0.0  # what a position in nm is multiplied by
    n_atoms: int = 0
    left: int = 0  # bytes of the frame that were left in the file, as all atoms that were needed lie before them
    complete: Callable[[], None] | None = None  # reads these; raises OSError and ValueError. None: nothing was left


@dataclass(slots=True)
class RawFrame:
    """One frame as read: plain values, no molecules. Its arrays are the reader's, until the next frame is read."""

    number: int  # in the dataset
    time: float  # ps
    positions: Vectors  # float32 (n_atoms, 3), Å, C-contiguous and writable
    box: Vectors | None = None  # float32 (6,): lengths in Å and angles in degrees; None without a box
    velocities: Vectors | None = None  # as positions, Å/ps
    forces: Vectors | None = None  # kJ/(mol Å)
    # Which of `FIELDS` and `DATA` were not read and may be there, or-ed.
    unread: int = dataclasses.field(default=0, kw_only=True)
    # Reads the frame of a number with one of these; None: they stay unread.
    more: Callable[[int, int], RawFrame] | None = dataclasses.field(default=None, kw_only=True)
    # What the file says of the frame beside all this, as MDAnalysis's ``ts.data`` has it; None where it was not read.
    data: dict[str, Any] | None = dataclasses.field(default=None, kw_only=True)
    # Where only some atoms' positions were decoded, all as they were read.
    coded: Coded | None = dataclasses.field(default=None, kw_only=True)
    # Bytes of the frame that were left where it lies, as nobody needed their atoms; their rows hold anything.
    left: int = dataclasses.field(default=0, kw_only=True)
    # Steps per nm of positions that an XTC file has compressed; else what XTC's writers take.
    precision: float = dataclasses.field(default=1000.0, kw_only=True)

    def field(self, which: int) -> Any:
        """Return one of `FIELDS`, or `DATA`, and read it if it is unread; vectors hold until the next frame is read."""
        if self.more is not None and self.unread & which:
            other = self.more(self.number, which)
            for field, name in NAMES.items():
                if self.unread & field & ~other.unread:
                    setattr(self, name, getattr(other, name))
            self.unread &= other.unread
        return getattr(self, NAMES[which])


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
        float32 (n_atoms, 3), Å, writable; holds until map() ends. Where the analysis has atoms(), an `AskedVectors`,
        whose ``positions[indices]`` gives the rows of atoms that it asked for.
    box
        float32 (6,): lengths in Å and angles in degrees; None without a box.
    velocities, forces
        As positions, in Å/ps and kJ/(mol Å), or None where the frame has none. Where nobody has touched them before,
        they are read at this moment, and from then on with every frame.
    universe
        This analysis's own Universe, at this frame.
    data
        What the file says of the frame beside all this, by name, as MDAnalysis's reader does: its step, a lambda,
        additional columns; empty where it says nothing. Caches do not keep it: it is read from the trajectory.
    member
        Name of the member of an ensemble that the frame is of; None in other runs.
    """

    number: int
    step: int
    time: float
    positions: Vectors
    box: Vectors | None
    velocities: Vectors | None
    forces: Vectors | None
    universe: Universe
    data: dict[str, Any] = dataclasses.field(default_factory=dict)
    member: str | None = None

    @property
    def pair_box(self) -> Vectors | None:
        """The box that goes with pairs of the frame."""
        return self.box
