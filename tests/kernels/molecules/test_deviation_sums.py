"""deviation_sums() beside sums of Python's integers, which never overflow."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import himach
from himach.kernels import deviation_sums, superposition

seeds = st.integers(0, 2**32 - 1)
SOME = np.zeros((2, 3, 3), np.float32)


def plain(structures, fixed):
    """Return the sums of deviations that are rounded to 2^-20, one atom after another."""
    sums = [[0] * structures.shape[1] for _ in range(5)]
    for structure in structures.astype(np.float64):
        for i, deviation in enumerate(structure - fixed):
            units = [round(axis * 2**20) for axis in deviation.tolist()]
            square = sum(unit**2 for unit in units)
            for row, part in enumerate((*units, square >> 32, square & 0xFFFFFFFF)):
                sums[row][i] += part
    return sums


@settings(max_examples=100, deadline=None)
@given(seeds, st.integers(0, 5), st.integers(1, 23), st.sampled_from([1e-5, 1.0, 200.0]))
def test_sums_are_exact(seed, m, n, far):
    random = np.random.default_rng(seed)
    structures = (random.normal(0, far, (m, n, 3)) + 20).astype(np.float32)
    fixed = random.normal(20, far, (n, 3))
    assert deviation_sums(structures, fixed).tolist() == plain(structures, fixed)


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(3, 30), st.booleans(), st.booleans())
def test_each_is_laid_over_the_reference(seed, n, weighted, some):
    random = np.random.default_rng(seed)
    structures = random.normal(10, 5, (4, n, 3)).astype(np.float32)
    fitted = random.choice(n, random.integers(3, n + 1), replace=False) if some else None
    k = n if fitted is None else len(fitted)
    reference, weights = (
        random.normal(-3, 5, (k, 3)).astype(np.float32),
        random.uniform(0.1, 9, k) if weighted else None,
    )
    fixed = random.normal(-3, 5, (n, 3))
    moved = []
    for one in structures:
        rotation, shift = superposition(one if fitted is None else one[fitted], reference, weights)
        moved.append(one @ rotation.T + shift)
    found = deviation_sums(structures, fixed, reference, fitted, weights)
    deviations = np.array(moved) - fixed
    np.testing.assert_allclose(found[:3].T / 2**20, deviations.sum(axis=0), atol=1e-5)
    squares = (found[3] * 2.0**32 + found[4]) / 2**40
    np.testing.assert_allclose(squares, (deviations**2).sum(axis=(0, 2)), rtol=1e-5)
    parts = [deviation_sums(structures[i : i + 1], fixed, reference, fitted, weights) for i in (3, 1, 0, 2)]
    assert sum(parts).tolist() == found.tolist()


def test_the_largest_deviations():
    far = 1023.99
    structures = np.array([[[far, -far, far]], [[-far, far, -far]]], np.float32)
    sums = deviation_sums(structures, np.zeros((1, 3)))
    assert sums.tolist() == plain(structures, np.zeros((1, 3)))
    assert (2**31 * sums.astype(object) < 2**63).all()


@pytest.mark.parametrize("bad", [1024, -1024, 1e30, np.inf, np.nan])
@pytest.mark.parametrize(("structure", "atom"), [(0, 0), (1, 2), (1, 5)])
def test_atoms_that_are_too_far_off(bad, structure, atom):
    structures = np.zeros((2, 6, 3), np.float32)
    structures[structure, atom, 1] = bad
    with pytest.raises(himach.UsageError, match=f"an atom of structure {structure} is 1024 Å or more"):
        deviation_sums(structures, np.zeros((6, 3)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((SOME[0], SOME[0]), r"structures must be an array of shape \(m, n, 3\)"),
        ((SOME, SOME[0, :2]), r"fixed must have the shape \(3, 3\)"),
        ((SOME, SOME[0], SOME[0, :2]), "as many, and some, not 3 and 2"),
        ((SOME, SOME[0], SOME[0, :2], [0, 3]), "fitted are places from 0 to 2, not 0 to 3"),
        ((SOME, SOME[0], SOME[0, :2], [0, -1]), "fitted are places from 0 to 2"),
        ((SOME, SOME[0], SOME[0, :2], [[0, 1]]), r"fitted must be an array of shape \(k,\)"),
        ((SOME, SOME[0], SOME[0, :0], []), "as many, and some"),
        ((SOME, SOME[0], SOME[0], None, [1, 2]), r"weights must have the shape \(3,\)"),
        ((SOME, SOME[0], SOME[0], None, [1, 2, -3]), "weights must not be negative"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(himach.UsageError, match=message):
        deviation_sums(*arguments)
