"""What the three formats have in common: `Content`, of what a file is made, and `FileLayout`, where its bytes lie."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from himach.frame import RawFrame, Vectors

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Content:
    """What a trajectory file holds."""

    n_frames: int
    n_atoms: int
    has_velocities: bool = False
    has_forces: bool = False
    has_box: bool = True  # whether frames have a box; those that have none all the same get one of lengths 0

    @property
    def n_bytes(self) -> int:
        """Bytes of the vectors and boxes of all frames."""
        vectors = 1 + self.has_velocities + self.has_forces
        return self.n_frames * (12 * self.n_atoms * vectors + 24 * self.has_box)


class FileLayout(ABC):
    """Where the bytes of a file lie: a head, then frames that are equally long, so that any offset tells its frame."""

    suffix = ""
    head_bytes = 0
    frame_bytes = 0

    def __init__(self, content: Content) -> None:
        self.content = content

    @property
    def possible(self) -> bool:
        """Whether the format can hold as many frames and atoms."""
        return True

    @property
    def size(self) -> int:
        """Length of the file."""
        return self.head_bytes + self.content.n_frames * self.frame_bytes

    def head(self, first_time: float, timestep: float) -> bytes:
        """Return the head of the file, given the first frame's time and the time between two frames, ps."""
        return b""

    @abstractmethod
    def put(self, frame: RawFrame, into: Bytes, at: int) -> None:
        """Write a frame's bytes from `at` on."""


def put_big_endian(vectors: Vectors, into: Bytes, at: int) -> None:
    """Write vectors as big-endian floats."""
    into[at : at + vectors.nbytes].view(">f4").reshape(vectors.shape)[:] = vectors


def vectors_or_nan(vectors: Vectors | None, n_atoms: int) -> Vectors:
    """Return vectors, or as many that are NaN where a frame has none although the file says that it does."""
    return np.full((n_atoms, 3), np.nan, dtype=np.float32) if vectors is None else vectors


def box_or_none(box: Vectors | None) -> tuple[float, ...]:
    """Return lengths and angles of a box, of lengths 0 where a frame has none."""
    return (0.0, 0.0, 0.0, 90.0, 90.0, 90.0) if box is None else tuple(box.tolist())


def box_vectors(box: Vectors | None) -> tuple[float, ...]:
    """Return nine coordinates of the vectors of a box, of lengths and angles (degrees); zeros where there is none.

    As MDAnalysis's `triclinic_vectors` computes them: the first along x, the second in the plane of x and y.
    """
    none = (0.0,) * 9
    if box is None:
        return none
    a, b, c, alpha, beta, gamma = box.tolist()
    if not (min(a, b, c, alpha, beta, gamma) > 0 and max(alpha, beta, gamma) < 180):
        return none
    if alpha == beta == gamma == 90:
        return (a, 0.0, 0.0, 0.0, b, 0.0, 0.0, 0.0, c)
    cosines = [0.0 if angle == 90 else math.cos(math.radians(angle)) for angle in (alpha, beta, gamma)]
    sine = 1.0 if gamma == 90 else math.sin(math.radians(gamma))
    cx = c * cosines[1]
    cy = c * (cosines[0] - cosines[1] * cosines[2]) / sine
    square = c * c - cx * cx - cy * cy
    if not square > 0:
        return none
    return (a, 0.0, 0.0, b * cosines[2], b * sine, 0.0, cx, cy, math.sqrt(square))
