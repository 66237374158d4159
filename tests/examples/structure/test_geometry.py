import warnings

import MDAnalysis
import mdtraj
import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, GRO, PSF, XTC
from support import plain

import himach
from himach.examples import sample
from himach.examples.structure.geometry import TORSIONS, Geometry, torsion_atoms

#: What GROMACS 2022 prints of AdK in water, in nm and degrees: `gmx distance`, `gangle` and `pairdist`, -rmpbc no.
#: -select 'resnr 1 30 and name CA'
PAIR = [1.627, 1.651, 1.672, 1.632, 1.677, 1.625, 1.654, 1.580, 1.626, 1.617]
#: -select 'cog of resnr 1 to 10 plus cog of resnr 100 to 120'
CENTRES = [0.853, 0.855, 0.856, 0.839, 0.853, 0.860, 0.824, 0.816, 0.840, 0.852]
#: -g1 angle -group1 'resnr 1 30 60 and name CA'
ANGLE = [119.371, 121.737, 108.618, 114.158, 113.188, 111.488, 111.552, 111.795, 112.612, 116.548]
#: -g1 dihedral -group1 'resnr 1 30 60 90 and name CA'
DIHEDRAL = [48.296, 44.201, 51.742, 49.734, 43.949, 53.335, 53.086, 50.654, 49.703, 47.558]
#: -g1 dihedral -group1 '(resnr 9 and name C) or (resnr 10 and name N CA C)'
PHI = [117.423, 125.208, 119.929, 109.526, 111.575, 112.061, 101.603, 117.439, 116.745, 109.984]
#: pairdist -ref 'resnr 30 to 40' -sel 'resnr 150 to 160'
MINIMUM = [1.401, 1.376, 1.516, 1.757, 1.659, 1.490, 1.516, 1.533, 1.477, 1.559]


def test_against_gromacs():
    analysis = Geometry(
        distances=["pair=protein and resid 1 30 and name CA", "protein and resid 1:10; protein and resid 100:120"],
        angles=["angle=protein and resid 1 30 60 and name CA"],
        dihedrals=["dihedral=protein and resid 1 30 60 90 and name CA", "phi:protein and resid 10"],
        minimum=["least=protein and resid 30:40; protein and resid 150:160"],
    )
    table = plain.run(analysis, XTC, GRO)["geometry"]
    _, *names = table
    assert names == [
        "pair", "protein and resid 1:10; protein and resid 100:120", "angle", "dihedral", "phi GLY10", "least"
    ]  # fmt: skip
    expected = [10 * np.array(PAIR), 10 * np.array(CENTRES), ANGLE, DIHEDRAL, PHI, 10 * np.array(MINIMUM)]
    for name, values in zip(names, expected, strict=True):
        np.testing.assert_allclose(table[name], values, atol=0.0051 if table.units[name] == "Å" else 0.00051 + 1e-3)
    np.testing.assert_allclose(table["time_ps"], 100 * np.arange(10), rtol=1e-6)


def columns_of(table, word):
    return np.array([table[name] for name in table if name.startswith(f"{word} ")]).T


@pytest.mark.parametrize(("trajectory", "topology"), [(DCD, PSF), sample("villin")], ids=["AdK", "villin"])
@pytest.mark.parametrize("torsion", [*TORSIONS][:7])  # MDTraj's chi5 has another end
def test_torsions_of_mdtraj(torsion, trajectory, topology):
    universe = MDAnalysis.Universe(topology, trajectory)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        protein = universe.select_atoms("protein")
        loaded = mdtraj.load(str(trajectory), top=str(topology), atom_indices=protein.indices)[:20]
        quadruples, expected = getattr(mdtraj, f"compute_{torsion}")(loaded)
    computed, _ = torsion_atoms(protein.residues, torsion)
    pairs = {tuple(four): i for i, four in enumerate(quadruples.tolist())}
    # CHARMM's CD of isoleucine is CD1 in MDTraj's tables, and in none of them in a PSF.
    missing = [four for four in computed.tolist() if tuple(four) not in pairs]
    names = {(universe.atoms[four[3]].resname, universe.atoms[four[3]].name) for four in missing}
    assert names <= {("ILE", "CD")}
    assert len(computed) - len(missing) == len(pairs) > 2
    table = plain.run(Geometry(dihedrals=[f"{torsion}:protein"]), trajectory, topology, stop=20)["geometry"]
    subset = [i for i, four in enumerate(computed.tolist()) if tuple(four) in pairs]
    order = [pairs[tuple(computed[i].tolist())] for i in subset]
    difference = columns_of(table, torsion)[:, subset] - np.degrees(expected[:, order])
    assert np.abs((difference + 180) % 360 - 180).max() < 0.02  # MDTraj's nm are 32-bit numbers


def test_of_dihedrals_there_is_no_mean():
    analysis = Geometry(distances=["d=index 1 2"], angles=["a=index 1 2 3"], dihedrals=["h=index 1 2 3 4"])
    result = himach.run(analysis, *sample("villin"), stop=100, cache="off")
    assert result["geometry"].units == {"time_ps": "ps", "d": "Å", "a": "°", "h": "°"}
    assert set(result["geometry"].means) == {"d", "a"}


def test_torsions_have_names():
    table = plain.run(
        Geometry(dihedrals=["phi:resid 1:3", "turn=psi: resid 1:2", "chi5:all"]), *sample("villin"), stop=1
    )
    assert list(table["geometry"]) == [
        "time_ps", "phi SER2", "phi ASP3", "turn LEU1", "turn SER2", "chi5 ARG14"
    ]  # fmt: skip


def test_residues_that_follow_one_another():
    """Not those with a gap in their numbers, nor the last of one segment and the first of the next."""
    universe = MDAnalysis.Universe.empty(
        15, 5, atom_resindex=np.repeat(range(5), 3), residue_segindex=[0, 0, 0, 1, 1], n_segments=2
    )
    universe.add_TopologyAttr("names", ["N", "CA", "C"] * 5)
    universe.add_TopologyAttr("resids", [1, 2, 4, 5, 6])
    for torsion, expected in (("phi", [1, 4]), ("psi", [0, 3]), ("omega", [0, 3])):
        atoms, residues = torsion_atoms(universe.residues, torsion)
        assert residues.ix.tolist() == expected
        assert atoms.shape == (2, 4)
    atoms, _ = torsion_atoms(universe.residues, "phi")
    assert atoms.tolist() == [[2, 3, 4, 5], [11, 12, 13, 14]]
