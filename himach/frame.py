"""Frames: `RawFrame` as it comes from a source, `Frame` as a map() sees it, and `Needs`, what of them is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Needs:
    """What of each frame the analyses of a pass need. A source reads no more where reading less is cheaper.

    Attributes
    ----------
    atoms
        Indices of the atoms, ascending int64 (n,); None for all.
    fields
        Which of `FIELDS`, or-ed, are sure to be needed; others may turn out to be on the way.
    """

    atoms: Indices | None = None
    fields: int = FIELDS


@dataclass(slots=True)
class Coded:
    """All positions of a frame as XTC compresses them.

    Attributes
    ----------
    memory
        Bytes (uint8), the reader's. Who keeps them leaves other memory in their place, of any size.
    begin, n_bytes
        Where the compressed part lies in them; what a decoder may read beyond lies behind it.
    ends
        The least and the greatest coordinate of each axis: six integers.
    index
        Number of the small sizes at the beginning.
    precision
        Steps per nm.
    scale
        What a position in nm is multiplied by.
    n_atoms
        Atoms of the frame.
    left
        Bytes of the frame that were left in the file, as all atoms that were needed lie before them.
    complete
        Reads those, too; raises OSError and ValueError. None: nothing was left.
    """

    memory: npt.NDArray[np.uint8]
    begin: int = 0
    n_bytes: int = 0
    ends: tuple[int, ...] = ()
    index: int = 0
    precision: float = 0.0
    scale: float = 0.0
    n_atoms: int = 0
    left: int = 0
    complete: Callable[[], None] | None = None


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
    unread
        Which of `FIELDS` were not read and may be there, or-ed.
    data
        What the file says of the frame beside all this, by name, as MDAnalysis's ``ts.data`` has it: step, lambda, ...
        None where it was not read, as in a frame from a cache.
    coded
        Where only some atoms' positions were decoded, all as they were read.
    left
        Bytes of the frame that were left where it lies, as nobody needed their atoms; their rows hold anything.
    """

    number: int
    time: float
    positions: Vectors
    box: Vectors | None = None
    velocities: Vectors | None = None
    forces: Vectors | None = None
    unread: int = field(default=0, kw_only=True)
    data: dict[str, Any] | None = field(default=None, kw_only=True)
    coded: Coded | None = field(default=None, kw_only=True)
    left: int = field(default=0, kw_only=True)


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
    data: dict[str, Any] = field(default_factory=dict)
    member: str | None = None

    @property
    def pair_box(self) -> Vectors | None:
        """The box that goes with pairs of the frame."""
        return self.box
