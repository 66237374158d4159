"""Area, thickness and flip-flops beside lipyphilic, on its lattices, a coarse-grained and an all-atom membrane."""

import warnings
from pathlib import Path

import lipyphilic
import MDAnalysis
import numpy as np
import pytest
from lipyphilic.analysis.area_per_lipid import AreaPerLipid
from lipyphilic.analysis.memb_thickness import MembThickness
from MDAnalysisTests.datafiles import DCD, PSF, Martini_membrane_gro
from support import plain

import himach
from himach.examples import sample
from himach.examples.membranes.membrane import Membrane

LATTICES = Path(lipyphilic.__file__).parent / "_simple_systems" / "pdbs"


def lattice(name, **parameters):
    path = LATTICES / f"HexGrid-2AtomsPerLipid{name}.pdb"
    return plain.run(Membrane(headgroups="name L C", **parameters), path, path)


def peer(topology, trajectory, selection, stop=None):
    """Return what lipyphilic finds: areas (n_lipids, n_frames), leaflets of the same shape, thickness."""
    universe = MDAnalysis.Universe(topology, trajectory)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        leaflets = lipyphilic.AssignLeaflets(universe, lipid_sel=selection).run(stop=stop).leaflets
        areas = AreaPerLipid(universe, lipid_sel=selection, leaflets=leaflets).run(stop=stop).areas
        thickness = MembThickness(universe, lipid_sel=selection, leaflets=leaflets).run(stop=stop).memb_thickness
    return areas, leaflets, thickness


def check_against_peer(topology, trajectory, selection, stop=None):
    areas, leaflets, thickness = peer(topology, trajectory, selection, stop)
    outcome = plain.run(Membrane(), trajectory, topology, stop=stop)
    for column, side in (("lower", -1), ("upper", 1)):
        expected = np.nanmean(np.where(leaflets == side, areas, np.nan), axis=0)
        np.testing.assert_allclose(outcome["area"][column], expected, rtol=1e-5)  # freud rounds positions to floats
    kinds = MDAnalysis.Universe(topology, trajectory).select_atoms(selection).residues.resnames
    assert set(outcome["area"]) == {"time_ps", "lower", "upper", *kinds}
    for kind in set(kinds):
        np.testing.assert_allclose(outcome["area"][kind], areas[kinds == kind].mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(outcome["thickness"]["thickness"], thickness, atol=1e-4)


def test_against_lipyphilic_all_atom():
    check_against_peer(*reversed(sample("membrane")), "name P", stop=30)


def test_against_lipyphilic_coarse_grained():
    check_against_peer(Martini_membrane_gro, Martini_membrane_gro, "name PO4 ROH")


@pytest.mark.parametrize(
    ("name", "parameters", "thickness"),
    [
        ("", {}, 20),
        ("-SplitAcrossZ", {}, 8),
        ("-Undulating", {"bins": 4}, 20),
        ("-Undulating", {"leaflets": "graph", "cutoff": 12}, 20),
    ],
)
def test_hexagonal_lattice(name, parameters, thickness):
    outcome = lattice(name, **parameters)
    assert outcome["thickness"]["thickness"] == [thickness]
    for column in ("lower", "upper", "LIPI", "CHOL"):
        np.testing.assert_allclose(outcome["area"][column], 200, rtol=1e-10)


@pytest.mark.parametrize(("molecule", "between"), [("Molecule", 1), ("Atom", 0)])
def test_a_sterol_between_the_leaflets(molecule, between):
    """As in lipyphilic, one is between if all its atoms are; here their mean counts, which is at 2.5 Å, not at 0."""
    name = f"-Undulating-Midplane-{molecule}"
    path = LATTICES / f"HexGrid-2AtomsPerLipid{name}.pdb"
    universe = MDAnalysis.Universe(path)
    analysis = Membrane(headgroups="name L C", bins=4, midplane=2)
    analysis.setup(universe)
    placed = analysis.membrane.place(universe.atoms.positions, universe.dimensions)
    names = np.array(universe.residues.resids)[placed.leaflets == 0]
    assert names.tolist() == [78] * between
    assert np.nanmin(lattice(name, bins=4, midplane=2)["area"]["lower"]) >= 200


@pytest.fixture(scope="module")
def moved(tmp_path_factory):
    """The sample, moved so that its membrane lies across the boundary in each direction, and wrapped atom by atom."""
    trajectory, topology = sample("membrane")
    universe = MDAnalysis.Universe(topology, trajectory)
    path = tmp_path_factory.mktemp("moved") / "moved.xtc"
    with MDAnalysis.Writer(str(path), len(universe.atoms)) as writer:
        for _ in universe.trajectory[:20]:
            universe.atoms.translate(universe.dimensions[:3] * [0.3, 0.7, 0.46])
            universe.atoms.wrap(compound="atoms")
            writer.write(universe.atoms)
    return path


@pytest.mark.parametrize("parameters", [{}, {"bins": 2}, {"leaflets": "graph", "cutoff": 14}])
def test_wherever_the_membrane_is_in_the_box(moved, parameters):
    trajectory, topology = sample("membrane")
    expected = plain.run(Membrane(**parameters), trajectory, topology, stop=20)
    outcome = plain.run(Membrane(**parameters), moved, topology)
    for column in ("lower", "upper", "DLPC", "DLPE"):
        np.testing.assert_allclose(outcome["area"][column], expected["area"][column], rtol=0.02)  # XTC rounds to 0.01 Å
    atol = 0.01 if parameters != {"bins": 2} else 2  # patches begin elsewhere
    thickness = expected["thickness"]["thickness"]
    np.testing.assert_allclose(outcome["thickness"]["thickness"], thickness, atol=atol)


@pytest.fixture(scope="module")
def flipping(tmp_path_factory):
    """A membrane of 32 beads across z; one goes from the upper leaflet to the lower one and half way back."""
    folder = tmp_path_factory.mktemp("flipping")
    universe = MDAnalysis.Universe.empty(32, n_residues=32, atom_resindex=range(32), trajectory=True)
    for name, values in {"names": ["PO4"] * 32, "resnames": ["DPPC"] * 31 + ["CHOL"], "resids": range(1, 33)}.items():
        universe.add_TopologyAttr(name, list(values))
    universe.dimensions = [32, 32, 80, 90, 90, 90]
    grid = np.array([(8 * i + 4, 8 * j + 4) for i in range(4) for j in range(4)])
    flat = np.concatenate([np.column_stack([grid, np.full(16, z)]) for z in (20, 50)])
    path = folder / "flipping.xtc"
    with MDAnalysis.Writer(str(path), 32) as writer:
        for frame, z in enumerate([50, 50, 44, 36, 25, 20, 20, 34, 36, 21]):
            universe.atoms.positions = flat
            universe.atoms[31].position = [28, 28.5, z]
            universe.trajectory.ts.time = 100 * frame
            writer.write(universe.atoms)
    universe.atoms.positions = flat
    universe.atoms.write(str(folder / "flipping.gro"))
    return path, folder / "flipping.gro"


def test_flip_flops(flipping):
    outcome = plain.run(Membrane(midplane=5, headgroups="name PO4"), *flipping)
    events = outcome["flip_flops"]
    assert list(events) == ["lipid", "kind", "from", "to", "left_ps", "arrived_ps", "outcome"]
    rows = list(zip(*events.values(), strict=True))
    assert rows == [
        (31, "CHOL", "upper", "lower", 200, 400, "success"),
        (31, "CHOL", "lower", "lower", 600, 900, "fail"),
    ]
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(outcome["area"]["CHOL"])), [3, 7, 8])


def test_the_same_in_any_order(flipping):
    analysis = Membrane(midplane=5, headgroups="name PO4")
    forth = himach.run(analysis, *flipping, cache="off")
    back = himach.run(analysis, *flipping, start=-1, step=-1, cache="off")
    for table in ("area", "thickness", "flip_flops"):
        for column in forth[table]:
            np.testing.assert_array_equal(forth[table][column], back[table][column])


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"headgroups": "name XX"}, "headgroups"),
        ({"headgroups": "resid 1 and name P"}, "selects atoms of one residue"),
        ({"bins": 0}, "bins must be greater than 0"),
        ({"stay": 0}, "stay must be greater than 0"),
        ({"cutoff": -1.0}, "cutoff must be greater than 0"),
        ({"midplane": -1.0}, "midplane must be 0 or more"),
        ({"midplane": 40.0}, "the lower leaflet has no lipid"),
        ({"leaflets": "graph", "cutoff": 60.0}, "finds no two leaflets"),
    ],
)
def test_what_is_refused(parameters, said):
    with pytest.raises(himach.UsageError, match=said):
        plain.run(Membrane(**parameters), *sample("membrane"), stop=1)


def test_without_box():
    with pytest.raises(himach.UsageError, match="no box"):
        plain.run(Membrane(headgroups="name CA"), DCD, PSF, stop=1)
