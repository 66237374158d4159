"""rmsd() beside MDAnalysis's, and beside the singular value decomposition of Kabsch."""

import MDAnalysis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from MDAnalysis.analysis import align, rms
from MDAnalysisTests.datafiles import DCD, PSF

import himach
from himach import kernels
from himach.kernels import rmsd

seeds = st.integers(0, 2**32 - 1)


def kabsch(a, b, weights):
    """Return the deviation after the rotation from a singular value decomposition."""
    a, b = (x.astype(np.float64) - np.average(x.astype(np.float64), axis=0, weights=weights) for x in (a, b))
    u, s, vt = np.linalg.svd((weights[:, None] * a).T @ b)
    s[2] *= np.sign(np.linalg.det(u @ vt))
    squares = (weights[:, None] * (a**2 + b**2)).sum() - 2 * s.sum()
    return np.sqrt(max(squares, 0) / weights.sum())


def structures(seed, n, shapes=((1, 1, 1), (1, 1, 0), (1, 0, 0))):
    """Return two structures of n atoms, turned and moved about, and weights; the second is the first with noise.

    Atoms in a plane and on a line are among them.
    """
    random = np.random.default_rng(seed)
    a = random.normal(0, 12, (n, 3)) * random.choice(shapes)
    turn, _ = np.linalg.qr(random.normal(size=(3, 3)))
    b = (a + random.normal(0, random.choice([0, 0.01, 1, 20]), (n, 3))) @ (turn * np.sign(np.linalg.det(turn)))
    return [(x + random.uniform(-100, 100, 3)).astype(np.float32) for x in (a, b)], random.uniform(0, 20, n) + 1e-3


@settings(max_examples=300)
@given(seeds, st.integers(1, 300), st.booleans())
def test_rmsd_is_that_of_the_best_rotation(seed, n, weighted):
    (a, b), weights = structures(seed, n)
    found = rmsd(a, b, weights if weighted else None)
    assert found == pytest.approx(kabsch(a, b, weights if weighted else np.ones(n)), rel=1e-5, abs=1e-4)


@settings(max_examples=100)
@given(seeds, st.integers(5, 300), st.booleans(), st.booleans())
def test_rmsd_is_mdanalysis(seed, n, weighted, superposition):
    (a, b), weights = structures(seed, n, [(1, 1, 1)])  # of atoms on a line, MDAnalysis has three digits only
    weights = weights if weighted else None
    expected = rms.rmsd(a.astype(float), b.astype(float), weights, center=True, superposition=superposition)
    assert rmsd(a, b, weights, superposition) == pytest.approx(expected, rel=1e-5, abs=2e-4)


def test_protein():
    universe = MDAnalysis.Universe(PSF, DCD)
    atoms = universe.select_atoms("backbone")
    reference, masses = atoms.positions, atoms.masses
    expected = rms.RMSD(atoms, weights="mass").run().results.rmsd[:, 2]
    found = [rmsd(atoms.positions, reference, masses) for _ in universe.trajectory]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-5)


def test_the_same_is_zero():
    a = np.random.default_rng(0).normal(50, 10, (100, 3))
    assert rmsd(a, a) == pytest.approx(0, abs=1e-5)
    assert rmsd(a[:1], a[1:2]) == 0


SOME = np.zeros((3, 3), np.float32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((SOME, SOME[:2]), "as many, and some, not 3 and 2"),
        ((SOME[:0], SOME[:0]), "as many, and some"),
        ((SOME, SOME, [1, 2]), r"weights must have the shape \(3,\)"),
        ((SOME, SOME, [1, 2, -1]), "weights must not be negative"),
        ((SOME, SOME, [0, 0, 0]), "weights must not be negative, nor all zero"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(himach.UsageError, match=message):
        rmsd(*arguments)


@settings(deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 40), weighed=st.booleans())
def test_superposition_against_mdanalysis(seed, n, weighed):
    random = np.random.default_rng(seed)
    reference, positions = random.normal(0, 5, (2, n, 3)).astype(np.float32)
    weights = random.uniform(0.5, 2, n) if weighed else None
    rotation, shift = kernels.superposition(positions, reference, weights)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(rotation) == pytest.approx(1)
    moved = positions @ rotation.T + shift
    found = np.sqrt(np.average(((moved - reference) ** 2).sum(axis=1), weights=weights))
    assert found == pytest.approx(kernels.rmsd(positions, reference, weights), abs=1e-5)
    if n > 3:
        away = positions - np.average(positions, axis=0, weights=weights)
        fixed = reference - np.average(reference, axis=0, weights=weights)
        expected, _ = align.rotation_matrix(away, fixed, weights=weights)
        np.testing.assert_allclose(rotation, expected, atol=1e-4)
