"""rmsd and radius-of-gyration beside MDAnalysis."""

import MDAnalysis
import numpy as np
import pytest
from MDAnalysis.analysis import rms
from MDAnalysisTests.datafiles import CRD, DCD, GRO, PSF, XTC
from spyrmsd.rmsd import symmrmsd
from support import plain

import himach
from himach.examples import sample
from himach.examples.structure.radius_of_gyration import RadiusOfGyration
from himach.examples.structure.rmsd import Rmsd


@pytest.mark.parametrize(
    ("topology", "trajectory", "selection", "start", "step"),
    [(PSF, DCD, "protein and backbone", 0, 1), (PSF, DCD, "name CA", 10, 3), (GRO, XTC, "protein", 0, 1)],
    ids=["from the first", "from the tenth by three", "in water"],
)
def test_against_mdanalysis(topology, trajectory, selection, start, step):
    universe = MDAnalysis.Universe(topology, trajectory)
    universe.trajectory[start]
    reference = MDAnalysis.Merge(universe.select_atoms(selection)).load_new(universe.select_atoms(selection).positions)
    expected = rms.RMSD(universe.select_atoms(selection), reference.atoms).run(start=start, step=step).results.rmsd
    table = plain.run(Rmsd(selection=selection), trajectory, topology, start=start, step=step)["rmsd"]
    np.testing.assert_allclose(table["rmsd"], expected[:, 2], atol=1e-4)
    np.testing.assert_allclose(table["time_ps"], expected[:, 1])


@pytest.mark.parametrize("weights", ["none", "mass"])
def test_groups_and_fit_against_mdanalysis(weights):
    """What is compared need not be fitted, in another frame than the first."""
    groups = ["name CA and resid 30:59", "resid 122:159"]
    universe = MDAnalysis.Universe(PSF, DCD)
    peer = rms.RMSD(
        universe, select="backbone and not resid 30:59 122:159", groupselections=["protein and not name H*", *groups],
        weights=None if weights == "none" else weights, ref_frame=20,
    )  # fmt: skip
    expected = peer.run(step=7).results.rmsd
    analysis = Rmsd(
        selection="protein and not name H*", fit="backbone and not resid 30:59 122:159",
        groups=[f"nmp = {groups[0]}", groups[1]], weights=weights, reference=20,
    )  # fmt: skip
    table = himach.run(analysis, DCD, PSF, step=7, cache="off")["rmsd"]
    _, *names = table
    assert names == ["rmsd", "nmp", groups[1]]
    np.testing.assert_allclose(np.array([table[name] for name in names]).T, expected[:, 3:], atol=1e-5)


@pytest.mark.parametrize("fit", ["selection", "none", "name CA"])
def test_symmetric_atoms_may_stand_for_one_another(tmp_path, fit):
    """Side chains whose rings turn by half, beside spyrmsd; a phenylalanine, and two tyrosines."""
    universe = MDAnalysis.Universe(PSF, DCD)
    rings = universe.select_atoms("resname PHE TYR and name CD1 CE1 CD2 CE2")
    turned = rings.residues.atoms.select_atoms("name CD2 CE2"), rings.residues.atoms.select_atoms("name CD1 CE1")
    with MDAnalysis.Writer(str(tmp_path / "turned.dcd"), len(universe.atoms)) as writer:
        for ts in universe.trajectory[:6]:
            if ts.frame % 2:
                first, second = (atoms.positions for atoms in turned)
                turned[0].positions, turned[1].positions = second, first
            writer.write(universe.atoms)
    selection = "resid 19 24 and not name H*"  # a phenylalanine and a tyrosine
    parameters = {"selection": selection, "fit": fit, "symmetric": True}
    table = plain.run(Rmsd(**parameters), tmp_path / "turned.dcd", PSF)["rmsd"]
    straight = plain.run(Rmsd(**parameters), DCD, PSF, stop=6)["rmsd"]
    np.testing.assert_allclose(table["rmsd"], straight["rmsd"], atol=1e-5)
    if fit == "name CA":
        return
    atoms = MDAnalysis.Universe(PSF, tmp_path / "turned.dcd").select_atoms(selection)
    numbers = np.unique(atoms.elements if hasattr(atoms, "elements") else atoms.types, return_inverse=True)[1]
    index = {atom: row for row, atom in enumerate(atoms.indices)}
    adjacency = np.zeros((len(atoms), len(atoms)), int)
    for a, b in atoms.universe.bonds.indices:
        if a in index and b in index:
            adjacency[index[a], index[b]] = adjacency[index[b], index[a]] = 1
    places = [atoms.positions.astype(float) for _ in atoms.universe.trajectory]
    fitted = {"center": fit == "selection", "minimize": fit == "selection"}
    expected = symmrmsd(places[0], places, numbers, numbers, adjacency, adjacency, **fitted)
    np.testing.assert_allclose(table["rmsd"], expected, atol=1e-4)


@pytest.mark.parametrize("weights", ["none", "mass"])
def test_without_moving(weights):
    universe = MDAnalysis.Universe(PSF, DCD)
    atoms = universe.select_atoms("backbone")
    first = atoms.positions
    each = atoms.masses if weights == "mass" else None
    expected = [rms.rmsd(atoms.positions, first, each) for _ in universe.trajectory[::9]]
    table = plain.run(Rmsd(selection="backbone", fit="none", weights=weights), DCD, PSF, step=9)["rmsd"]
    np.testing.assert_allclose(table["rmsd"], expected, rtol=1e-6)
    assert table["rmsd"][0] == 0


@pytest.mark.parametrize("fit", ["selection", "backbone"])
def test_reference_of_a_file(fit):
    """It may have other atoms beside those that are compared, and another order of files than the trajectory's."""
    universe, file = MDAnalysis.Universe(PSF, DCD), MDAnalysis.Universe(PSF, CRD)
    select = "name CA" if fit == "selection" else fit
    peer = rms.RMSD(universe, file, select=select, groupselections=["name CA"])
    expected = peer.run(step=20).results.rmsd[:, 3]
    table = plain.run(Rmsd(selection="name CA", fit=fit, reference=str(CRD)), DCD, PSF, step=20)["rmsd"]
    np.testing.assert_allclose(table["rmsd"], expected, rtol=1e-5)


def test_reference_by_the_command_line():
    parameter = Rmsd.parameters()["reference"]
    assert (parameter.parse("49"), parameter.parse("-1"), parameter.parse("a.pdb")) == (49, -1, "a.pdb")
    last = himach.run(Rmsd(selection="name CA", reference=-1), DCD, PSF, start=49, step=48, cache="off")["rmsd"]
    again = himach.run(Rmsd(selection="name CA", reference=97), DCD, PSF, start=49, step=48, cache="off")["rmsd"]
    assert last["rmsd"].tolist() == again["rmsd"].tolist()
    assert last["rmsd"][1] < 1e-5 < last["rmsd"][0]
    with pytest.raises(himach.UsageError, match="there is no frame 98, the trajectory has 98"):
        himach.run(Rmsd(reference=98), DCD, PSF, cache="off")


def test_masses_are_needed_for_weights():
    with pytest.raises(himach.UsageError, match="weights"):
        Rmsd(weights="charge")
    universe = MDAnalysis.Universe(PSF, DCD)
    universe.del_TopologyAttr("masses")
    with pytest.raises(himach.UsageError, match="rmsd: the topology has no masses of the selected atoms"):
        himach.run(Rmsd(weights="mass"), universe, cache="off")
    with pytest.raises(himach.UsageError, match="radius-of-gyration: the topology has no masses"):
        himach.run(RadiusOfGyration(), universe, cache="off")


@pytest.mark.parametrize(
    ("topology", "trajectory", "selection"),
    [(PSF, DCD, "protein"), (PSF, DCD, "name CA"), (GRO, XTC, "protein"), (*reversed(sample("villin")), "protein")],
    ids=["AdK", "CA", "in water", "villin"],
)
def test_against_mdanalysis_of_radius_of_gyration(topology, trajectory, selection):
    """Its asphericity is what Theodorou and Suter call relative shape anisotropy."""
    atoms = MDAnalysis.Universe(topology, trajectory).select_atoms(selection)
    subset = slice(None, None, max(1, atoms.universe.trajectory.n_frames // 10))
    expected = [(atoms.radius_of_gyration(), atoms.asphericity()) for _ in atoms.universe.trajectory[subset]]
    table = plain.run(RadiusOfGyration(selection=selection), trajectory, topology, step=subset.step)["rg"]
    np.testing.assert_allclose(np.array([table["rg"], table["anisotropy"]]).T, expected, rtol=1e-9)


def line(n):
    return np.array([[x, 0, 0] for x in range(n)])


SHAPES = {
    # Of n atoms in a row, one apart, the squared radius is (n^2 - 1) / 12.
    "rod": (line(11), [np.sqrt(10), 10, 0, 1]),
    "square": (np.array([[1, 1, 0], [1, -1, 0], [-1, 1, 0], [-1, -1, 0]]), [np.sqrt(2), 0.5, 1, 0.25]),
    "cube": (np.array([[x, y, z] for x in (0, 2) for y in (0, 2) for z in (0, 2)]), [np.sqrt(3), 0, 0, 0]),
    "point": (np.zeros((3, 3)), [0, 0, 0, 0]),
}


@pytest.mark.parametrize(("positions", "expected"), SHAPES.values(), ids=SHAPES)
def test_shapes_that_are_known(positions, expected):
    universe = MDAnalysis.Universe.empty(len(positions), trajectory=True)
    universe.atoms.positions = positions
    table = himach.run(RadiusOfGyration(selection="all", weights="none"), universe, cache="off")["rg"]
    shape = [table[column][0] for column in ("rg", "asphericity", "acylindricity", "anisotropy")]
    np.testing.assert_allclose(shape, expected, atol=1e-12)
