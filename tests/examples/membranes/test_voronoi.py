"""Voronoi cells beside freud's, and what holds in any plane."""

import freud
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from himach.examples.membranes.voronoi import voronoi_areas

#: Sides and tilt of planes, from one that is square to one that is long and slanted.
PLANES = [(30, 30, 0), (12, 70, 0), (40, 35, 20), (40, 35, -20), (25, 25, 60)]


def random_points(seed, n, plane, spread=3.0):
    a, c, b = plane
    vectors = np.array([[a, 0], [b, c]], dtype=float)
    return np.random.default_rng(seed).uniform(-1, spread - 1, (n, 2)) @ vectors, vectors


@pytest.mark.parametrize("plane", PLANES[:4])
@pytest.mark.parametrize("n", [8, 60, 301])
def test_against_freud(plane, n):
    points, vectors = random_points(n, n, plane)
    (a, _), (b, c) = vectors
    box = freud.box.Box(Lx=a, Ly=c, xy=b / c, is2D=True)
    flat = box.wrap(np.column_stack([points, np.zeros(n)]))
    expected = freud.locality.Voronoi().compute((box, flat)).volumes
    np.testing.assert_allclose(voronoi_areas(points, vectors), expected, rtol=1e-3, atol=1e-3)  # freud rounds to floats


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 40),
    st.sampled_from(PLANES),
    st.tuples(st.floats(-300, 300), st.floats(-300, 300)),
    st.sampled_from([3, 1, 0.05]),  # periods over which they are spread: all in a corner, far from their images
)
def test_cells_fill_the_plane_and_move_with_their_points(seed, n, plane, shift, spread):
    points, vectors = random_points(seed, n, plane, spread)
    areas = voronoi_areas(points, vectors)
    assert areas.min() > 0
    assert areas.sum() == pytest.approx(np.linalg.det(vectors), rel=1e-9)
    np.testing.assert_allclose(voronoi_areas(points + shift, vectors), areas, rtol=1e-6)
    order = np.random.default_rng(seed).permutation(n)
    np.testing.assert_allclose(voronoi_areas(points[order], vectors), areas[order], rtol=1e-9)


def test_one_point_and_points_at_one_place():
    vectors = [[20, 0], [5, 10]]
    np.testing.assert_allclose(voronoi_areas([[3, 4]], vectors), [200])
    np.testing.assert_allclose(voronoi_areas([[3, 4], [3, 4]], vectors), [100, 100])
    np.testing.assert_allclose(voronoi_areas([[0, 0], [10, 5]], [[20, 0], [0, 10]]), [100, 100])


@pytest.mark.parametrize("n", [1, 2, 7])
def test_rows_and_lattices(n):
    points = [[2 * i, 3 * j] for i in range(n) for j in range(n + 1)]
    np.testing.assert_allclose(voronoi_areas(points, [[2 * n, 0], [0, 3 * (n + 1)]]), 6)
