"""Membranes beside lipyphilic and freud: area, thickness, flip-flops, leaflets, Voronoi cells."""

import warnings
from pathlib import Path

import lipyphilic
import MDAnalysis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lipyphilic._lipyferric import molecule_flip_flop
from lipyphilic.analysis.area_per_lipid import AreaPerLipid
from lipyphilic.analysis.memb_thickness import MembThickness
from MDAnalysis.lib.mdamath import triclinic_vectors
from MDAnalysisTests.datafiles import GRO_MEMPROT, Martini_membrane_gro
from support import plain

import himach
from himach.examples import load, sample
from himach.examples.membranes.flip_flops import find_flip_flops
from himach.examples.membranes.leaflets import assign_patches, center_positions
from himach.examples.membranes.membrane import Membrane
from himach.examples.membranes.voronoi import voronoi_areas

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


@pytest.mark.parametrize(
    ("topology", "trajectory", "selection", "stop"),
    [
        (*reversed(sample("membrane")), "name P", 30),
        (Martini_membrane_gro, Martini_membrane_gro, "name PO4 ROH", None),
    ],
    ids=["all-atom", "coarse-grained"],
)
def test_against_lipyphilic(topology, trajectory, selection, stop):
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


BOXES = [(40, 50, 90, 90, 90, 90), (60, 60, 90, 90, 90, 120), (50, 60, 80, 80, 75, 70)]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(BOXES), st.integers(0, 2**32 - 1), st.tuples(*[st.floats(-2, 2)] * 3), st.integers(1, 5))
def test_a_membrane_is_put_together_wherever_it_is(box, seed, shift, bins):
    random = np.random.default_rng(seed)
    vectors = triclinic_vectors(box).astype(np.float64)
    along = random.uniform(0, 1, (200, 3)) * [1, 1, 0.55]  # in less than the height of the box
    whole = along @ vectors
    wrapped = (((along + shift) % 1) @ vectors).astype(np.float32)
    result = center_positions(wrapped, vectors)
    np.testing.assert_allclose(np.ptp(result[:, 2]), np.ptp(whole[:, 2]), atol=1e-3)
    np.testing.assert_allclose(result[:, 2] - result[0, 2], whole[:, 2] - whole[0, 2], atol=1e-3)
    # What is left of the way are whole periods in the plane.
    left = (result - result[0] - (whole - whole[0])) @ np.linalg.inv(vectors)
    np.testing.assert_allclose(left, np.rint(left), atol=1e-4)
    # Patches are those of parallelograms along the box's vectors.
    expected = np.floor((result @ np.linalg.inv(vectors))[:, :2] % 1 * bins) if box[3:5] == (90, 90) else None
    if expected is not None:
        same = assign_patches(result, vectors, bins) == expected[:, 0] * bins + expected[:, 1]
        assert same.mean() > 0.98  # but for those at an edge


@pytest.mark.parametrize(("normal", "axes"), [("x", [2, 0, 1]), ("y", [1, 2, 0])])
def test_any_axis_is_the_normal(tmp_path, normal, axes):
    universe = MDAnalysis.Universe(*reversed(sample("membrane")))
    with MDAnalysis.Writer(str(tmp_path / "turned.trr"), len(universe.atoms)) as writer:
        for ts in universe.trajectory[:3]:
            ts.positions, ts.dimensions = ts.positions[:, axes], [*ts.dimensions[:3][axes], 90, 90, 90]
            writer.write(universe.atoms)
    for name, tables, parameters in (
        ("membrane", ("area", "thickness"), {"bins": 2}),
        ("lipid-order", ("order", "by_leaflet"), {"leaflets": "z"}),
    ):
        expected = plain.run(load(name)(**parameters), *sample("membrane"), stop=3)
        turned = plain.run(load(name)(normal=normal, **parameters), tmp_path / "turned.trr", universe.filename)
        for table in tables:
            for column, cells in expected[table].items():
                if column != "time_ps" and np.asarray(cells).dtype.kind == "f":
                    np.testing.assert_allclose(turned[table][column], cells, rtol=1e-5, atol=2e-6)  # TRR rounds
    with pytest.raises(himach.UsageError, match="normal=x needs a rectangular box"):
        plain.run(Membrane(headgroups="name L C", normal="x"), *[GRO_MEMPROT] * 2)


def result(states, stay):
    return [(event.left, event.arrived, event.target, event.outcome) for event in find_flip_flops(states, stay)]


@settings(max_examples=400)
@given(st.lists(st.tuples(st.sampled_from([-1, 0, 1]), st.integers(1, 6)), min_size=2, max_size=30), st.integers(1, 6))
def test_as_lipyphilic_does(runs, stay):
    states = np.repeat(*np.array([(1, 1), *runs, (-1, 1)]).T).astype(np.int8)  # one that begins between is another case
    expected = molecule_flip_flop(leaflets=states, frame_cutoff=stay)
    assert result(states, stay) == [(*row, outcome.lower()) for *row, outcome in zip(*expected, strict=True)]


def test_one_that_begins_between_has_not_left_a_leaflet():
    assert result([0, 0, 1, 1, 0, -1], 1) == [(3, 5, -1, "success")]
    assert result([0, 0, 0], 1) == []
    assert result([1, 1, 1], 1) == []


#: Sides and tilt of planes, from one that is square to one that is long and slanted.
PLANES = [(30, 30, 0), (12, 70, 0), (40, 35, 20), (40, 35, -20), (25, 25, 60)]


def random_points(seed, n, plane, spread=3.0):
    a, c, b = plane
    vectors = np.array([[a, 0], [b, c]], dtype=float)
    return np.random.default_rng(seed).uniform(-1, spread - 1, (n, 2)) @ vectors, vectors


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 40),
    st.sampled_from(PLANES),
    st.tuples(st.floats(-300, 300), st.floats(-300, 300)),
    st.sampled_from([3, 1, 0.05]),  # periods over which they are spread: all in a corner, far from their images
)
def test_cells_fill_the_plane_and_move_with_their_points(seed, n, plane, shift, spread):
    points, vectors = random_points(seed, n, plane, spread)
    areas = voronoi_areas(points, vectors)
    assert areas.min() > 0
    assert areas.sum() == pytest.approx(np.linalg.det(vectors), rel=1e-9)
    np.testing.assert_allclose(voronoi_areas(points + shift, vectors), areas, rtol=1e-6)
    order = np.random.default_rng(seed).permutation(n)
    np.testing.assert_allclose(voronoi_areas(points[order], vectors), areas[order], rtol=1e-9)


def test_one_point_and_points_at_one_place():
    vectors = [[20, 0], [5, 10]]
    np.testing.assert_allclose(voronoi_areas([[3, 4]], vectors), [200])
    np.testing.assert_allclose(voronoi_areas([[3, 4], [3, 4]], vectors), [100, 100])
    np.testing.assert_allclose(voronoi_areas([[0, 0], [10, 5]], [[20, 0], [0, 10]]), [100, 100])
