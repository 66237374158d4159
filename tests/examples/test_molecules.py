"""Molecules and their centres beside MDAnalysis's; what built-ins share."""

import warnings
from types import SimpleNamespace

import MDAnalysis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from MDAnalysis.lib.distances import minimize_vectors
from MDAnalysis.lib.mdamath import triclinic_vectors

import himach
from himach.examples import load, sample
from himach.examples.common import lag_times, select
from himach.examples.liquids.msd import Msd
from himach.examples.molecules import Centers, numbers_by, warn_of_cut_molecules

MSD = Msd()


def chains(rng, n_molecules, per_residue=3, n_residues=2, bonds=True):
    """Return a Universe of chains in a skewed box, that lie across its boundary, and their whole centres of mass."""
    n = n_molecules * n_residues * per_residue
    universe = MDAnalysis.Universe.empty(
        n, n_residues=n_molecules * n_residues,
        atom_resindex=np.repeat(np.arange(n_molecules * n_residues), per_residue), trajectory=True,
    )  # fmt: skip
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


def assert_same_place(result, expected, box):
    assert result.shape == expected.shape
    assert np.abs(minimize_vectors(result - expected, box)).max() < 1e-4


@given(st.integers(0, 2**32 - 1), st.sampled_from(["residue", "molecule"]))
def test_centers_of_chains_that_the_boundary_cuts(seed, by):
    rng = np.random.default_rng(seed)
    universe, whole = chains(rng, 4)
    chosen = np.sort(rng.choice(24, rng.integers(1, 25), replace=False))
    numbers = np.repeat(np.arange(4), 6) if by == "molecule" else np.repeat(np.arange(8), 3)
    centers = Centers(universe.atoms[rng.permutation(chosen)], MSD, by)
    result = centers.locate(frame_of(universe))
    subset = np.unique(numbers[chosen])
    masses = universe.atoms.masses
    expected = [
        np.average(whole[chosen][numbers[chosen] == k], axis=0, weights=masses[chosen][numbers[chosen] == k])
        for k in subset
    ]
    assert_same_place(result, np.array(expected), universe.dimensions)
    assert set(chosen) <= set(centers.indices)
    if len(subset) == len(chosen):
        assert len(centers.indices) == len(chosen)  # nothing is read that is not needed


def test_centers_of_residues_without_bonds():
    universe, whole = chains(np.random.default_rng(1), 9, n_residues=1, bonds=False)
    expected = np.array(
        [
            np.average(whole[subset.ix], axis=0, weights=subset.masses)
            for subset in universe.residues.atoms.split("residue")
        ]
    )
    assert_same_place(Centers(universe.atoms, MSD, "residue").locate(frame_of(universe)), expected, universe.dimensions)
    with pytest.warns(UserWarning, match="msd: the topology has no bonds, so each residue is a molecule"):
        centers = Centers(universe.atoms, MSD, "molecule")
    assert_same_place(centers.locate(frame_of(universe)), expected, universe.dimensions)


def test_atoms_are_taken_where_they_are_where_nothing_cuts_them():
    universe, _ = chains(np.random.default_rng(2), 3)
    expected = universe.atoms.center_of_mass(compound="fragments")
    frame = frame_of(universe)
    np.testing.assert_allclose(Centers(universe.atoms, MSD, "molecule", whole=False).locate(frame), expected, atol=1e-5)
    frame.box = None
    np.testing.assert_allclose(Centers(universe.atoms, MSD, "molecule").locate(frame), expected, atol=1e-5)


def test_which_atoms_are_of_one_molecule():
    universe = MDAnalysis.Universe.empty(12, n_residues=4, atom_resindex=[0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 3, 3])
    universe.add_TopologyAttr("bonds", [(0, 1), (5, 6), (7, 8), (4, 10)])
    result = numbers_by(universe, MSD, "molecule")
    parts = [{0, 1, 2}, {3, 4, 10, 11}, {5, 6}, {7, 8}, {9}]
    assert {frozenset(np.flatnonzero(result == k)) for k in range(result.max() + 1)} == set(map(frozenset, parts))
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


def analysis(n_frames, dt):
    made = Msd()
    made.frames, made.dt = range(n_frames), dt
    return made


def chain(box):
    """Return a Universe of a chain of four atoms, the last of which lies behind the boundary, and a lone pair."""
    universe = MDAnalysis.Universe.empty(6, 2, atom_resindex=[0, 0, 0, 0, 1, 1], trajectory=True)
    for name, values in (("names", ["C"] * 6), ("types", ["C"] * 6), ("masses", [12.0] * 6), ("resids", [1, 2])):
        universe.add_TopologyAttr(name, values)
    universe.add_TopologyAttr("bonds", [(0, 1), (1, 2), (2, 3)])
    universe.atoms.positions = [[17, 5, 5], [18, 5, 5], [19, 5, 5], [0.2, 5, 5], [9, 9, 9], [9, 9, 10.2]]
    universe.dimensions = box
    return universe


def test_molecules_that_the_boundary_cuts_are_warned_of():
    universe = chain([20, 20, 20, 90, 90, 90])
    with pytest.warns(UserWarning, match=r"1 bonds of the first frame are longer than half the box; .*--whole"):
        warn_of_cut_molecules(analysis(2, 1.0), universe.atoms[:1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_cut_molecules(analysis(2, 1.0), universe.atoms[4:])


def test_a_selection_of_other_atoms_in_each_frame_is_refused():
    made = analysis(2, 1.0)
    made.selection = "updating prop x > 5"
    with pytest.raises(himach.UsageError, match="selects other atoms in each frame"):
        select(chain([20, 20, 20, 90, 90, 90]), made, "selection")


def test_lag_times_are_positive_in_either_direction_of_time():
    assert lag_times(analysis(10, 0.5), 3).tolist() == [0, 0.5, 1, 1.5]
    assert lag_times(analysis(10, -0.5), 2).tolist() == [0, 0.5, 1]


def test_lag_times_are_cut_to_the_trajectory():
    with pytest.warns(UserWarning, match="tau_max=20 is cut to 2, 3 frames"):
        assert lag_times(analysis(3, 2.0), 20).tolist() == [0, 2, 4]
    with pytest.warns(UserWarning, match="cut to 0"):
        assert lag_times(analysis(1, None), 5).tolist() == [0]


def test_lag_times_that_are_none_are_refused():
    with pytest.raises(himach.UsageError, match="dt of the selected frames is uneven"):
        lag_times(analysis(10, None), 5)


@pytest.mark.parametrize(
    ("name", "options", "parameter"),
    [
        ("contacts", {"cutoff": 0.45}, "cutoff 0.45"),
        ("hydrogen-bonds", {"distance": 0.35}, "distance 0.35"),
        ("water-residence", {"cutoff": 0.35, "solute": "name K"}, "cutoff 0.35"),
        ("rdf", {"a": "name K", "b": "name K", "r_max": 1.2}, "r_max 1.2"),
    ],
)
def test_lengths_that_are_meant_in_nm_are_warned_of(name, options, parameter):
    sampled = sample("villin" if name in ("contacts", "hydrogen-bonds") else "nanopore")
    with pytest.warns(UserWarning, match=rf"{name}: nothing is within {parameter} Å: lengths are in Å, and"):
        himach.run(load(name)(**options), *sampled, stop=3, cache="off")
