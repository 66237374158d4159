"""Kernels of molecules beside NumPy and MDAnalysis: RMSD, deviations, gyration, centres, wrap and unwrap."""

import MDAnalysis
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernels.situations import least_width, situations
from MDAnalysis.analysis import align, rms
from MDAnalysis.lib.distances import apply_PBC, minimize_vectors
from MDAnalysis.lib.mdamath import triclinic_vectors
from MDAnalysisTests.datafiles import TPR, XTC

import himach
from himach import kernels
from himach.kernels import centers, deviation_sums, gyration, move, rmsd, rmsd_matrix, superposition, unwrap, wrap

seeds = st.integers(0, 2**32 - 1)


def kabsch(a, b, weights):
    a, b = (x.astype(np.float64) - np.average(x.astype(np.float64), axis=0, weights=weights) for x in (a, b))
    u, s, vt = np.linalg.svd((weights[:, None] * a).T @ b)
    s[2] *= np.sign(np.linalg.det(u @ vt))
    squares = (weights[:, None] * (a**2 + b**2)).sum() - 2 * s.sum()
    return np.sqrt(max(squares, 0) / weights.sum())


def structures(seed, n):
    """Return two structures of n atoms, turned and moved about, and weights; the second is the first with noise.

    Atoms in a plane and on a line are among them.
    """
    random = np.random.default_rng(seed)
    a = random.normal(0, 12, (n, 3)) * random.choice([(1, 1, 1), (1, 1, 0), (1, 0, 0)])
    turn, _ = np.linalg.qr(random.normal(size=(3, 3)))
    b = (a + random.normal(0, random.choice([0, 0.01, 1, 20]), (n, 3))) @ (turn * np.sign(np.linalg.det(turn)))
    return [(x + random.uniform(-100, 100, 3)).astype(np.float32) for x in (a, b)], random.uniform(0, 20, n) + 1e-3


@settings(max_examples=300)
@given(seeds, st.integers(1, 300), st.booleans())
def test_rmsd_is_that_of_the_best_rotation_or_of_none(seed, n, weighted):
    (a, b), weights = structures(seed, n)
    weights = weights if weighted else None
    expected = kabsch(a, b, weights if weighted else np.ones(n))  # MDAnalysis has three digits of atoms on a line
    assert rmsd(a, b, weights) == pytest.approx(expected, rel=1e-5, abs=1e-4)
    expected = rms.rmsd(a.astype(float), b.astype(float), weights, center=True)
    assert rmsd(a, b, weights, superposition=False) == pytest.approx(expected, rel=1e-5, abs=2e-4)


def test_structures_that_stay_in_place_have_exact_zeros_in_any_tile():
    structures = (np.random.default_rng(1).random((60, 214, 3)) * 80).astype(np.float32)
    whole = rmsd_matrix(structures, superposition=False)
    tile = rmsd_matrix(structures, structures.copy(), superposition=False)
    assert whole.tobytes() == tile.tobytes()


def test_the_same_is_zero():
    a = np.random.default_rng(0).normal(50, 10, (100, 3))
    assert rmsd(a, a) == pytest.approx(0, abs=1e-5)
    assert rmsd(a[:1], a[1:2]) == 0


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
    result = np.sqrt(np.average(((moved - reference) ** 2).sum(axis=1), weights=weights))
    assert result == pytest.approx(kernels.rmsd(positions, reference, weights), abs=1e-5)
    if n > 3:
        away = positions - np.average(positions, axis=0, weights=weights)
        fixed = reference - np.average(reference, axis=0, weights=weights)
        expected, _ = align.rotation_matrix(away, fixed, weights=weights)
        np.testing.assert_allclose(rotation, expected, atol=1e-4)


def ensemble(seed, count, n, weighted=True):
    """Return structures (count, n, 3) and weights: some alike, some not, in a plane, on a line, and mirrored."""
    random = np.random.default_rng(seed)
    kinds = random.normal(0, 8, (3, n, 3)) * random.choice([(1, 1, 1), (1, 1, 0), (1, 0, 0)], 3)[:, np.newaxis]
    subset = kinds[random.integers(3, size=count)] + random.choice([0, 0.01, 1]) * random.normal(size=(count, n, 3))
    turns = np.linalg.qr(random.normal(size=(count, 3, 3)))[0]  # with reflections
    moved = subset @ turns + random.uniform(-50, 50, (count, 1, 3))
    weights = random.uniform(0.1, 20, n)
    return moved.astype(np.float32), weights if weighted else None


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
@example(3, 3, 2, 1200, True, True)  # atoms are taken some hundred at a time
def test_each_pair_is_rmsd_and_has_the_bits_that_it_has_in_the_whole(seed, m, k, n, weighted, superposition):
    structures, weights = ensemble(seed, m + k, n, weighted)
    a, b = structures[:m], structures[m:]
    result = rmsd_matrix(a, b, None, weights, superposition)
    np.testing.assert_allclose(result, one_by_one(a, b, weights, superposition), rtol=1e-9, atol=2e-5)
    whole = rmsd_matrix(structures, weights=weights, superposition=superposition)
    np.testing.assert_array_equal(result, whole[:m, m:])
    np.testing.assert_array_equal(whole, whole.T)
    assert (np.diagonal(whole) == 0).all()


@settings(max_examples=200, deadline=None)
@given(seeds, st.integers(1, 40), st.integers(1, 11), st.integers(1, 40), st.booleans(), st.booleans())
def test_within_a_cutoff_is_a_deviation_within_it(seed, m, k, n, weighted, superposition):
    structures, weights = ensemble(seed, m + k, n, weighted)
    a, b = structures[:m], structures[m:]
    deviations = rmsd_matrix(a, b, None, weights, superposition)
    # Cutoffs that are deviations leave it to the last bit.
    for cutoff in [0, 1e-4, 0.5, 5, 50, *deviations.ravel()[:20]]:
        result = rmsd_matrix(a, b, cutoff, weights, superposition)
        np.testing.assert_array_equal(unpacked(result, k), deviations <= cutoff)
    every = rmsd_matrix(a, weights=weights, superposition=superposition)
    result = rmsd_matrix(a, None, 2.0, weights, superposition)
    np.testing.assert_array_equal(unpacked(result, m), every <= 2)


def test_nothing_to_compare():
    subset, none = np.zeros((2, 3, 3)), np.zeros((0, 3, 3))
    assert rmsd_matrix(none).shape == (0, 0)
    assert rmsd_matrix(subset, none).shape == (2, 0)
    assert rmsd_matrix(none, subset, 1).shape == (0, 1)


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
def test_each_is_laid_over_the_reference(seed, n, weighted, subset):
    random = np.random.default_rng(seed)
    structures = random.normal(10, 5, (4, n, 3)).astype(np.float32)
    fitted = random.choice(n, random.integers(3, n + 1), replace=False) if subset else None
    k = n if fitted is None else len(fitted)
    reference, weights = (
        random.normal(-3, 5, (k, 3)).astype(np.float32),
        random.uniform(0.1, 9, k) if weighted else None,
    )
    fixed = random.normal(-3, 5, (n, 3))
    moved = []
    for item in structures:
        rotation, shift = superposition(item if fitted is None else item[fitted], reference, weights)
        moved.append(item @ rotation.T + shift)
    result = deviation_sums(structures, fixed, reference, fitted, weights)
    deviations = np.array(moved) - fixed
    np.testing.assert_allclose(result[:3].T / 2**20, deviations.sum(axis=0), atol=1e-5)
    squares = (result[3] * 2.0**32 + result[4]) / 2**40
    np.testing.assert_allclose(squares, (deviations**2).sum(axis=(0, 2)), rtol=1e-5)
    parts = [deviation_sums(structures[i : i + 1], fixed, reference, fitted, weights) for i in (3, 1, 0, 2)]
    assert sum(parts).tolist() == result.tolist()


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


def covariance(positions, weights):
    positions = positions.astype(np.float64)
    apart = positions - np.average(positions, axis=0, weights=weights)
    return np.einsum("i,ij,ik->jk", weights, apart, apart) / weights.sum()


@settings(max_examples=200)
@given(seeds, st.integers(1, 70), st.booleans(), st.sampled_from([0, 100, 10_000]))
def test_the_tensor_is_the_covariance(seed, n, weighted, away):
    random = np.random.default_rng(seed)
    positions = (random.normal(0, 10, (n, 3)) + away * random.normal(size=3)).astype(np.float32)
    weights = random.uniform(0, 20, n) + 1e-3
    result = gyration(positions, weights if weighted else None)
    np.testing.assert_allclose(result, covariance(positions, weights if weighted else np.ones(n)), atol=1e-9)
    assert result.tolist() == result.T.tolist()


def test_atoms_without_weight_do_not_count():
    positions = np.random.default_rng(0).normal(0, 10, (11, 3)).astype(np.float32)
    weights = np.arange(11.0)
    assert gyration(positions, weights).tolist() != gyration(positions).tolist()
    np.testing.assert_allclose(gyration(positions, weights), gyration(positions[1:], weights[1:]), rtol=1e-12)
    assert gyration([[1, 2, 3]]).tolist() == np.zeros((3, 3)).tolist()  # one atom has no extent


@settings(max_examples=200)
@given(situations(), st.integers(0, 2**32 - 1), st.integers(0, 600), st.floats(0.1, 5))
def test_wrap_is_apply_pbc(situation, seed, n, periods):
    """Blocks of atoms, of which some, all or none are further away than one period."""
    if situation.box is not None:
        random = np.random.default_rng(seed)
        positions = ((random.random((n, 3)) * 2 - 1) * periods * situation.box[:3].max()).astype(np.float32)
        positions = np.concatenate([situation.a, positions])
        expected = apply_PBC(positions, situation.box)
        np.testing.assert_array_equal(wrap(positions, situation.box), expected)
        assert wrap(positions, situation.box, out=positions) is positions
        np.testing.assert_array_equal(positions, expected)


def whole_periods(moves, box):
    """Return by how many periods of the box atoms moved; it is by whole ones."""
    periods = moves @ np.linalg.inv(triclinic_vectors(box).astype(np.float64))
    np.testing.assert_allclose(periods, np.rint(periods), atol=2e-3)
    return np.rint(periods)


@settings(max_examples=60)
@given(situations(), st.integers(0, 2**32 - 1))
def test_wrap_by_groups_is_of_whole_periods(situation, seed):
    """Groups in any order: their centres come into the box; those that are in it stay to the last bit."""
    if situation.box is None:
        return
    random = np.random.default_rng(seed)
    groups = random.integers(0, 300, 900)
    positions = (random.normal(0, 2, (900, 3)) * situation.box[:3].max()).astype(np.float32)
    result = wrap(positions, situation.box, groups)
    middles = centers(result, groups)
    periods = whole_periods(result - positions.astype(np.float64), situation.box)
    inside = middles[np.unique(groups)] @ np.linalg.inv(triclinic_vectors(situation.box).astype(np.float64))
    assert inside.min() > -2e-3 and inside.max() < 1 + 2e-3
    stay = periods.any(axis=1) == 0
    np.testing.assert_array_equal(result[stay], positions[stay])


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
    result = centers(positions, [2, 0, 2])
    np.testing.assert_array_equal(result, [[8, 0, 0], [np.nan] * 3, [1, 2, 3]])
    assert centers(positions[:0], []).shape == (0, 3)


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
    result = unwrap(wrap(chain, situation.box), bonds, situation.box)
    np.testing.assert_allclose(np.diff(result, axis=0), np.diff(chain, axis=0), atol=2e-3)
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
    result = unwrap(situation.a, bonds, situation.box).astype(np.float64)
    whole_periods(result - situation.a, situation.box)
    nearest = minimize_vectors(np.diff(situation.a.astype(np.float64), axis=0), situation.box)
    assert np.all(np.linalg.norm(np.diff(result, axis=0), axis=1) <= np.linalg.norm(nearest, axis=1) + 2e-3)
