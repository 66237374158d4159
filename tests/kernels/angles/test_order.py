"""order_parameters() beside the slow way: numpy, one rounding after the other."""

import MDAnalysis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.situations import situations
from MDAnalysis.lib.distances import minimize_vectors
from MDAnalysis.lib.mdamath import triclinic_vectors
from MDAnalysisTests.datafiles import TPR, XTC

import himach
from himach.kernels import order_parameters


def slowly(positions, pairs, kinds, box, normal, n_kinds):
    """Return the same sums by numpy, of bonds shorter than half the box's least width."""
    sums = np.zeros(n_kinds, np.int64)
    matrix = None if box is None else triclinic_vectors(box).astype(np.float64)
    normal = np.array(normal, dtype=np.float64)
    normal /= np.abs(normal).max()
    for (a, b), kind in zip(pairs, kinds, strict=True):
        v = positions[b].astype(np.float64) - positions[a]
        if matrix is not None:
            for axis in (2, 1, 0):
                v = v - np.rint(v[axis] * (1 / matrix[axis, axis])) * matrix[axis]
        along = v[0] * normal[0] + v[1] * normal[1] + v[2] * normal[2]
        squares = v[0] * v[0] + v[1] * v[1] + v[2] * v[2]
        squares *= normal[0] * normal[0] + normal[1] * normal[1] + normal[2] * normal[2]
        sums[kind] += int(1.5 * (along * along / squares) * 2**30 + 0.5) - 2**29
    return sums


@settings(max_examples=150, deadline=None)
@given(situations(), st.integers(0, 2**32 - 1), st.sampled_from([1, 7, 256, 257, 600]))
def test_is_the_slow_way_to_the_last_bit(situation, seed, n_pairs):
    random = np.random.default_rng(seed)
    positions = np.concatenate([situation.a, situation.b + np.float32(0.123)])
    pairs = random.integers(0, len(positions), (n_pairs, 2))
    pairs = pairs[(positions[pairs[:, 0]] != positions[pairs[:, 1]]).any(axis=1)]
    kinds, normal = random.integers(0, 5, len(pairs)), random.normal(size=3)
    found = order_parameters(positions, pairs, kinds, situation.box, normal, n_kinds=6)
    np.testing.assert_array_equal(found, slowly(positions, pairs, kinds, situation.box, normal, 6))


@pytest.mark.parametrize("frame", [0, 9])
def test_bonds_of_a_protein_in_a_dodecahedron(frame):
    universe = MDAnalysis.Universe(TPR, XTC)
    universe.trajectory[frame]
    atoms = universe.select_atoms("protein")
    bonds = atoms.bonds.indices
    vectors = minimize_vectors(atoms.positions[bonds[:, 1]] - atoms.positions[bonds[:, 0]], universe.dimensions)
    cosines = vectors[:, 2] / np.linalg.norm(vectors, axis=1)
    found = order_parameters(atoms.wrap(inplace=False), bonds, box=universe.dimensions) / 2**30
    np.testing.assert_allclose(found, [(1.5 * cosines.astype(np.float64) ** 2 - 0.5).sum()], atol=1e-3)


@settings(max_examples=50)
@given(st.floats(0, np.pi), st.floats(0, 2 * np.pi))
def test_an_angle(angle, around):
    bond = [[0, 0, 0], [np.sin(angle) * np.cos(around), np.sin(angle) * np.sin(around), np.cos(angle)]]
    found = order_parameters(bond, [[0, 1]]) / 2**30
    np.testing.assert_allclose(found, [1.5 * np.cos(angle) ** 2 - 0.5], atol=1e-6)


def test_of_all_directions_the_mean_is_zero():
    random = np.random.default_rng(1)
    ends = random.normal(size=(20_000, 3))
    pairs = np.column_stack([np.full(20_000, 20_000), np.arange(20_000)])
    found = order_parameters(np.concatenate([ends, np.zeros((1, 3))]), pairs) / 2**30 / 20_000
    assert abs(found[0]) < 0.01


def test_whatever_the_length_of_the_normal():
    positions, pairs = [[0, 0, 0], [1, 2, 3]], [[0, 1]]
    found = {int(order_parameters(positions, pairs, normal=(0, 0, size))[0]) for size in (1e-200, 1, -2, 1e200)}
    assert len(found) == 1
    assert order_parameters(positions, pairs, normal=(1, 2, 3)) == [2**30]


def test_no_bonds():
    assert order_parameters(np.empty((0, 3)), np.empty((0, 2), np.int64)).tolist() == [0]
    assert order_parameters(np.zeros((1, 3)), np.empty((0, 2), np.int64), n_kinds=2).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pairs": [[0, 1], [0, 2]]}, "pairs are of atoms 0 to 1, not 0 to 2"),
        ({"pairs": [0, 1]}, r"pairs must be an array of shape \(m, 2\)"),
        ({"kinds": [0, 1]}, r"kinds must have the shape \(1,\), one for each pair"),
        ({"kinds": [-1]}, "kinds are numbers from 0"),
        ({"kinds": [3], "n_kinds": 3}, "kinds go up to 3, and n_kinds is 3"),
        ({"normal": (0, 0, 0)}, "normal must be three finite numbers"),
        ({"normal": (0, 1)}, "normal must be three finite numbers"),
        ({"box": [0, 1, 1, 90, 90, 90]}, "is none"),
        ({"pairs": [[0, 1]] * 300 + [[1, 1]] + [[0, 1]] * 300}, "pair 300 has no direction"),
        ({"positions": [[0, 0, 0], [0, np.nan, 0]]}, "pair 0 has no direction"),
        ({"positions": [[0, 0, 0], [0, np.inf, 0]], "box": [9, 9, 9, 90, 90, 90]}, "pair 0 has no direction"),
    ],
)
def test_what_is_refused(change, said):
    with pytest.raises(himach.UsageError, match=said):
        order_parameters(**{"positions": [[0, 0, 0], [0, 0, 1]], "pairs": [[0, 1]], **change})
