"""rmsf beside MDAnalysis, and sums over blocks of frames."""

import warnings
from functools import partial

import MDAnalysis
import numpy as np
import pytest
from MDAnalysis.analysis import align, rms
from MDAnalysisTests.datafiles import DCD, PSF
from support import plain

import himach
from himach.examples import sample
from himach.examples.structure.rmsf import Rmsf

STEP = 7


def some_frames():
    universe = MDAnalysis.Universe(PSF, DCD)
    universe.transfer_to_memory(step=STEP)
    return universe


def mdanalysis(selection, fit, reference, weights):
    """Return the fluctuations that AverageStructure, AlignTraj and RMSF find."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = some_frames()
        if reference == "mean":
            average = align.AverageStructure(some_frames(), other, select=fit, weights=weights, ref_frame=0).run()
            other = average.results.universe
        moved = some_frames()
        align.AlignTraj(moved, other, select=fit, weights=weights, in_memory=True).run()
        return rms.RMSF(moved.select_atoms(selection)).run().results.rmsf


@pytest.mark.parametrize("reference", ["first", "mean"])
@pytest.mark.parametrize(
    ("selection", "fit", "weights"),
    [("name CA", "selection", None), ("protein and not name H*", "name CA", None), ("resid 1:60", "all", "mass")],
)
def test_against_mdanalysis(reference, selection, fit, weights):
    analysis = Rmsf(selection=selection, fit=fit, weights=weights or "none", reference=reference)
    table = plain.run(analysis, DCD, PSF, step=STEP)["rmsf"]
    expected = mdanalysis(selection, selection if fit == "selection" else fit, reference, weights)
    np.testing.assert_allclose(table["rmsf"], expected, atol=2e-6)
    np.testing.assert_allclose(table["bfactor"], 8 / 3 * np.pi**2 * expected**2, rtol=1e-5)
    assert table["atom"].tolist() == MDAnalysis.Universe(PSF).select_atoms(selection).indices.tolist()


def test_against_gromacs():
    # printf C-alpha | gmx rmsf -s villin.pdb -f villin.xtc -oq (GROMACS 2022.5), every eighth atom
    rmsf, b_factor = [1.120, 0.822, 0.391, 0.373, 1.003], [33.01, 17.80, 4.03, 3.67, 26.50]
    trajectory, topology = sample("villin")
    table = plain.run(Rmsf(selection="name CA", reference=str(topology)), trajectory, topology)["rmsf"]
    np.testing.assert_allclose(table["rmsf"][::8], rmsf, rtol=0, atol=6e-4)
    np.testing.assert_allclose(table["bfactor"][::8], b_factor, rtol=0, atol=6e-3)


@pytest.mark.parametrize("weights", ["none", "mass"])
def test_residues_are_the_weighted_mean_square_of_their_atoms(weights):
    atoms = MDAnalysis.Universe(PSF).select_atoms("protein and not name H*")
    analysis = Rmsf(selection="protein and not name H*", weights=weights, reference="first")
    of_atom = plain.run(analysis, DCD, PSF, step=7)["rmsf"]
    of_residue = plain.run(analysis.__class__(**{**analysis.settings(), "by": "residue"}), DCD, PSF, step=7)["rmsf"]
    masses = atoms.masses if weights == "mass" else np.ones(len(atoms))
    expected = [
        np.sqrt(np.average(of_atom["rmsf"][subset] ** 2, weights=masses[subset]))
        for subset in (atoms.resids == resid for resid in range(1, 215))
    ]
    assert list(of_residue) == ["residue", "rmsf", "bfactor", "chain", "resid", "resname"]
    assert of_residue["residue"][:2] + of_residue["residue"][-1:] == ["MET1", "ARG2", "GLY214"]
    np.testing.assert_allclose(of_residue["rmsf"], expected, rtol=1e-9)


def test_bands_are_by_blocks_of_frames():
    """Of 640 frames that know nothing of each other, the band has the width that theory gives, and holds the truth."""
    random = np.random.default_rng(3)
    n, spread = 40, 0.5
    positions = random.normal(0, 10, (n, 3)) + random.normal(0, spread, (640, n, 3))
    universe = MDAnalysis.Universe.empty(n, n_residues=n, atom_resindex=range(n), trajectory=True)
    universe.load_new(positions.astype(np.float32))
    table = himach.run(Rmsf(selection="all", fit="none"), universe, cache="off")["rmsf"]
    truth = spread * np.sqrt(3)
    within = (table["rmsf_low"] <= truth) & (truth <= table["rmsf_high"])
    assert 0.8 < within.mean() <= 1
    # The variance of a mean of chi-squared with 3 degrees of freedom, times sigma squared, is 6 sigma^4 / N.
    half = 1.96 * np.sqrt(6) * spread**2 / np.sqrt(640) / (2 * truth)
    assert np.median(table["rmsf_high"] - table["rmsf_low"]) / 2 == pytest.approx(half, rel=0.4)
    # Limits of squares are not squares of limits, but close where they are narrow.
    np.testing.assert_allclose(table["bfactor_high"], 8 / 3 * np.pi**2 * table["rmsf_high"] ** 2, rtol=0.02)


def test_kept_pairs_serve_while_blocks_of_frames_stay_as_long(tmp_path):
    """So they do for a trajectory that has grown from 65 frames to 70, and not for less than 64."""
    run = partial(himach.run, Rmsf(selection="resid 1:30"), DCD, PSF, cache="off")
    run(pairs=tmp_path, stop=65)
    for stop, kept, why in ((70, 65, ""), (64, 0, "self.level is another after setup()")):
        result = run(pairs=tmp_path, stop=stop)
        assert result.record["reused"] == {"frames": kept, "reason": why}
        for name, cells in run(stop=stop)["rmsf"].items():
            np.testing.assert_array_equal(cells, result["rmsf"][name], err_msg=name)


def test_atoms_that_went_too_far():
    positions = np.zeros((100, 4, 3), np.float32)
    positions[71, 1, 0] = 1024
    universe = MDAnalysis.Universe.empty(4, trajectory=True).load_new(positions)
    with pytest.raises(himach.HimachError, match="in frame 71 an atom is 1024 Å or more from where the first selected"):
        himach.run(Rmsf(selection="all", fit="none"), universe, cache="off")
