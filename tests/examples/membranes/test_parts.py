"""What membranes are made of: leaflets and patches, flip-flops as lipyphilic has them, Voronoi cells as freud."""

import freud
import MDAnalysis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lipyphilic._lipyferric import molecule_flip_flop
from MDAnalysis.analysis.leaflet import LeafletFinder
from MDAnalysis.lib.mdamath import triclinic_vectors
from MDAnalysisTests.datafiles import GRO_MEMPROT

import himach
from himach.examples.membranes.flip_flops import build_states, find_flip_flops
from himach.examples.membranes.leaflets import assign_patches, center_positions, find_connected_parts
from himach.examples.membranes.voronoi import voronoi_areas

BOXES = [(40, 50, 90, 90, 90, 90), (60, 60, 90, 90, 90, 120), (50, 60, 80, 80, 75, 70)]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(BOXES), st.integers(0, 2**32 - 1), st.tuples(*[st.floats(-2, 2)] * 3), st.integers(1, 5))
def test_a_membrane_is_put_together_wherever_it_is(box, seed, shift, bins):
    random = np.random.default_rng(seed)
    vectors = triclinic_vectors(box).astype(np.float64)
    along = random.uniform(0, 1, (200, 3)) * [1, 1, 0.55]  # in less than the height of the box
    whole = along @ vectors
    wrapped = (((along + shift) % 1) @ vectors).astype(np.float32)
    found = center_positions(wrapped, vectors)
    np.testing.assert_allclose(np.ptp(found[:, 2]), np.ptp(whole[:, 2]), atol=1e-3)
    np.testing.assert_allclose(found[:, 2] - found[0, 2], whole[:, 2] - whole[0, 2], atol=1e-3)
    # What is left of the way are whole periods in the plane.
    left = (found - found[0] - (whole - whole[0])) @ np.linalg.inv(vectors)
    np.testing.assert_allclose(left, np.rint(left), atol=1e-4)
    # Patches are those of parallelograms along the box's vectors.
    expected = np.floor((found @ np.linalg.inv(vectors))[:, :2] % 1 * bins) if box[3:5] == (90, 90) else None
    if expected is not None:
        same = assign_patches(found, vectors, bins) == expected[:, 0] * bins + expected[:, 1]
        assert same.mean() > 0.98  # but for those at an edge


def test_connected_as_leaflet_finder_does():
    universe = MDAnalysis.Universe(GRO_MEMPROT)
    heads = universe.select_atoms("resname POPE POPG and name P")
    found = find_connected_parts(heads.positions, np.arange(len(heads)), len(heads), 15, universe.dimensions)
    groups = LeafletFinder(universe, heads, cutoff=15, pbc=True).groups()
    assert len(groups) == 2
    for side, group in zip((-1, 1), groups, strict=True):
        np.testing.assert_array_equal(heads[found == side].indices, np.sort(group.indices))


def test_atoms_of_one_lipid_are_connected_through_it():
    positions = np.array([[0, 0, 0], [0, 0, 9], [0, 0, 18], [20, 20, 0], [20, 20, 9]], np.float32)
    box = np.array([50, 50, 50, 90, 90, 90], np.float32)
    found = find_connected_parts(positions, np.array([0, 1, 1, 2, 3]), 4, 9.5, box)
    assert found.tolist() == [-1, -1, 1, 1]


def test_parts_that_are_no_leaflets():
    positions = np.array([[5 * i, 0, 0] for i in range(20)] + [[50, 50, 0]], np.float32)
    box = np.array([100, 100, 50, 90, 90, 90], np.float32)
    with pytest.raises(himach.UsageError, match="of 21 lipids 20 and 1 are connected at cutoff=6"):
        find_connected_parts(positions, np.arange(21), 21, 6, box)


def found(states, stay):
    return [(event.left, event.arrived, event.target, event.outcome) for event in find_flip_flops(states, stay)]


@settings(max_examples=400)
@given(st.lists(st.tuples(st.sampled_from([-1, 0, 1]), st.integers(1, 6)), min_size=2, max_size=30), st.integers(1, 6))
def test_as_lipyphilic_does(runs, stay):
    states = np.repeat(*np.array([(1, 1), *runs, (-1, 1)]).T).astype(np.int8)  # one that begins between is another case
    expected = molecule_flip_flop(leaflets=states, frame_cutoff=stay)
    assert found(states, stay) == [(*row, outcome.lower()) for *row, outcome in zip(*expected, strict=True)]


def test_one_that_begins_between_has_not_left_a_leaflet():
    assert found([0, 0, 1, 1, 0, -1], 1) == [(3, 5, -1, "success")]
    assert found([0, 0, 0], 1) == []
    assert found([1, 1, 1], 1) == []


def test_states_of_runs():
    runs = [(1, np.array([0, 2, 5, 1]).tobytes()), (0, np.array([2, 1]).tobytes())]
    assert build_states(runs, 7, -1).tolist() == [1, 1, 0, -1, -1, 1, -1]


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
