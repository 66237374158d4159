import MDAnalysis
import numpy as np
import pytest
from MDAnalysisTests.datafiles import GRO, XTC
from support import plain
from waterdynamics import SurvivalProbability

import himach
from himach.examples import sample
from himach.examples.interactions.water_residence import WaterResidence
from himach.frame import Frame


@pytest.mark.parametrize(
    ("intermittency", "expected"),
    [(0, [1, 0.38664, 0.18483, 0.10417, 0.06476, 0.04714]), (2, [1, 0.56154, 0.38170, 0.26235, 0.17741, 0.12370])],
)
def test_adk(intermittency, expected):
    analysis = WaterResidence(water="name OW", cutoff=4, tau_max=5, intermittency=intermittency)
    table = plain.run(analysis, XTC, GRO)["survival"]
    np.testing.assert_allclose(table["survival"], expected, atol=5e-6)
    np.testing.assert_allclose(table["tau_ps"], np.arange(6) * 100, rtol=1e-6)


def test_villin(shared):
    table = plain.run(WaterResidence(tau_max=10), *shared("villin"))["survival"]
    expected = [1, 0.89559, 0.82216, 0.76606, 0.72030, 0.68191, 0.64863, 0.61950, 0.59390, 0.57098, 0.55021]
    np.testing.assert_allclose(table["survival"], expected, atol=5e-6)


@pytest.mark.parametrize("by", ["atom", "residue"])
@pytest.mark.parametrize("intermittency", [0, 3])
def test_nanopore_against_waterdynamics(by, intermittency):
    trajectory, topology = sample("nanopore")
    universe = MDAnalysis.Universe(topology, trajectory)
    expected = SurvivalProbability(universe, "resname HOH and around 3 name K").run(
        tau_max=15, stop=60, residues=by == "residue", intermittency=intermittency
    )
    analysis = WaterResidence(
        water="resname HOH", solute="name K", cutoff=3, tau_max=15, intermittency=intermittency, by=by
    )
    table = plain.run(analysis, trajectory, topology, stop=60)["survival"]
    np.testing.assert_allclose(table["survival"], expected.sp_timeseries, rtol=1e-12)


@pytest.mark.parametrize("box", [None, [40, 42, 44, 90, 90, 90], [40, 42, 44, 80, 75, 70]])
@pytest.mark.parametrize("n", [300, 12])
def test_near_is_what_around_selects(box, n):
    """Positions on a grid, so that many distances equal the cutoff."""
    rng = np.random.default_rng(n)
    universe = MDAnalysis.Universe.empty(2 * n, trajectory=True)
    universe.add_TopologyAttr("names", ["OW"] * n + ["C"] * n)
    universe.atoms.positions = rng.integers(0, 60, (2 * n, 3)) * 0.7
    universe.dimensions = box
    analysis = WaterResidence(water="name OW", solute="name C", tau_max=0)
    analysis.frames = range(1)
    analysis.setup(universe)
    (pairs,) = analysis.map(Frame(0, 0, 0.0, universe.atoms.positions, universe.dimensions, None, None, universe))
    expected = universe.select_atoms("name OW and around 3.5 name C")
    np.testing.assert_array_equal(pairs.keys, expected.indices)


def test_atoms_of_the_solute_are_no_water():
    trajectory, topology = sample("nanopore")
    table = plain.run(WaterResidence(water="name O K", solute="name K", tau_max=3), trajectory, topology, stop=5)
    other = plain.run(WaterResidence(water="name O", solute="name K", tau_max=3), trajectory, topology, stop=5)
    np.testing.assert_array_equal(table["survival"]["survival"], other["survival"]["survival"])


def test_solute_that_selects_nothing():
    message = "water-residence: parameter solute: 'protein' selects none"
    with pytest.raises(himach.UsageError, match=message):
        plain.run(WaterResidence(), *sample("nanopore"))


def test_selection_that_cannot_be_read():
    with pytest.raises(himach.UsageError, match=r"parameter water: .* cannot be used"):
        plain.run(WaterResidence(water="resnme HOH", solute="name K"), *sample("nanopore"))


def test_cutoff_must_be_positive():
    with pytest.raises(himach.UsageError, match="cutoff must be greater than 0"):
        plain.run(WaterResidence(cutoff=-1), *sample("nanopore"))
