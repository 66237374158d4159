"""persistence-length beside MDAnalysis, and for chains whose persistence is known."""

import MDAnalysis
import numpy as np
import pytest
from MDAnalysis.analysis.polymer import PersistenceLength as Peer
from MDAnalysisTests.datafiles import DCD, PSF
from support import plain

from himach.examples.structure.persistence_length import PersistenceLength


def test_against_mdanalysis():
    outcome = plain.run(PersistenceLength(longest=40), DCD, PSF)
    universe = MDAnalysis.Universe(PSF, DCD)
    chain = universe.select_atoms("name CA")
    peer = Peer([chain]).run()
    np.testing.assert_allclose(outcome["bonds"]["cosine"], peer.results.bond_autocorrelation, atol=1e-6)
    ends = [float(np.linalg.norm(chain.positions[-1] - chain.positions[0])) for _ in universe.trajectory]
    np.testing.assert_allclose(outcome["end_to_end"]["end_to_end"], ends, rtol=1e-6)


def worms(folder, n_atoms, persistence, frames=40):
    """Write two chains of bonds of 1.5 Å across the boundary of the box, whose directions persist over a length."""
    universe = MDAnalysis.Universe.empty(2 * n_atoms, 2, atom_resindex=[0] * n_atoms + [1] * n_atoms, trajectory=True)
    universe.add_TopologyAttr("names", ["CA"] * 2 * n_atoms)
    numbers = np.arange(2 * n_atoms - 1)
    universe.add_TopologyAttr("bonds", [(n, n + 1) for n in numbers if n != n_atoms - 1])
    random, step = np.random.default_rng(1), np.sqrt(1.5 / persistence)
    topology, trajectory = folder / "worms.pdb", folder / "worms.trr"
    with MDAnalysis.Writer(str(trajectory), 2 * n_atoms) as writer:
        for _ in range(frames):
            for chain in range(2):
                direction, places = np.array([1.0, 0, 0]), [np.zeros(3)]
                for _ in range(n_atoms - 1):
                    places.append(places[-1] + 1.5 * direction)
                    direction = direction + random.normal(0, step, 3)
                    direction /= np.linalg.norm(direction)
                universe.atoms[chain * n_atoms : (chain + 1) * n_atoms].positions = np.array(places) % 20
            universe.dimensions = [20, 20, 20, 90, 90, 90]
            writer.write(universe.atoms)
    universe.atoms.write(str(topology), bonds="all")
    return trajectory, topology


def test_the_persistence_of_worm_like_chains(tmp_path):
    """A direction with noise of variance s² in each bond keeps a cosine of about 1 - s²: it persists over b / s²."""
    outcome = plain.run(PersistenceLength(), *worms(tmp_path, 60, persistence=30.0))
    fit = outcome["persistence"]
    assert fit["bond"][0] == pytest.approx(1.5, rel=1e-3)
    assert fit["length"][0] == pytest.approx(30, rel=0.15)
    assert (np.asarray(outcome["end_to_end"]["end_to_end"]) < 60 * 1.5).all()


def test_several_atoms_of_a_unit_have_no_persistence_length():
    with pytest.warns(UserWarning, match=r"persistence length is nan, .* mean cosine of -0.*one atom of each unit"):
        fit = plain.run(PersistenceLength(selection="name CA HA"), DCD, PSF)["persistence"]
    assert np.isnan(fit["length"]).all()
