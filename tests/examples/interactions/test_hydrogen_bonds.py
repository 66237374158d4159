import MDAnalysis
import numpy as np
import pytest
from MDAnalysis.analysis.hydrogenbonds import HydrogenBondAnalysis, WaterBridgeAnalysis
from MDAnalysisTests.datafiles import DCD, GRO, PSF, XTC
from support import plain

import himach
from himach.examples import sample
from himach.examples.interactions.hydrogen_bonds import HydrogenBonds

PROTEIN = {
    "donors": "protein and name N* O*",
    "hydrogens": "protein and name H* 1H* 2H* 3H*",
    "acceptors": "protein and name N* O*",
}
BONDED = {"donors": None, "hydrogens": "name HN HT* HE* HH* HZ*", "acceptors": "name O*"}
WATER = {"donors": "name O", "hydrogens": "name H1 H2", "acceptors": "name O CL"}


def bonds_of_mdanalysis(universe, selections, n_frames):
    keywords = {f"{role}_sel": selection for role, selection in selections.items()}
    return HydrogenBondAnalysis(universe, d_a_cutoff=3.2, d_h_a_angle_cutoff=140, **keywords).run(stop=n_frames)


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
    expected = bonds_of_mdanalysis(universe, selections, n_frames)
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
        computed = outcome["occupancy"]
        np.testing.assert_array_equal(np.column_stack([computed["donor"], computed["acceptor"]]), pairs)
        np.testing.assert_allclose(computed["occupancy"], counts / n_frames, rtol=1e-12)
        frames_of = {}
        for frame, *pair in bonds.tolist():
            frames_of.setdefault(tuple(universe.atoms[pair].resindices), set()).add(frame)
        name = [f"{residue.resname}{residue.resid}" for residue in universe.residues]
        analysis = HydrogenBonds(distance=3.2, angle=140, by="residue", **selections)
        table = plain.run(analysis, trajectory, topology, stop=n_frames)["occupancy"]
        pairs = sorted(frames_of)
        sides = [[label.rpartition(":")[2] for label in table[side]] for side in ("donor", "acceptor")]
        assert list(zip(*sides, strict=True)) == [(name[donor], name[acceptor]) for donor, acceptor in pairs]
        np.testing.assert_allclose(table["occupancy"], [len(frames_of[pair]) / n_frames for pair in pairs])


def test_no_bonds_at_all():
    outcome = plain.run(HydrogenBonds(distance=1.1, tau_max=2), *sample("villin"), stop=4)
    assert outcome["counts"]["bonds"].tolist() == [0, 0, 0, 0]
    np.testing.assert_array_equal(outcome["lifetime"]["survival"], [np.nan] * 3)
    assert outcome["occupancy"].rows == 0
    assert outcome["residence"]["stays"].tolist() == [0]
    result = himach.run(HydrogenBonds(distance=1.1, tau_max=2), *sample("villin"), stop=4, cache="off")
    assert np.isnan(result["residence"]["mean_ps_low"][0])


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
    atoms.add_bonds([(h - 1, h) for _, h in zip(range(15), hydrogens[1::2], strict=False)])  # rigid: of two hydrogens
    assert [each.tolist() for each in analysis.pair_donors(atoms)] == [donors.tolist(), hydrogens.tolist()]
    atoms.delete_bonds(atoms.bonds)
    atoms.add_bonds([(1, 2)])
    with pytest.raises(himach.UsageError, match=r"none of the 100 hydrogens .* has a bond.*donors=\.\.\."):
        analysis.pair_donors(atoms)


def bridges_of_mdanalysis(universe):
    """Return the frames in which two atoms of a protein are joined by a water, by pairs of their indices."""
    names = sorted({*universe.select_atoms("protein and name N* O*").names, "OW"})
    selections = "protein", "protein and all"  # of two that are one text it takes donors of the first alone
    computed = WaterBridgeAnalysis(
        universe, *selections, "resname SOL", order=1, forcefield="other", donors=names, acceptors=names,
        distance_type="heavy", distance=3.2, angle=140, pbc=True,
    ).run()  # fmt: skip
    frames_of = {}
    for frame, network in enumerate(computed.results.network):
        for first, following in network.items():
            for second in following or ():  # a heavy atom stands second or last, if its hydrogen is bonded
                a = first[0] if first[1] is None else first[1]
                b = second[2] if second[3] is None else second[3]
                if a != b:
                    frames_of.setdefault((min(a, b), max(a, b)), set()).add(frame)
    return frames_of


def test_bridges_against_mdanalysis(tmp_path):
    whole = MDAnalysis.Universe(GRO, XTC)
    part = whole.select_atoms("(protein and resid 1:60) or byres (resname SOL and around 4 (protein and resid 1:60))")
    trajectory, topology, n_frames = tmp_path / "part.xtc", tmp_path / "part.gro", 3
    part.write(str(topology))
    with MDAnalysis.Writer(str(trajectory), len(part)) as writer:
        for _ in whole.trajectory[:n_frames]:
            writer.write(part)
    universe = MDAnalysis.Universe(topology, trajectory)
    expected = bridges_of_mdanalysis(universe)
    limits = {"distance": 3.2, "angle": 140, "tau_max": 1, "bridges": 1}
    computed = plain.run(HydrogenBonds(**limits), trajectory, topology)["bridges"]
    assert len(expected) > 10
    assert list(zip(computed["a"], computed["b"], strict=True)) == sorted(expected)
    np.testing.assert_allclose(computed["occupancy"], [len(expected[pair]) / n_frames for pair in sorted(expected)])
    of_residues = {}
    for pair, frames in expected.items():
        a, b = (universe.atoms[index].resindex for index in pair)
        if a != b:
            of_residues.setdefault((min(a, b), max(a, b)), set()).update(frames)
    name = [f"{residue.resname}{residue.resid}" for residue in universe.residues]
    computed = plain.run(HydrogenBonds(by="residue", **limits), trajectory, topology)["bridges"]
    pairs = sorted(of_residues)
    assert list(zip(computed["a"], computed["b"], strict=True)) == [(name[a], name[b]) for a, b in pairs]
    np.testing.assert_allclose(computed["occupancy"], [len(of_residues[pair]) / n_frames for pair in pairs])


def test_water_is_asked_for_only_for_bridges():
    universe = MDAnalysis.Universe(GRO, XTC)
    for bridges in (0, 1):
        analysis = HydrogenBonds(bridges=bridges, tau_max=1)
        analysis.frames, analysis.dt = range(2), 100.0
        analysis.setup(universe)
        requested = np.concatenate([atoms.indices for atoms in analysis.atoms(universe)])
        assert np.isin(universe.select_atoms("resname SOL and not name MW").indices, requested).all() == bool(bridges)
        assert len(requested) < 3341 or bridges
