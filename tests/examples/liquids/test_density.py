import functools

import gridData
import MDAnalysis
import numpy as np
import pytest
from MDAnalysis.analysis.density import DensityAnalysis
from MDAnalysisTests.datafiles import DCD, GRO, PSF, TPR, XTC
from support import plain

import himach
from himach.examples import sample
from himach.examples.charges import get_atomic_numbers
from himach.examples.common import box_vectors
from himach.examples.liquids.density import Density

# The first rows, per nm³ and in kg/m³, of: echo 0 | gmx density -s TPR -f XTC -d Z -sl 50 -dens number -e 0
GMX = {
    "number": [138.985, 128.772, 126.701, 131.946],
    "mass": [1043.89, 947.821, 957.898, 986.121],
    "charge": [-2.33528, -0.507909, 1.4354, 1.21733],
}


def profile(trajectory, topology, frames=None, **parameters):
    return plain.run(Density(**parameters), trajectory, topology, **(frames or {}))["profile"]


@pytest.mark.parametrize("weights", GMX)
def test_against_gromacs(weights):
    table = profile(XTC, TPR, {"stop": 1}, selection="all", weights=weights, bins=50)
    np.testing.assert_allclose(1000 * table["density"][:4], GMX[weights], rtol=6e-6)
    np.testing.assert_allclose(table["position"][:2], [0.565806, 1.69742], rtol=6e-6)


@pytest.mark.parametrize(
    ("selection", "delta", "mean"), [("name OW", 2.0, 0.016764271713091212), ("name CA", 1.3, None)]
)
def test_against_mdanalysis_in_space(selection, delta, mean, tmp_path):
    universe = MDAnalysis.Universe(TPR, XTC)
    expected = DensityAnalysis(universe.select_atoms(selection), delta=delta).run().results.density
    outcome = plain.run(Density(selection=selection, grid=delta), XTC, TPR)
    np.testing.assert_allclose(outcome["grid"], expected.grid, rtol=1e-12)
    if mean:
        assert outcome["grid"].mean() == pytest.approx(mean, rel=1e-12)
    (tmp_path / "density.dx").write_text(outcome["volume"].text)
    read = gridData.Grid(str(tmp_path / "density.dx"))
    np.testing.assert_allclose(read.grid, outcome["grid"], rtol=1e-6)
    np.testing.assert_allclose(read.origin, expected.origin, atol=1e-6)
    np.testing.assert_allclose(read.delta, delta)
    np.testing.assert_allclose(outcome["extent"]["from"], [edges[0] for edges in expected.edges])


def test_electrons_and_charges():
    trajectory, topology = sample("nanopore")
    water = {"selection": "resname HOH", "bins": 10, "charges": ["name O = -0.834", "name H1 H2 = 0.417"]}
    run = functools.partial(profile, trajectory, topology, {"stop": 5})
    volume, n = 30 * 30 * 46, 966
    assert np.sum(run(**water, weights="charge")["density"]) == pytest.approx(0, abs=1e-15)
    assert np.sum(run(**water, weights="electron")["density"]) / 10 == pytest.approx(10 * n / volume)
    assert np.sum(run(selection="name K", weights="electron")["density"]) / 100 == pytest.approx(19 * 22 / volume)
    plus = run(selection="name K", weights="electron", charges=["name K = 1"])
    assert np.sum(plus["density"]) / 100 == pytest.approx(18 * 22 / volume)


def test_atomic_numbers_by_elements_or_masses():
    with_sites = MDAnalysis.Universe(TPR)
    names, numbers = with_sites.atoms.names, get_atomic_numbers(with_sites.atoms, Density())
    assert set(numbers[names == "OW"]) == {8}
    assert set(numbers[names == "MW"]) == {0}
    by_mass = get_atomic_numbers(MDAnalysis.Universe(PSF).atoms, Density())
    np.testing.assert_array_equal(np.bincount(by_mass), np.bincount(numbers[: len(by_mass)]))  # in another order


def made(universe_of, tmp_path, positions, box):
    """Write positions (m, n, 3) with boxes (m, 6) as a trajectory and its topology."""
    universe = universe_of.empty(positions.shape[1], trajectory=True)
    with MDAnalysis.Writer(str(tmp_path / "made.trr"), positions.shape[1]) as writer:
        for at, cell in zip(positions, box, strict=True):
            universe.atoms.positions = at
            universe.trajectory.ts.dimensions = cell
            writer.write(universe.atoms)
    universe.add_TopologyAttr("names", ["C"] * positions.shape[1])
    universe.atoms.write(str(tmp_path / "made.gro"))
    return tmp_path / "made.trr", tmp_path / "made.gro"


@pytest.mark.parametrize("axis", ["x", "y", "z"])
@pytest.mark.parametrize("angles", [(90, 90, 90), (75, 80, 65)])
def test_layers_of_each_frame_around_a_centre(axis, angles, tmp_path):
    """Atoms at given fractions of the box from a pair of atoms that goes through the boundary."""
    rng = np.random.default_rng(4)
    m, n, along = 30, 40, "xyz".index(axis)
    boxes = np.column_stack([rng.uniform(28, 32, (m, 3)), np.broadcast_to(angles, (m, 3))])
    around = np.concatenate([[[-0.01] * 3, [0.01] * 3], (rng.integers(0, 10, (n, 3)) + 0.5) / 10])
    where = rng.uniform(0, 1, (m, 1, 3))
    fractions = (around + where) % 1
    vectors = box_vectors(boxes)
    trajectory, topology = made(MDAnalysis.Universe, tmp_path, fractions @ vectors, boxes)
    parameters = {"selection": f"index 2:{n + 1}", "center": "index 0 1", "axis": axis, "bins": 10}
    table = profile(trajectory, topology, **parameters)
    volumes = np.linalg.det(vectors)
    expected = np.roll(np.bincount((10 * around[2:, along]).astype(int), minlength=10), 5) * 10 * m / volumes.sum()
    np.testing.assert_allclose(table["density"], expected, rtol=1e-5)
    heights = volumes / np.linalg.norm(np.cross(vectors[:, along - 2], vectors[:, along - 1]), axis=1)
    np.testing.assert_allclose(table["position"], (np.arange(10) - 4.5) / 10 * heights.mean(), rtol=1e-5)


def test_a_grid_around_a_centre(tmp_path):
    """Atoms around one that goes everywhere, in a box that stays: always in the same voxels."""
    rng = np.random.default_rng(5)
    box = np.array([20, 25, 30, 90, 90, 90.0])
    around = np.concatenate([np.zeros((1, 3)), rng.uniform(-9, 9, (50, 3))])
    positions = (around + rng.uniform(0, 30, (20, 1, 3))) % box[:3]
    trajectory, topology = made(MDAnalysis.Universe, tmp_path, positions, [box] * 20)
    outcome = plain.run(Density(selection="index 1:50", center="index 0", grid=0.7), trajectory, topology)
    edges = [
        low + 0.7 * np.arange(n + 1) for low, n in zip(*map(outcome["extent"].get, ("from", "voxels")), strict=True)
    ]
    expected, _ = np.histogramdd(around[1:], edges)
    assert np.abs(outcome["grid"] * 0.7**3 - expected).sum() < 0.05 * 50  # some lie at edges, and float32 is not exact
    assert outcome["grid"].sum() * 0.7**3 == pytest.approx(50)


def test_rare_atoms_have_limits_of_counts():
    result = himach.run(Density(selection="name K", bins=500), *sample("nanopore"), cache="off")
    table = result["profile"]
    observed = np.rint(table["density"] * 150 * 30 * 30 * 46 / 500)
    assert observed.sum() == 22 * 150
    assert (table["density_low"][observed == 0] == 0).all() and (table["density_high"][observed == 0] > 0).all()
    assert (table["density_low"] <= table["density"]).all() and (table["density"] <= table["density_high"]).all()
    assert {name: table.units[name] for name in ("position", "density")} == {"position": "Å", "density": "Å⁻³"}


def test_atoms_outside_of_the_grid_are_told_of(tmp_path):
    positions = np.array([[[1, 1, 1], [5, 5, 5]], [[1, 1, 1], [15, 5, 5.0]]])
    files = made(MDAnalysis.Universe, tmp_path, positions, [[20, 20, 20, 90, 90, 90]] * 2)
    with pytest.warns(UserWarning, match="density: 25 % of the atoms lie outside of the grid"):
        outcome = plain.run(Density(selection="all", grid=1.0), *files)
    assert outcome["grid"].sum() == 1.5


def test_what_the_topology_lacks():
    with pytest.raises(himach.UsageError, match=r"N of MET 1 has neither the name of an element \(''\) nor the mass"):
        plain.run(Density(selection="all", weights="electron"), XTC, GRO, stop=1, to_guess=())
    with pytest.raises(himach.UsageError, match="the topology has no masses"):
        plain.run(Density(selection="all", weights="mass"), XTC, GRO, stop=1, to_guess=())
    assert plain.run(Density(selection="name CA", grid=2.0), DCD, PSF, stop=1)["grid"].sum() * 8 == pytest.approx(214)
