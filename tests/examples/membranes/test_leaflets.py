"""Where the middle of a membrane is, its patches, and leaflets by connections."""

import MDAnalysis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from MDAnalysis.analysis.leaflet import LeafletFinder
from MDAnalysis.lib.mdamath import triclinic_vectors
from MDAnalysisTests.datafiles import GRO_MEMPROT

import himach
from himach.examples.membranes.leaflets import centred, connected, patches

BOXES = [(40, 50, 90, 90, 90, 90), (60, 60, 90, 90, 90, 120), (50, 60, 80, 80, 75, 70)]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(BOXES),
    st.integers(0, 2**32 - 1),
    st.tuples(*[st.floats(-2, 2)] * 3),
    st.integers(1, 5),
)
def test_a_membrane_is_put_together_wherever_it_is(box, seed, shift, bins):
    random = np.random.default_rng(seed)
    vectors = triclinic_vectors(box).astype(np.float64)
    along = random.uniform(0, 1, (200, 3)) * [1, 1, 0.55]  # in less than the height of the box
    whole = along @ vectors
    wrapped = (((along + shift) % 1) @ vectors).astype(np.float32)
    found = centred(wrapped, vectors)
    np.testing.assert_allclose(np.ptp(found[:, 2]), np.ptp(whole[:, 2]), atol=1e-3)
    np.testing.assert_allclose(found[:, 2] - found[0, 2], whole[:, 2] - whole[0, 2], atol=1e-3)
    # What is left of the way are whole periods in the plane.
    left = (found - found[0] - (whole - whole[0])) @ np.linalg.inv(vectors)
    np.testing.assert_allclose(left, np.rint(left), atol=1e-4)
    # Patches are those of parallelograms along the box's vectors.
    expected = np.floor((found @ np.linalg.inv(vectors))[:, :2] % 1 * bins) if box[3:5] == (90, 90) else None
    if expected is not None:
        same = patches(found, vectors, bins) == expected[:, 0] * bins + expected[:, 1]
        assert same.mean() > 0.98  # but for those at an edge


def test_connected_as_leaflet_finder_does():
    universe = MDAnalysis.Universe(GRO_MEMPROT)
    heads = universe.select_atoms("resname POPE POPG and name P")
    found = connected(heads.positions, np.arange(len(heads)), len(heads), 15, universe.dimensions)
    groups = LeafletFinder(universe, heads, cutoff=15, pbc=True).groups()
    assert len(groups) == 2
    for side, group in zip((-1, 1), groups, strict=True):
        np.testing.assert_array_equal(heads[found == side].indices, np.sort(group.indices))


def test_atoms_of_one_lipid_are_connected_through_it():
    positions = np.array([[0, 0, 0], [0, 0, 9], [0, 0, 18], [20, 20, 0], [20, 20, 9]], np.float32)
    box = np.array([50, 50, 50, 90, 90, 90], np.float32)
    found = connected(positions, np.array([0, 1, 1, 2, 3]), 4, 9.5, box)
    assert found.tolist() == [-1, -1, 1, 1]


def test_parts_that_are_no_leaflets():
    positions = np.array([[5 * i, 0, 0] for i in range(20)] + [[50, 50, 0]], np.float32)
    box = np.array([100, 100, 50, 90, 90, 90], np.float32)
    with pytest.raises(himach.UsageError, match="of 21 lipids 20 and 1 are connected at cutoff=6"):
        connected(positions, np.arange(21), 21, 6, box)
