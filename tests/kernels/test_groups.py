"""centers(), wrap() and unwrap() beside what AtomGroups do."""

import MDAnalysis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.situations import situations
from MDAnalysis.analysis.align import rotation_matrix
from MDAnalysis.lib.distances import apply_PBC, minimize_vectors
from MDAnalysis.lib.mdamath import triclinic_vectors
from MDAnalysisTests.datafiles import TPR, XTC

from himach.kernels import centers, move, superposition, unwrap, wrap


@settings(max_examples=200)
@given(situations())
def test_wrap_is_apply_pbc(situation):
    if situation.box is not None:
        np.testing.assert_array_equal(wrap(situation.a, situation.box), apply_PBC(situation.a, situation.box))


@settings(max_examples=60)
@given(situations(), st.integers(0, 2**32 - 1), st.integers(250, 600), st.floats(0.1, 5))
def test_wrap_of_many_atoms_is_apply_pbc(situation, seed, n, periods):
    """Blocks of atoms, of which some, all or none are further away than one period."""
    if situation.box is not None:
        random = np.random.default_rng(seed)
        positions = ((random.random((n, 3)) * 2 - 1) * periods * situation.box[:3].max()).astype(np.float32)
        expected = apply_PBC(positions, situation.box)
        np.testing.assert_array_equal(wrap(positions, situation.box), expected)
        assert wrap(positions, situation.box, out=positions) is positions
        np.testing.assert_array_equal(positions, expected)


@settings(max_examples=60)
@given(situations(), st.integers(0, 2**32 - 1))
def test_wrap_by_groups_is_of_whole_periods(situation, seed):
    """Groups in any order: their centres come into the box; those that are in it stay to the last bit."""
    if situation.box is None:
        return
    random = np.random.default_rng(seed)
    groups = random.integers(0, 300, 900)
    positions = (random.normal(0, 2, (900, 3)) * situation.box[:3].max()).astype(np.float32)
    found = wrap(positions, situation.box, groups)
    middles = centers(found, groups)
    vectors = triclinic_vectors(situation.box).astype(np.float64)
    periods = (found - positions.astype(np.float64)) @ np.linalg.inv(vectors)
    np.testing.assert_allclose(periods, np.rint(periods), atol=2e-3)
    inside = middles[np.unique(groups)] @ np.linalg.inv(vectors)
    assert inside.min() > -2e-3 and inside.max() < 1 + 2e-3
    stay = np.rint(periods).any(axis=1) == 0
    np.testing.assert_array_equal(found[stay], positions[stay])


@settings(max_examples=100)
@given(st.integers(0, 70), st.integers(0, 2**32 - 1), st.booleans())
def test_move(n, seed, turned):
    """To the last bit the obvious sums, into a new array or in place."""
    random = np.random.default_rng(seed)
    positions = random.normal(0, 30, (n, 3)).astype(np.float32)
    rotation, shift = random.normal(size=(3, 3)) if turned else None, random.normal(0, 50, 3)
    x, y, z = positions.T.astype(np.float64)
    rows = np.eye(3) if rotation is None else rotation
    expected = np.stack([a * x + b * y + c * z + by for (a, b, c), by in zip(rows, shift, strict=True)], axis=1)
    np.testing.assert_array_equal(move(positions, shift, rotation), expected.astype(np.float32))
    assert move(positions, shift, rotation, out=positions) is positions
    np.testing.assert_array_equal(positions, expected.astype(np.float32))


def test_move_lays_a_structure_over_another(adk):
    atoms = adk.select_atoms("name CA")
    mobile = atoms.positions
    adk.trajectory[7]
    fixed = atoms.positions
    adk.trajectory[3]
    rotation, shift = superposition(mobile, fixed)
    matrix, _ = rotation_matrix(mobile - mobile.mean(axis=0), fixed - fixed.mean(axis=0))
    expected = (mobile - mobile.mean(axis=0)) @ matrix.T + fixed.mean(axis=0)
    np.testing.assert_allclose(move(mobile, shift, rotation), expected, atol=2e-4)


@pytest.fixture(scope="module")
def adk():
    universe = MDAnalysis.Universe(TPR, XTC)
    universe.trajectory[3]
    return universe


@pytest.mark.parametrize("compound", ["group", "residues", "segments", "fragments"])
@pytest.mark.parametrize("weighted", [False, True])
def test_centers(adk, compound, weighted):
    atoms = adk.select_atoms("resid 1-400")
    weights = atoms.masses if weighted else None
    names = {"residues": "resindices", "segments": "segindices", "fragments": "fragindices"}
    groups = None
    if compound != "group":
        groups = np.unique(getattr(atoms, names[compound]), return_inverse=True)[1]
    expected = np.reshape(atoms.center(weights, compound=compound), (-1, 3))
    np.testing.assert_allclose(centers(atoms.positions, groups, weights), expected, rtol=1e-6)


def test_centers_of_atoms_in_any_order():
    positions = np.array([[0, 0, 0], [8, 0, 0], [2, 4, 6]])
    found = centers(positions, [2, 0, 2])
    np.testing.assert_array_equal(found, [[8, 0, 0], [np.nan] * 3, [1, 2, 3]])
    assert centers(positions[:0], []).shape == (0, 3)


def test_unwrap_takes_the_nearest_image_in_a_tilted_box():
    box = np.array([60, 60, 60, 60, 60, 90], np.float32)
    ends = np.random.default_rng(2).uniform(-60, 60, (300, 3)).astype(np.float32)
    found = unwrap(np.concatenate([np.zeros((1, 3)), ends]), [(0, i) for i in range(1, 301)], box)
    np.testing.assert_allclose(found[1:], minimize_vectors(ends, box), atol=1e-4)


def least_width(box):
    """Return the least distance in Å of two opposite faces of a box."""
    return 1 / np.linalg.norm(np.linalg.inv(triclinic_vectors(box).astype(np.float64)), axis=0).max()


@settings(max_examples=200)
@given(situations(), st.integers(0, 2**32 - 1))
def test_unwrap_of_chains(situation, seed):
    """Chains with bonds that unwrap() is for, of every length and in every box, are as they were before wrap()."""
    if situation.box is None:
        return
    random = np.random.default_rng(seed)
    steps = random.normal(size=(len(situation.a), 3))
    steps *= 0.49 * least_width(situation.box) * random.random((len(steps), 1)) / np.linalg.norm(steps, axis=1)[:, None]
    chain = np.cumsum(steps, axis=0) + situation.a[0]
    bonds = np.column_stack([np.arange(len(chain) - 1), np.arange(1, len(chain))])
    found = unwrap(wrap(chain, situation.box), bonds, situation.box)
    np.testing.assert_allclose(np.diff(found, axis=0), np.diff(chain, axis=0), atol=2e-3)
    chain = chain.astype(np.float32)  # that is whole, and stays so to the last bit
    steps = np.abs(np.diff(chain.astype(np.float64), axis=0))
    if np.all(steps < np.diagonal(triclinic_vectors(situation.box)) / 2):
        assert unwrap(chain, bonds, situation.box, out=chain.copy()).tobytes() == chain.tobytes()


@settings(max_examples=100)
@given(situations())
def test_unwrap_moves_by_whole_periods(situation):
    """So it does with atoms too far apart for bonds; they then are as near as their nearest images."""
    if situation.box is None:
        return
    bonds = np.column_stack([np.arange(len(situation.a) - 1), np.arange(1, len(situation.a))])
    found = unwrap(situation.a, bonds, situation.box).astype(np.float64)
    vectors = triclinic_vectors(situation.box).astype(np.float64)
    periods = (found - situation.a) @ np.linalg.inv(vectors)
    np.testing.assert_allclose(periods, np.rint(periods), atol=2e-3)
    nearest = minimize_vectors(np.diff(situation.a.astype(np.float64), axis=0), situation.box)
    assert np.all(np.linalg.norm(np.diff(found, axis=0), axis=1) <= np.linalg.norm(nearest, axis=1) + 2e-3)
