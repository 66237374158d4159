"""Molecules and their centres beside what MDAnalysis makes of them, one by one."""

from types import SimpleNamespace

import MDAnalysis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from MDAnalysis.lib.distances import minimize_vectors
from MDAnalysis.lib.mdamath import make_whole, triclinic_vectors
from MDAnalysisTests.datafiles import DCD, GRO, PSF, TPR, XTC

import himach
from himach.examples.liquids.msd import Msd
from himach.examples.molecules import Centers, numbers_by

MSD = Msd()


def chains(rng, n_molecules, per_residue=3, n_residues=2, bonds=True):
    """Return a Universe of chains in a skewed box, that lie across its boundary, and their whole centres of mass."""
    n = n_molecules * n_residues * per_residue
    universe = MDAnalysis.Universe.empty(
        n,
        n_residues=n_molecules * n_residues,
        atom_resindex=np.repeat(np.arange(n_molecules * n_residues), per_residue),
        trajectory=True,
    )
    universe.add_TopologyAttr("masses", rng.uniform(1, 20, n))
    universe.add_TopologyAttr("resids", np.arange(n_molecules * n_residues) + 1)
    universe.add_TopologyAttr("names", [f"C{i % per_residue}" for i in range(n)])
    chain = np.arange(n).reshape(n_molecules, -1)
    if bonds:
        pairs = np.stack([chain[:, :-1], chain[:, 1:]], axis=-1).reshape(-1, 2)
        universe.add_TopologyAttr("bonds", rng.permutation(pairs))
    box = np.array([14, 15, 16, 80, 75, 100], np.float32)
    whole = rng.uniform(0, 30, (n_molecules, 1, 3)) + np.cumsum(rng.uniform(-1.5, 1.5, (*chain.shape, 3)), axis=1)
    universe.dimensions = box
    vectors = triclinic_vectors(box, dtype=np.float64)
    periods = rng.integers(-2, 3, (*chain.shape, 3))
    universe.atoms.positions = (whole + periods @ vectors).reshape(-1, 3)
    return universe, whole.reshape(-1, 3)


def frame_of(universe):
    return SimpleNamespace(positions=universe.atoms.positions, box=universe.dimensions)


def assert_same_place(found, expected, box):
    assert found.shape == expected.shape
    assert np.abs(minimize_vectors(found - expected, box)).max() < 1e-4


@given(st.integers(0, 2**32 - 1), st.sampled_from(["residue", "molecule"]))
def test_centers_of_chains_that_the_boundary_cuts(seed, by):
    rng = np.random.default_rng(seed)
    universe, whole = chains(rng, 4)
    chosen = np.sort(rng.choice(24, rng.integers(1, 25), replace=False))
    numbers = np.repeat(np.arange(4), 6) if by == "molecule" else np.repeat(np.arange(8), 3)
    centers = Centers(universe.atoms[rng.permutation(chosen)], MSD, by)
    found = centers.of(frame_of(universe))
    some = np.unique(numbers[chosen])
    masses = universe.atoms.masses
    expected = [
        np.average(whole[chosen][numbers[chosen] == k], axis=0, weights=masses[chosen][numbers[chosen] == k])
        for k in some
    ]
    assert_same_place(found, np.array(expected), universe.dimensions)
    assert set(chosen) <= set(centers.indices)
    if len(some) == len(chosen):
        assert len(centers.indices) == len(chosen)  # nothing is read that is not needed


def test_centers_of_residues_without_bonds():
    universe, whole = chains(np.random.default_rng(1), 9, n_residues=1, bonds=False)
    expected = np.array(
        [np.average(whole[some.ix], axis=0, weights=some.masses) for some in universe.residues.atoms.split("residue")]
    )
    assert_same_place(Centers(universe.atoms, MSD, "residue").of(frame_of(universe)), expected, universe.dimensions)
    with pytest.warns(UserWarning, match="msd: the topology has no bonds, so each residue is a molecule"):
        centers = Centers(universe.atoms, MSD, "molecule")
    assert_same_place(centers.of(frame_of(universe)), expected, universe.dimensions)


def test_atoms_are_taken_where_they_are_where_nothing_cuts_them():
    universe, _ = chains(np.random.default_rng(2), 3)
    expected = universe.atoms.center_of_mass(compound="fragments")
    frame = frame_of(universe)
    np.testing.assert_allclose(Centers(universe.atoms, MSD, "molecule", whole=False).of(frame), expected, atol=1e-5)
    frame.box = None
    np.testing.assert_allclose(Centers(universe.atoms, MSD, "molecule").of(frame), expected, atol=1e-5)


def test_residues_of_a_protein_in_a_skewed_box():
    universe = MDAnalysis.Universe(TPR, XTC)
    universe.trajectory[4]
    protein = universe.select_atoms("protein")
    expected = protein.center_of_mass(compound="residues", unwrap=True)
    assert_same_place(Centers(protein, MSD, "residue").of(frame_of(universe)), expected, universe.dimensions)
    calphas = universe.select_atoms("name CA and resid 3 50 100")  # no bonds between them: the protein joins them
    centers = Centers(calphas, MSD, "molecule")
    found = centers.of(frame_of(universe))
    make_whole(protein)
    assert_same_place(found, calphas.center_of_mass()[np.newaxis], universe.dimensions)
    assert len(centers.indices) == len(protein)


def test_molecules_of_a_solvated_protein():
    """Sites of water without mass have no bonds: MDAnalysis makes each a fragment of its own."""
    universe = MDAnalysis.Universe(TPR, XTC)
    numbers = numbers_by(universe, MSD, "molecule")
    assert len(np.unique(numbers)) == 1 + 11084 + 4
    water = universe.select_atoms("resname SOL")
    assert len(set(numbers[water.ix])) == 11084
    assert len(set(numbers[universe.select_atoms("protein").ix])) == 1
    for water_of in water.residues[:50]:
        assert len(set(numbers[water_of.atoms.ix])) == 1


def test_which_atoms_are_of_one_molecule():
    """Of residues: bonded and not; all in one; parted; a site beside what is bonded."""
    universe = MDAnalysis.Universe.empty(12, n_residues=4, atom_resindex=[0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 3, 3])
    universe.add_TopologyAttr("bonds", [(0, 1), (5, 6), (7, 8), (4, 10)])
    found = numbers_by(universe, MSD, "molecule")
    parts = [{0, 1, 2}, {3, 4, 10, 11}, {5, 6}, {7, 8}, {9}]
    assert {frozenset(np.flatnonzero(found == k)) for k in range(found.max() + 1)} == set(map(frozenset, parts))
    assert numbers_by(universe, MSD, "residue").tolist() == universe.atoms.resindices.tolist()


def test_masses_that_are_missing_are_named():
    universe, _ = chains(np.random.default_rng(3), 2)
    masses = universe.atoms.masses
    masses[3:6] = 0
    universe.atoms.masses = masses
    Centers(universe.atoms, MSD, "molecule")
    with pytest.raises(himach.UsageError, match="msd: the selected atoms of the residue of 2 have no mass"):
        Centers(universe.atoms, MSD, "residue")
    universe.del_TopologyAttr("masses")
    with pytest.raises(himach.UsageError, match="msd: the topology has no masses"):
        Centers(universe.atoms, MSD, "residue")


def test_a_protein_without_a_box():
    universe = MDAnalysis.Universe(PSF, DCD)
    centers = Centers(universe.atoms, MSD, "residue")
    np.testing.assert_allclose(
        centers.of(frame_of(universe)), universe.atoms.center_of_mass(compound="residues"), atol=1e-4
    )


def test_water_by_residues_of_a_topology_without_bonds():
    universe = MDAnalysis.Universe(GRO, XTC)
    water = universe.select_atoms("resname SOL and resid 1000-1400")
    oxygens, masses = water.select_atoms("name OW"), water.masses.reshape(-1, 4)
    to = water.positions.reshape(-1, 4, 3) - oxygens.positions[:, np.newaxis]
    near = minimize_vectors(to.reshape(-1, 3).astype(np.float64), universe.dimensions).reshape(to.shape)
    expected = oxygens.positions + (masses[:, :, np.newaxis] * near).sum(axis=1) / masses.sum(axis=1)[:, np.newaxis]
    assert_same_place(Centers(water, MSD, "residue").of(frame_of(universe)), expected, universe.dimensions)
