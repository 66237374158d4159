"""Random frames for the tests of the kernels: boxes of every shape, atoms in and out of them, ties at the cutoff."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from MDAnalysis.lib.mdamath import triclinic_vectors

#: Angles in degrees: right, those of truncated octahedron, rhombic dodecahedron and hexagonal prism, and slanted ones.
ANGLES = [
    (90, 90, 90), (70.52878, 109.4712, 70.52878), (60, 60, 90), (90, 90, 60), (90, 90, 120), (80.5, 75, 70),
    (100, 95, 112), (50, 62, 71), (90, 89.999, 90),
]  # fmt: skip


def least_width(box):
    """Return the least distance in Å of two opposite faces of a box."""
    return 1 / np.linalg.norm(np.linalg.inv(triclinic_vectors(box).astype(np.float64)), axis=0).max()


@dataclass
class Situation:
    a: np.ndarray
    b: np.ndarray
    box: np.ndarray | None
    cutoff: float


def positions(random, n, box, ties):
    """Return float32 (n, 3): uniform over three boxes each way, or on a coarse lattice with many equal distances."""
    size = np.array([30, 30, 30]) if box is None else triclinic_vectors(box).max(axis=0)
    if ties:
        return (random.integers(-20, 60, (n, 3)) * 0.7).astype(np.float32)
    spread, offset = random.choice([0.3, 1, 3]), random.choice([0, 0.5, -1])
    return (size * (random.random((n, 3)) * spread + offset)).astype(np.float32)


@st.composite
def situations(draw):
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, m = draw(st.tuples(*[st.sampled_from([1, 3, 9, 10, 11, 60, 99, 100, 250])] * 2))
    box = None
    if draw(st.booleans()) or draw(st.booleans()):
        lengths = random.choice([8.4, 14, 21, 33.6, random.uniform(3, 60)], 3)
        box = np.array([*lengths, *draw(st.sampled_from(ANGLES))], dtype=np.float32)
    ties = draw(st.booleans())
    size = 30 if box is None else box[:3].min()
    cutoff = (
        draw(st.sampled_from([2.1, 3.5, 4.2, 0.7, 2.8]))
        if ties
        else float(size * random.choice([0.05, 0.2, 0.45, 0.9]))
    )
    return Situation(positions(random, n, box, ties), positions(random, m, box, ties), box, cutoff)
