"""Frames: `RawFrame` from a source, `Frame` for map()."""

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

#: Bit flags of the fields of a frame.
POSITIONS, VELOCITIES, FORCES = 1, 2, 4
FIELDS = POSITIONS | VELOCITIES | FORCES
#: Further field, which no cache keeps: see `RawFrame.data`.
DATA = 8
#: Attribute names of the fields.
NAMES = {POSITIONS: "positions", VELOCITIES: "velocities", FORCES: "forces", DATA: "data"}


@dataclass(slots=True)
class Coded:
    """All positions of a frame in XTC compression."""

    memory: npt.NDArray[np.uint8]  # the reader's; code that keeps it must replace it, by memory of any size
    begin: int = 0  # offset of the compressed data; padding that a decoder may read follows them
    n_bytes: int = 0
    ends: tuple[int, ...] = ()  # minimum and maximum coordinate of each axis
    index: int = 0  # number of the small sizes at the beginning
    precision: float = 0.0  # steps per nm
    scale: float = 0.0  # factor of positions in nm
    n_atoms: int = 0
    left: int = 0  # bytes of the frame not read from the file, because all needed atoms lie before them
    complete: Callable[[], None] | None = None  # reads these; raises OSError and ValueError. None if all were read


@dataclass(slots=True)
class RawFrame:
    """One frame as read: plain values, no molecules. The reader owns its arrays, which the next read overwrites."""

    number: int  # in the dataset
    time: float  # ps
    positions: Vectors  # float32 (n_atoms, 3), Å, C-contiguous and writable
    box: Vectors | None = None  # float32 (6,): lengths in Å and angles in degrees; None without a box
    velocities: Vectors | None = None  # as positions, Å/ps
    forces: Vectors | None = None  # kJ/(mol Å)
    # Bit flags of `FIELDS` and `DATA` that were not read and may exist.
    unread: int = dataclasses.field(default=0, kw_only=True)
    # Reads a frame, by its number, with one of these fields; None if they stay unread.
    more: "Callable[[int, int], RawFrame] | None" = dataclasses.field(default=None, kw_only=True)
    # Further data of the frame in the file, as in MDAnalysis's ``ts.data``; None if not read.
    data: dict[str, Any] | None = dataclasses.field(default=None, kw_only=True)
    # All compressed positions, if only those of some atoms were decoded.
    coded: Coded | None = dataclasses.field(default=None, kw_only=True)
    # Bytes of the frame not read, because their atoms were not needed; the rows of these atoms are undefined.
    left: int = dataclasses.field(default=0, kw_only=True)
    # Steps per nm of positions from an XTC file; else the default of XTC writers.
    precision: float = dataclasses.field(default=1000.0, kw_only=True)

    def field(self, which: int) -> Any:
        """Return one of `FIELDS` or `DATA`, reading it if needed; vectors are valid until the next frame is read."""
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
        float32 (n_atoms, 3), Å, writable; holds until map() ends. Where the analysis has atoms(), `RequestedVectors`,
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
    universe: "Universe"
    data: dict[str, Any] = dataclasses.field(default_factory=dict)
    member: str | None = None

    @property
    def pair_box(self) -> Vectors | None:
        """The box that goes with pairs of the frame."""
        return self.box
