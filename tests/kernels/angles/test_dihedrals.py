"""dihedrals() beside MDAnalysis, beside the formula in numpy, and at angles that are known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.situations import situations
from MDAnalysis.lib.distances import calc_dihedrals
from MDAnalysis.lib.mdamath import triclinic_vectors

import himach
from himach.kernels import dihedrals


def slow_dihedrals(positions, quadruples, box):
    """Return dihedrals by arctan2, each bond the shortest of many images."""
    images = np.zeros((1, 3))
    if box is not None:
        steps = np.stack(np.meshgrid(*[range(-4, 5)] * 3), axis=-1).reshape(-1, 3)
        images = steps @ triclinic_vectors(box).astype(float)

    def shortest(vector):
        found = vector + images
        return found[np.argmin((found**2).sum(axis=1))]

    found = []
    for quadruple in quadruples:
        places = positions[quadruple].astype(float)
        a, b, c = (shortest(places[i + 1] - places[i]) for i in range(3))
        n, m = np.cross(a, b), np.cross(b, c)
        found.append(np.degrees(np.arctan2(np.linalg.norm(b) * (a @ m), n @ m)))
    return np.array(found)


def apart(a, b):
    """Return how far angles are apart, in degrees."""
    return np.abs((a - b + 180) % 360 - 180)


def chain(random, n, box):
    """Return positions of n atoms, each within a few Å of the one before, folded into the box."""
    path = np.cumsum(random.normal(0, 0.8, (n, 3)), axis=0)
    if box is not None:
        vectors = triclinic_vectors(box).astype(float)
        fractions = path @ np.linalg.inv(vectors)
        path = (fractions - np.floor(fractions)) @ vectors
    return path.astype(np.float32)


@settings(max_examples=100)
@given(situations(), st.integers(0, 2**32 - 1), st.sampled_from([1, 3, 64, 65, 200]))
def test_beside_the_formula_and_mdanalysis(situation, seed, n):
    random = np.random.default_rng(seed)
    box = situation.box
    if box is not None:
        box[:3] = np.maximum(box[:3], 20)  # bonds are shorter than half its least width
    positions = chain(random, n + 3, box)
    quadruples = np.arange(n)[:, np.newaxis] + np.arange(4)
    found = dihedrals(positions, quadruples, box)
    assert ((found > -180) & (found <= 180)).all()
    x, y = np.diff(positions, axis=0)[:-1], np.diff(positions, axis=0)[1:]
    straight = np.linalg.norm(np.cross(x, y), axis=1) < 0.05  # small errors of positions turn these far
    sure = ~(straight[:-1] | straight[1:])
    assert apart(found, slow_dihedrals(positions, quadruples, box))[sure].max(initial=0) < 0.05
    peer = np.degrees(calc_dihedrals(*(positions[place] for place in quadruples.T), box=box))
    assert apart(found, peer)[sure].max(initial=0) < 0.05
    if box is None:
        assert apart(found, slow_dihedrals(positions, quadruples, None))[sure].max(initial=0) < 1e-10


@pytest.mark.parametrize("box", [None, [20, 20, 20, 90, 90, 90], [20, 20, 20, 60, 60, 90]])
@pytest.mark.parametrize(
    "angle", [-179.9, -135, -90.1, -90, -67.5, -45, -22.5, -1e-3, 0, 1e-3, 22.4, 22.6, 45, 67.5, 90, 112.5, 179.9, 180]
)
def test_known_angles(angle, box):
    """Seen along the middle bond, the last atom is clockwise of the first by the angle."""
    turn = np.radians(angle)
    positions = np.array([[0, 1, 0], [0, 0, 0], [1, 0, 0], [1, np.cos(turn), np.sin(turn)]], dtype=np.float32)
    found = dihedrals(positions, [[0, 1, 2, 3], [3, 2, 1, 0]], box)
    exact = np.degrees(np.arctan2(float(positions[3, 2]), float(positions[3, 1])))
    assert apart(found, exact).max() < 1e-12
    assert (found > -180).all()


def test_it_is_never_minus_180():
    positions = np.array([[0, 1, 0], [0, 0, 0], [1, 0, 0], [1, -1, -1e-30]], dtype=np.float32)
    assert dihedrals(positions, [[0, 1, 2, 3]]).tolist() == [180]


def test_bonds_across_the_boundary_and_beyond_half_the_width():
    """In a strongly tilted box, what is nearest is not found axis by axis."""
    box = np.array([30, 30, 30, 90, 90, 40], dtype=np.float32)
    random = np.random.default_rng(3)
    positions = (random.random((400, 3)) @ triclinic_vectors(box)).astype(np.float32)
    quadruples = random.permutation(400).reshape(-1, 4)
    assert np.median(apart(dihedrals(positions, quadruples, box), slow_dihedrals(positions, quadruples, box))) < 1e-3
    assert (apart(dihedrals(positions, quadruples, box), slow_dihedrals(positions, quadruples, box)) < 1).mean() > 0.9


def test_on_a_line_there_is_none():
    line = np.arange(4)[:, np.newaxis] * np.array([1, 2, 3])
    assert np.isnan(dihedrals(line, [[0, 1, 2, 3]])).all()


def test_none():
    assert dihedrals(np.zeros((0, 3)), np.zeros((0, 4), int)).shape == (0,)


@pytest.mark.parametrize(
    ("quadruples", "box", "error"),
    [
        ([[0, 1, 2]], None, r"quadruples must be an array of shape \(m, 4\), not \(1, 3\)"),
        ([[0, 1, 2, 4]], None, "quadruples are of atoms 0 to 3, not 0 to 4"),
        ([[0, 1, -1, 2]], None, "quadruples are of atoms 0 to 3, not -1 to 2"),
        ([[0.0, 1, 2, 3]], None, "quadruples must be integers"),
        ([[0, 1, 2, 3]], [1, 1, 0, 90, 90, 90], "is none"),
        ([[0, 1, 2, 3]], [1, 1, 1], "box must be three lengths"),
    ],
)
def test_refusals(quadruples, box, error):
    with pytest.raises(himach.UsageError, match=error):
        dihedrals(np.eye(4, 3), quadruples, box)
