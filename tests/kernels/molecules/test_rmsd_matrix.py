"""rmsd_matrix() beside rmsd(), one pair at a time, and MDTraj's."""

import mdtraj
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from MDAnalysisTests.datafiles import DCD, PSF

import himach
from himach.kernels import rmsd, rmsd_matrix

seeds = st.integers(0, 2**32 - 1)


def ensemble(seed, count, n):
    """Return structures (count, n, 3) and weights: some alike, some not, in a plane, on a line, and mirrored."""
    random = np.random.default_rng(seed)
    kinds = random.normal(0, 8, (3, n, 3)) * random.choice([(1, 1, 1), (1, 1, 0), (1, 0, 0)], 3)[:, np.newaxis]
    some = kinds[random.integers(3, size=count)] + random.choice([0, 0.01, 1]) * random.normal(size=(count, n, 3))
    turns = np.linalg.qr(random.normal(size=(count, 3, 3)))[0]  # with reflections
    moved = some @ turns + random.uniform(-50, 50, (count, 1, 3))
    return moved.astype(np.float32), random.uniform(0.1, 20, n)


def one_by_one(a, b, weights, superposition):
    if superposition:
        return np.array([[rmsd(x, y, weights) for y in b] for x in a])
    squares = ((a[:, np.newaxis].astype(np.float64) - b) ** 2).sum(axis=3)
    return np.sqrt(np.average(squares, axis=2, weights=weights))


def unpacked(bits, count):
    assert bits.dtype == np.uint8
    return np.unpackbits(bits, axis=1, count=count, bitorder="little").astype(bool)


@settings(max_examples=150, deadline=None)
@given(seeds, st.integers(1, 40), st.integers(1, 11), st.integers(1, 300), st.booleans(), st.booleans())
def test_each_pair_is_rmsd(seed, m, k, n, weighted, superposition):
    structures, weights = ensemble(seed, m + k, n)
    a, b = structures[:m], structures[m:]
    weights = weights if weighted else None
    found = rmsd_matrix(a, b, None, weights, superposition)
    assert found.shape == (m, k)
    np.testing.assert_allclose(found, one_by_one(a, b, weights, superposition), rtol=1e-9, atol=2e-5)


@settings(max_examples=150, deadline=None)
@given(seeds, st.integers(1, 40), st.integers(1, 300), st.booleans(), st.booleans())
def test_parts_have_the_bits_of_the_whole(seed, m, n, weighted, superposition):
    structures, weights = ensemble(seed, m, n)
    weights = weights if weighted else None
    whole = rmsd_matrix(structures, weights=weights, superposition=superposition)
    np.testing.assert_array_equal(whole, whole.T)
    assert (np.diagonal(whole) == 0).all()
    part = rmsd_matrix(structures[: m // 2], structures[m // 2 :], None, weights, superposition)
    np.testing.assert_array_equal(part, whole[: m // 2, m // 2 :])


@settings(max_examples=200, deadline=None)
@given(seeds, st.integers(1, 40), st.integers(1, 11), st.integers(1, 40), st.booleans(), st.booleans())
def test_within_a_cutoff_is_a_deviation_within_it(seed, m, k, n, weighted, superposition):
    structures, weights = ensemble(seed, m + k, n)
    a, b = structures[:m], structures[m:]
    weights = weights if weighted else None
    deviations = rmsd_matrix(a, b, None, weights, superposition)
    # Cutoffs that are deviations leave it to the last bit.
    for cutoff in [0, 1e-4, 0.5, 5, 50, *deviations.ravel()[:20]]:
        found = rmsd_matrix(a, b, cutoff, weights, superposition)
        np.testing.assert_array_equal(unpacked(found, k), deviations <= cutoff)
    every = rmsd_matrix(a, weights=weights, superposition=superposition)
    found = rmsd_matrix(a, None, 2.0, weights, superposition)
    np.testing.assert_array_equal(unpacked(found, m), every <= 2)


def test_mdtraj():
    trajectory = mdtraj.load(DCD, top=PSF).atom_slice(mdtraj.load_topology(PSF).select("name CA"))
    found = rmsd_matrix(10 * trajectory.xyz)
    expected = [10 * mdtraj.rmsd(trajectory, trajectory, i, parallel=False) for i in range(0, 98, 7)]
    np.testing.assert_allclose(found[::7], expected, atol=2e-3)
    assert found.max() == pytest.approx(6.8334, abs=1e-4)


def test_many_atoms():
    """Which are taken some hundred at a time."""
    structures, weights = ensemble(3, 5, 1200)
    found = rmsd_matrix(structures, weights=weights)
    expected = one_by_one(structures, structures, weights, True)
    np.testing.assert_allclose(found, expected * ~np.eye(5, dtype=bool), rtol=1e-9, atol=2e-5)


def test_nothing_to_compare():
    some, none = np.zeros((2, 3, 3)), np.zeros((0, 3, 3))
    assert rmsd_matrix(none).shape == (0, 0)
    assert rmsd_matrix(some, none).shape == (2, 0)
    assert rmsd_matrix(none, some, 1).shape == (0, 1)


SOME = np.zeros((2, 3, 3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((SOME[0],), r"a must be an array of shape \(m, n, 3\) with n > 0, not \(3, 3\)"),
        ((SOME[:, :0],), r"with n > 0, not \(2, 0, 3\)"),
        ((SOME, SOME[:, :2]), "structures of as many atoms, not of 3 and 2"),
        ((SOME, None, -1), "cutoff must be 0 or more, not -1"),
        ((SOME, None, np.nan), "cutoff must be 0 or more, not nan"),
        ((SOME, None, None, [1, 2]), r"weights must have the shape \(3,\)"),
        ((SOME, None, None, [1, 2, -1]), "weights must not be negative"),
        ((SOME, None, None, [0, 0, 0]), "weights must not be negative, nor all zero"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(himach.UsageError, match=message):
        rmsd_matrix(*arguments)
