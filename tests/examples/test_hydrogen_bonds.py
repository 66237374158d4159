import MDAnalysis
import numpy as np
import pytest
from MDAnalysis.analysis.hydrogenbonds import HydrogenBondAnalysis
from MDAnalysisTests.datafiles import DCD, GRO, PSF, XTC
from support import plain

import himach
from himach.examples import sample
from himach.examples.hydrogen_bonds import HydrogenBonds
from himach.examples.water_residence import WaterResidence

PROTEIN = {
    "donors": "protein and name N* O*",
    "hydrogens": "protein and name H* 1H* 2H* 3H*",
    "acceptors": "protein and name N* O*",
}
BONDED = {"donors": None, "hydrogens": "name HN HT* HE* HH* HZ*", "acceptors": "name O*"}
WATER = {"donors": "name O", "hydrogens": "name H1 H2", "acceptors": "name O CL"}


@pytest.mark.parametrize("intermittency", [0, 2])
@pytest.mark.parametrize(
    ("topology", "trajectory", "selections", "n_frames"),
    [
        (GRO, XTC, PROTEIN, 10),
        (*reversed(sample("villin")), PROTEIN, 100),
        (PSF, DCD, BONDED, 30),
        (*reversed(sample("nanopore")), WATER, 12),
    ],
    ids=["adk in water", "villin", "adk by bonds", "water"],
)
def test_against_mdanalysis(topology, trajectory, selections, n_frames, intermittency):
    universe = MDAnalysis.Universe(topology, trajectory)
    keywords = {f"{role}_sel": selection for role, selection in selections.items()}
    expected = HydrogenBondAnalysis(universe, d_a_cutoff=3.2, d_h_a_angle_cutoff=140, **keywords).run(stop=n_frames)
    analysis = HydrogenBonds(distance=3.2, angle=140, tau_max=8, intermittency=intermittency, **selections)
    outcome = plain.run(analysis, trajectory, topology, stop=n_frames)
    np.testing.assert_array_equal(outcome["counts"]["bonds"], expected.count_by_time())
    np.testing.assert_allclose(outcome["counts"]["time_ps"], expected.times)
    tau, survival = expected.lifetime(tau_max=8, intermittency=intermittency)
    np.testing.assert_allclose(outcome["lifetime"]["survival"], survival, rtol=1e-12)
    np.testing.assert_allclose(outcome["lifetime"]["tau_ps"], tau * universe.trajectory.dt, rtol=1e-5)
    if not intermittency:
        bonds = np.unique(expected.results.hbonds[:, [0, 1, 3]].astype(int), axis=0)  # frame, donor, acceptor
        pairs, counts = np.unique(bonds[:, 1:], axis=0, return_counts=True)
        found = outcome["occupancy"]
        np.testing.assert_array_equal(np.column_stack([found["donor"], found["acceptor"]]), pairs)
        np.testing.assert_allclose(found["occupancy"], counts / n_frames, rtol=1e-12)


def test_no_bonds_at_all():
    outcome = plain.run(HydrogenBonds(distance=1.1, tau_max=2), *sample("villin"), stop=4)
    assert outcome["counts"]["bonds"].tolist() == [0, 0, 0, 0]
    np.testing.assert_array_equal(outcome["lifetime"]["survival"], [np.nan] * 3)
    assert outcome["occupancy"].rows == 0
    assert outcome["residence"]["stays"].tolist() == [0]
    result = himach.run(HydrogenBonds(distance=1.1, tau_max=2), *sample("villin"), stop=4, cache="off", progress=False)
    assert np.isnan(result["residence"]["mean_ps_low"][0])


def test_topology_without_bonds():
    with pytest.raises(himach.UsageError, match="donors"):
        plain.run(HydrogenBonds(donors=None), XTC, GRO)


def test_hydrogens_without_bonds_are_left_out(tmp_path):
    universe = MDAnalysis.Universe(*reversed(sample("nanopore")))
    water = universe.select_atoms("resname HOH").residues[:50].atoms
    bonds = [(o.index, h.index) for o, *hs in (r.atoms for r in water.residues) for h in hs]
    atoms = MDAnalysis.Merge(water)
    atoms.dimensions = universe.dimensions
    local = {index: i for i, index in enumerate(water.indices)}
    atoms.add_TopologyAttr("bonds", [(local[o], local[h]) for o, h in bonds[:30]])
    analysis = HydrogenBonds(**{**WATER, "donors": None})
    donors, hydrogens = analysis.pair_donors(atoms)
    assert sorted(zip(donors.tolist(), hydrogens.tolist(), strict=True)) == sorted(
        (local[o], local[h]) for o, h in bonds[:30]
    )
    atoms.delete_bonds(atoms.bonds)
    with pytest.raises(himach.UsageError, match=r"none of the 100 hydrogens .* has a bond.*donors=\.\.\."):
        analysis.pair_donors(atoms)


@pytest.mark.parametrize("made", [WaterResidence(intermittency=-1, solute="name K"), HydrogenBonds(intermittency=-1)])
def test_intermittency_must_not_be_negative(made):
    with pytest.raises(himach.UsageError, match="intermittency must be 0 or more, not -1"):
        plain.run(made, *sample("nanopore" if isinstance(made, WaterResidence) else "villin"))


def test_hydrogens_without_donor():
    with pytest.raises(himach.UsageError, match="no hydrogen of 'name H1 H2' is within"):
        plain.run(HydrogenBonds(**{**WATER, "donors": "name K"}), *sample("nanopore"))


@pytest.mark.parametrize("parameter", ["donors", "hydrogens", "acceptors"])
def test_empty_selections(parameter):
    with pytest.raises(himach.UsageError, match=f"parameter {parameter}"):
        plain.run(HydrogenBonds(**{**WATER, parameter: "name XYZ"}), *sample("nanopore"))
