"""centers(), wrap() and unwrap() beside what AtomGroups do."""

import MDAnalysis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.situations import situations
from MDAnalysis.lib.distances import apply_PBC
from MDAnalysis.lib.mdamath import triclinic_vectors
from MDAnalysisTests.datafiles import TPR, XTC

import himach
from himach.kernels import centers, unwrap, wrap


@settings(max_examples=200)
@given(situations())
def test_wrap_is_apply_pbc(situation):
    if situation.box is not None:
        np.testing.assert_array_equal(wrap(situation.a, situation.box), apply_PBC(situation.a, situation.box))


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


@pytest.mark.parametrize("center", ["com", "cog"])
def test_wrap_by_residues(adk, center):
    water = adk.select_atoms("resname SOL")
    positions = water.positions
    weights = water.masses if center == "com" else None
    found = wrap(positions, adk.dimensions, water.resindices - water.resindices.min(), weights)
    expected = water.wrap(compound="residues", center=center, inplace=False)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def outwards(atoms):
    """Return the bonds of atoms in the order of a walk from each fragment's first atom."""
    order, seen = [], set()
    for fragment in atoms.fragments:
        queue = [fragment[0].index]
        seen.add(queue[0])
        for index in queue:
            for other in atoms.universe.atoms[index].bonded_atoms.indices:
                if other not in seen:
                    seen.add(other)
                    queue.append(other)
                    order.append((index, other))
    return order


def test_unwrap_of_a_protein(adk):
    protein = adk.select_atoms("protein")
    broken = wrap(protein.positions, adk.dimensions)
    whole = unwrap(broken, outwards(protein), adk.dimensions)
    protein.positions = broken
    np.testing.assert_allclose(whole, protein.unwrap(reference=None, inplace=False), atol=1e-3)
    assert np.abs(broken - whole).max() > 10


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


@settings(max_examples=100)
@given(situations())
def test_unwrap_moves_by_whole_periods(situation):
    """So it does with atoms too far apart for it; along each axis they then are within half the box of one another."""
    if situation.box is None:
        return
    bonds = np.column_stack([np.arange(len(situation.a) - 1), np.arange(1, len(situation.a))])
    found = unwrap(situation.a, bonds, situation.box).astype(np.float64)
    vectors = triclinic_vectors(situation.box).astype(np.float64)
    periods = (found - situation.a) @ np.linalg.inv(vectors)
    np.testing.assert_allclose(periods, np.rint(periods), atol=2e-3)
    assert np.all(np.abs(np.diff(found, axis=0)) <= np.diag(vectors) / 2 + 2e-3)


SOME, BOX = np.zeros((3, 3)), [9, 9, 9, 90, 90, 90]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: centers(SOME, [0, 1]), r"groups must have the shape \(3,\)"),
        (lambda: centers(SOME, [0, 1, -1]), "groups are numbers from 0, not -1"),
        (lambda: centers(SOME, [0.5, 1, 1]), "groups must be integers"),
        (lambda: centers(SOME, None, [1]), r"weights must have the shape \(3,\)"),
        (lambda: wrap(SOME, None), "there is no box"),
        (lambda: unwrap(SOME, [[0, 3]], BOX), "bonds are between atoms 0 to 2, not 0 to 3"),
        (lambda: unwrap(SOME, [0, 1], BOX), r"bonds must be an array of shape \(m, 2\)"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(himach.UsageError, match=message):
        call()
