import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from MDAnalysis.lib.mdamath import triclinic_vectors
from scipy.optimize import linear_sum_assignment

from himach.examples.liquids.finite_size import lattice, mobility_lost, yeh_hummer

#: Constants of cubic lattices, by the cube root of a cell's volume (Yeh and Hummer 2004), and by the radius of a sphere
#: of that volume (Hasimoto 1959).
CELLS = {
    "cube": ([25, 25, 25, 90, 90, 90], 2.837297, 1.7601),
    "truncated octahedron": ([25, 25, 25, 70.528779, 109.471221, 70.528779], None, 1.7919),
    "rhombic dodecahedron": ([25, 25, 25, 60, 60, 90], None, 1.7917),
}


@pytest.mark.parametrize(("box", "by_side", "by_sphere"), CELLS.values(), ids=CELLS)
def test_cells_of_cubic_symmetry(box, by_side, by_sphere):
    vectors = triclinic_vectors(box, dtype=np.float64)
    found = mobility_lost(vectors) * np.cbrt(np.linalg.det(vectors))
    np.testing.assert_allclose(found, found[0, 0] * np.eye(3), atol=1e-7)
    assert found[0, 0] / np.cbrt(4 * np.pi / 3) == pytest.approx(by_sphere, abs=6e-5)
    if by_side:
        assert found[0, 0] == pytest.approx(by_side, abs=5e-7)


def test_the_box_in_which_diffusion_across_is_as_without_end():
    """Busch and Paschek, J. Phys. Chem. B 127, 7983 (2023): where the ratio of sides is 2.7933596497, to ten digits."""
    side = 22.0
    vectors = np.diag([side, side, 2.7933596497 * side])
    x, y, z = np.diagonal(mobility_lost(vectors)) * vectors[2, 2]
    np.testing.assert_allclose([x, y, z], [0, 0, 8.1711245653], atol=1e-8)
    assert yeh_hummer(vectors, 0.5, 300, [0, 1]) == pytest.approx(0, abs=1e-14)
    assert yeh_hummer(vectors, 0.5, 300) == pytest.approx(yeh_hummer(vectors, 0.5, 300, [2]) / 3)


def test_water_in_boxes_of_many_sizes():
    """TIP3P at 298 K by Yeh and Hummer (2004); kinisi 2.1 (YehHummer) fits the D and the viscosity below to these."""
    sides = [18.58, 23.42, 29.51, 37.19, 46.86]
    found = [4.884e-5, 5.123e-5, 5.315e-5, 5.466e-5, 5.590e-5]
    errors = [0.032e-5, 0.027e-5, 0.014e-5, 0.011e-5, 0.013e-5]
    endless, viscosity = 6.05267464879004e-05, 0.28454706430188853
    for side, d, error in zip(sides, found, errors, strict=True):
        assert d + yeh_hummer(np.eye(3) * side, viscosity, 298) == pytest.approx(endless, abs=error / 2)
        formula = 2.837297 * 1.380649e-23 * 298 / (6 * np.pi * viscosity * 1e-3 * side * 1e-10) * 1e4
        assert yeh_hummer(np.eye(3) * side, viscosity, 298) == pytest.approx(formula, rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.tuples(*[st.floats(10, 40)] * 3), st.tuples(*[st.floats(65, 110)] * 3), st.integers(0, 99))
def test_any_box_however_it_is_described(lengths, angles, seed):
    """Turned, in larger units, or by other vectors of the same lattice."""
    vectors = triclinic_vectors([*lengths, *angles], dtype=np.float64)
    found = mobility_lost(vectors)
    np.testing.assert_allclose(found, found.T, atol=1e-12)
    np.testing.assert_allclose(mobility_lost(3 * vectors), found / 3, rtol=1e-7, atol=1e-9)
    rotation = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))[0]
    np.testing.assert_allclose(mobility_lost(vectors @ rotation), rotation.T @ found @ rotation, atol=1e-8)
    others = np.array([[1, 0, 0], [-1, 1, 0], [1, 0, 1]]) @ vectors
    np.testing.assert_allclose(mobility_lost(others), found, atol=1e-8)


def test_points_of_a_lattice():
    vectors = triclinic_vectors([10, 12, 14, 70, 80, 100], dtype=np.float64)
    grid = np.stack(np.meshgrid(*[range(-9, 10)] * 3, indexing="ij"), axis=-1).reshape(-1, 3) @ vectors
    distances = np.linalg.norm(grid, axis=1)
    expected = grid[(distances > 0) & (distances <= 45)]
    found = lattice(vectors, 45)
    assert len(found) == len(expected)
    apart = np.linalg.norm(found[:, np.newaxis] - expected, axis=2)
    assert apart[linear_sum_assignment(apart)].max() < 1e-9
