"""Base of the three formats: `Content`, the numbers that define a file, and `FileLayout`, the places of its bytes."""

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
    """Content of a trajectory file."""

    n_frames: int
    n_atoms: int
    has_velocities: bool = False
    has_forces: bool = False
    has_box: bool = True  # whether frames have a box; a frame without one gets one of lengths 0

    @property
    def n_bytes(self) -> int:
        """Bytes of all frames' vectors and boxes."""
        vectors = 1 + self.has_velocities + self.has_forces
        return self.n_frames * (12 * self.n_atoms * vectors + 24 * self.has_box)


class FileLayout(ABC):
    """Layout of a file: a header, then frames of equal length, so that any offset gives its frame."""

    suffix = ""
    head_bytes = 0
    frame_bytes = 0

    def __init__(self, content: Content) -> None:
        self.content = content

    @property
    def possible(self) -> bool:
        """Whether the format can hold so many frames and atoms."""
        return True

    @property
    def size(self) -> int:
        """Length of the file."""
        return self.head_bytes + self.content.n_frames * self.frame_bytes

    def head(self, first_time: float, timestep: float) -> bytes:
        """Return the header of the file, given the first frame's time and the time between frames, ps."""
        return b""

    @abstractmethod
    def put(self, frame: RawFrame, into: Bytes, at: int) -> None:
        """Write a frame's bytes from `at` on."""


def put_big_endian(vectors: Vectors, into: Bytes, at: int) -> None:
    """Write vectors as big-endian floats."""
    into[at : at + vectors.nbytes].view(">f4").reshape(vectors.shape)[:] = vectors


def vectors_or_nan(vectors: Vectors | None, n_atoms: int) -> Vectors:
    """Return vectors, or NaN for a frame without them in a file that has them."""
    return np.full((n_atoms, 3), np.nan, dtype=np.float32) if vectors is None else vectors


def box_or_none(box: Vectors | None) -> tuple[float, ...]:
    """Return a box's lengths and angles, with lengths 0 for a frame without a box."""
    return (0.0, 0.0, 0.0, 90.0, 90.0, 90.0) if box is None else tuple(box.tolist())


def box_vectors(box: Vectors | None) -> tuple[float, ...]:
    """Return the nine coordinates of a box's vectors from its lengths and angles (degrees); zeros without a box.

    As MDAnalysis's `triclinic_vectors` does: the first vector along x, the second in the xy plane.
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
