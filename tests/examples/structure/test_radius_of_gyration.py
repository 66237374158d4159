import MDAnalysis
import mdtraj
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from MDAnalysisTests.datafiles import DCD, GRO, PSF, XTC
from support import plain

import himach
from himach.examples import sample
from himach.examples.structure.radius_of_gyration import RadiusOfGyration


@pytest.mark.parametrize(
    ("topology", "trajectory", "selection"),
    [(PSF, DCD, "protein"), (PSF, DCD, "name CA"), (GRO, XTC, "protein"), (*reversed(sample("villin")), "protein")],
    ids=["AdK", "CA", "in water", "villin"],
)
def test_against_mdanalysis(topology, trajectory, selection):
    """Its asphericity is what Theodorou and Suter call relative shape anisotropy."""
    atoms = MDAnalysis.Universe(topology, trajectory).select_atoms(selection)
    some = slice(None, None, max(1, atoms.universe.trajectory.n_frames // 10))
    expected = [(atoms.radius_of_gyration(), atoms.asphericity()) for _ in atoms.universe.trajectory[some]]
    table = plain.run(RadiusOfGyration(selection=selection), trajectory, topology, step=some.step)["rg"]
    np.testing.assert_allclose(np.array([table["rg"], table["anisotropy"]]).T, expected, rtol=1e-9)


def test_against_mdtraj():
    """It has equal weights by default, and lengths in nm."""
    frames = mdtraj.load_dcd(DCD, top=PSF)
    table = plain.run(RadiusOfGyration(weights="none"), DCD, PSF)["rg"]
    np.testing.assert_allclose(table["rg"], 10 * mdtraj.compute_rg(frames), rtol=1e-6)
    np.testing.assert_allclose(table["asphericity"], 100 * mdtraj.asphericity(frames), rtol=1e-6)
    np.testing.assert_allclose(table["acylindricity"], 100 * mdtraj.acylindricity(frames), rtol=1e-6)
    np.testing.assert_allclose(table["anisotropy"], mdtraj.relative_shape_antisotropy(frames), rtol=1e-6)


def test_against_gromacs():
    # printf C-alpha | gmx gyrate -s villin.pdb -f villin.xtc (GROMACS 2022.5), every 62nd frame
    expected = [9.06036, 9.04749, 9.08611, 9.06733, 9.16675]
    found = plain.run(RadiusOfGyration(selection="name CA"), *sample("villin"), step=62)["rg"]["rg"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=6e-6)


def line(n):
    return np.array([[x, 0, 0] for x in range(n)])


SHAPES = {
    # Of n atoms in a row, one apart, the squared radius is (n^2 - 1) / 12.
    "rod": (line(11), [np.sqrt(10), 10, 0, 1]),
    "square": (np.array([[1, 1, 0], [1, -1, 0], [-1, 1, 0], [-1, -1, 0]]), [np.sqrt(2), 0.5, 1, 0.25]),
    "cube": (np.array([[x, y, z] for x in (0, 2) for y in (0, 2) for z in (0, 2)]), [np.sqrt(3), 0, 0, 0]),
    "point": (np.zeros((3, 3)), [0, 0, 0, 0]),
}


def shape_of(positions, turn=None):
    """Return the row of the table for one frame of atoms at these positions, turned about."""
    positions = positions if turn is None else positions @ turn.T + 17
    universe = MDAnalysis.Universe.empty(len(positions), trajectory=True)
    universe.atoms.positions = positions
    table = himach.run(RadiusOfGyration(selection="all", weights="none"), universe, cache="off")["rg"]
    return [table[column][0] for column in ("rg", "asphericity", "acylindricity", "anisotropy")]


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_that_are_known(shape):
    positions, expected = SHAPES[shape]
    np.testing.assert_allclose(shape_of(positions), expected, atol=1e-12)


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_where_it_is_and_how_it_is_turned_does_not_count(seed):
    random = np.random.default_rng(seed)
    positions = random.normal(0, 5, (20, 3))
    turn, _ = np.linalg.qr(random.normal(size=(3, 3)))
    np.testing.assert_allclose(shape_of(positions, turn), shape_of(positions), rtol=1e-4)


def test_units_and_means():
    result = himach.run(RadiusOfGyration(), *sample("villin"), cache="off", stop=40)
    units = {"time_ps": "ps", "rg": "Å", "asphericity": "Å²", "acylindricity": "Å²"}
    assert result.record["units"] == {"rg": units}
    assert result["rg"].means.keys() == {"rg", "asphericity", "acylindricity", "anisotropy"}


def test_bad_parameters():
    with pytest.raises(himach.UsageError, match="radius-of-gyration: parameter selection: 'name XX' selects none"):
        plain.run(RadiusOfGyration(selection="name XX"), *sample("villin"))
    universe = MDAnalysis.Universe(PSF, DCD)
    universe.del_TopologyAttr("masses")
    with pytest.raises(himach.UsageError, match="radius-of-gyration: the topology has no masses"):
        himach.run(RadiusOfGyration(), universe, cache="off")
