"""gyration() beside the covariance of positions, and MDAnalysis's moments."""

import MDAnalysis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from MDAnalysisTests.datafiles import DCD, PSF

import himach
from himach.kernels import gyration

seeds = st.integers(0, 2**32 - 1)
SOME = np.zeros((3, 3), np.float32)


def covariance(positions, weights):
    """Return the mean product of two coordinates about the centre."""
    positions = positions.astype(np.float64)
    apart = positions - np.average(positions, axis=0, weights=weights)
    return np.einsum("i,ij,ik->jk", weights, apart, apart) / weights.sum()


@settings(max_examples=200)
@given(seeds, st.integers(1, 70), st.booleans(), st.sampled_from([0, 100, 10_000]))
def test_the_tensor_is_the_covariance(seed, n, weighted, away):
    random = np.random.default_rng(seed)
    positions = (random.normal(0, 10, (n, 3)) + away * random.normal(size=3)).astype(np.float32)
    weights = random.uniform(0, 20, n) + 1e-3
    found = gyration(positions, weights if weighted else None)
    np.testing.assert_allclose(found, covariance(positions, weights if weighted else np.ones(n)), atol=1e-9)
    assert found.tolist() == found.T.tolist()


def test_protein():
    atoms = MDAnalysis.Universe(PSF, DCD).select_atoms("protein")
    for _ in atoms.universe.trajectory[::30]:
        moments = np.sort(np.linalg.eigvalsh(gyration(atoms.positions, atoms.masses)))
        np.testing.assert_allclose(moments, np.sort(atoms.gyration_moments()), rtol=1e-10)


def test_atoms_without_weight_do_not_count():
    positions = np.random.default_rng(0).normal(0, 10, (11, 3)).astype(np.float32)
    weights = np.arange(11.0)
    assert gyration(positions, weights).tolist() != gyration(positions).tolist()
    np.testing.assert_allclose(gyration(positions, weights), gyration(positions[1:], weights[1:]), rtol=1e-12)


def test_one_atom_has_no_extent():
    assert gyration([[1, 2, 3]]).tolist() == np.zeros((3, 3)).tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((SOME[:0],), "there are no positions"),
        ((SOME, [1, 2]), r"weights must have the shape \(3,\)"),
        ((SOME, [1, 2, -1]), "weights must not be negative"),
        ((SOME, [0, 0, 0]), "nor all zero"),
        ((SOME[0],), r"shape \(n, 3\)"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(himach.UsageError, match=message):
        gyration(*arguments)
