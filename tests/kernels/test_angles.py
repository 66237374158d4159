"""Kernels of dihedrals and order parameters beside NumPy and MDAnalysis."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.situations import situations
from MDAnalysis.lib.distances import calc_dihedrals
from MDAnalysis.lib.mdamath import triclinic_vectors

from himach.kernels import dihedrals, order_parameters


def slow_dihedrals(positions, quadruples, box):
    """Return dihedrals by arctan2, each bond the shortest of many images."""
    images = np.zeros((1, 3))
    if box is not None:
        steps = np.stack(np.meshgrid(*[range(-4, 5)] * 3), axis=-1).reshape(-1, 3)
        images = steps @ triclinic_vectors(box).astype(float)

    def shortest(vector):
        result = vector + images
        return result[np.argmin((result**2).sum(axis=1))]

    result = []
    for quadruple in quadruples:
        places = positions[quadruple].astype(float)
        a, b, c = (shortest(places[i + 1] - places[i]) for i in range(3))
        n, m = np.cross(a, b), np.cross(b, c)
        result.append(np.degrees(np.arctan2(np.linalg.norm(b) * (a @ m), n @ m)))
    return np.array(result)


def apart(a, b):
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
    result = dihedrals(positions, quadruples, box)
    assert ((result > -180) & (result <= 180)).all()
    x, y = np.diff(positions, axis=0)[:-1], np.diff(positions, axis=0)[1:]
    straight = np.linalg.norm(np.cross(x, y), axis=1) < 0.05  # small errors of positions turn these far
    sure = ~(straight[:-1] | straight[1:])
    assert apart(result, slow_dihedrals(positions, quadruples, box))[sure].max(initial=0) < 0.05
    peer = np.degrees(calc_dihedrals(*(positions[place] for place in quadruples.T), box=box))
    assert apart(result, peer)[sure].max(initial=0) < 0.05
    if box is None:
        assert apart(result, slow_dihedrals(positions, quadruples, None))[sure].max(initial=0) < 1e-10


@pytest.mark.parametrize("box", [None, [20, 20, 20, 90, 90, 90], [20, 20, 20, 60, 60, 90]])
@pytest.mark.parametrize(
    "angle", [-179.9, -135, -90.1, -90, -67.5, -45, -22.5, -1e-3, 0, 1e-3, 22.4, 22.6, 45, 67.5, 90, 112.5, 179.9, 180]
)
def test_known_angles(angle, box):
    """Seen along the middle bond, the last atom is clockwise of the first by the angle."""
    turn = np.radians(angle)
    positions = np.array([[0, 1, 0], [0, 0, 0], [1, 0, 0], [1, np.cos(turn), np.sin(turn)]], dtype=np.float32)
    result = dihedrals(positions, [[0, 1, 2, 3], [3, 2, 1, 0]], box)
    exact = np.degrees(np.arctan2(float(positions[3, 2]), float(positions[3, 1])))
    assert apart(result, exact).max() < 1e-12
    assert (result > -180).all()


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


def test_on_a_line_or_of_no_atoms_there_is_none():
    line = np.arange(4)[:, np.newaxis] * np.array([1, 2, 3])
    assert np.isnan(dihedrals(line, [[0, 1, 2, 3]])).all()
    assert dihedrals(np.zeros((0, 3)), np.zeros((0, 4), int)).shape == (0,)


@settings(max_examples=50)
@given(st.floats(0, np.pi), st.floats(0, 2 * np.pi))
def test_an_angle(angle, around):
    bond = [[0, 0, 0], [np.sin(angle) * np.cos(around), np.sin(angle) * np.sin(around), np.cos(angle)]]
    result = order_parameters(bond, [[0, 1]]) / 2**30
    np.testing.assert_allclose(result, [1.5 * np.cos(angle) ** 2 - 0.5], atol=1e-6)


def test_whatever_the_length_of_the_normal():
    positions, pairs = [[0, 0, 0], [1, 2, 3]], [[0, 1]]
    result = {int(order_parameters(positions, pairs, normal=(0, 0, size))[0]) for size in (1e-200, 1, -2, 1e200)}
    assert len(result) == 1
    assert order_parameters(positions, pairs, normal=(1, 2, 3)) == [2**30]


def test_no_bonds():
    assert order_parameters(np.empty((0, 3)), np.empty((0, 2), np.int64)).tolist() == [0]
    assert order_parameters(np.zeros((1, 3)), np.empty((0, 2), np.int64), n_kinds=2).tolist() == [0, 0]
