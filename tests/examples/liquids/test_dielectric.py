import MDAnalysis
import mdtraj
import numpy as np
import pytest
from MDAnalysis.analysis.dielectric import DielectricConstant
from MDAnalysisTests.datafiles import DCD, DCD_TRICLINIC, GRO, PSF, PSF_TRICLINIC, TPR, XTC
from support import plain

import himach
from himach.examples import sample
from himach.examples.liquids.dielectric import E2_EPS0_K, Dielectric

SPCE = ["name OW = -0.8476", "name HW1 HW2 = 0.4238"]


def epsilon(trajectory, topology, **parameters):
    return plain.run(Dielectric(**parameters), trajectory, topology)["dielectric"]["epsilon"][0]


@pytest.mark.parametrize(("temperature", "known"), [(300.0, 3.874), (100.0, 9.621)])
def test_against_mdanalysis(temperature, known):
    universe = MDAnalysis.Universe(PSF_TRICLINIC, DCD_TRICLINIC)
    expected = DielectricConstant(universe.atoms, temperature=temperature).run().results.eps_mean
    found = epsilon(DCD_TRICLINIC, PSF_TRICLINIC, temperature=temperature)
    assert found == pytest.approx(expected, rel=2e-6)  # constants of 2010 there
    assert found == pytest.approx(known, abs=6e-4)


def test_molecules_are_made_whole(tmp_path):
    universe = MDAnalysis.Universe(PSF_TRICLINIC, DCD_TRICLINIC)
    with MDAnalysis.Writer(str(tmp_path / "wrapped.trr"), len(universe.atoms)) as writer:
        for _ in universe.trajectory:
            universe.atoms.wrap()
            writer.write(universe.atoms)
    found = epsilon(tmp_path / "wrapped.trr", PSF_TRICLINIC)
    assert found == pytest.approx(epsilon(DCD_TRICLINIC, PSF_TRICLINIC), rel=1e-5)


@pytest.mark.filterwarnings("ignore:.*the topology has no bonds")
def test_against_gromacs_and_mdtraj_without_bonds():
    trajectory, topology = sample("water")
    found = epsilon(trajectory, topology, charges=SPCE)
    # echo 0 | gmx dipoles -f water.xtc -s water.tpr -temp 300
    assert found == pytest.approx(70.4059, abs=6e-5)
    water = mdtraj.load(str(trajectory), top=str(topology))
    expected = mdtraj.geometry.static_dielectric(water, np.tile([-0.8476, 0.4238, 0.4238], 216), 300)
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.filterwarnings("ignore:.*the topology has no bonds")
def test_running_values_are_those_of_the_frames_up_to_there():
    outcome = plain.run(Dielectric(charges=SPCE), *sample("water"))
    running = outcome["running"]
    assert running["epsilon"][0] == pytest.approx(1)
    assert running["epsilon"][-1] == outcome["dielectric"]["epsilon"][0]
    assert running["time_ps"][[0, -1]].tolist() == [200, 1200]
    few = plain.run(Dielectric(charges=SPCE), *sample("water"), stop=40)
    assert few["dielectric"]["epsilon"][0] == running["epsilon"][39]


def test_a_dipole_that_turns():
    """Of +m, -m, ... along x, the square fluctuates by m²."""
    moments = np.tile([[5.0, 2.0, 1.0, 1000.0], [-5.0, 2.0, 1.0, 1000.0]], (100, 1))
    outcome = Dielectric(temperature=200.0).finish({0: (np.arange(200.0), moments)})
    assert outcome["dielectric"]["epsilon"][0] == pytest.approx(1 + E2_EPS0_K * 25 / (3 * 200 * 1000))
    assert E2_EPS0_K / (4 * np.pi * 300) == pytest.approx(557.0, rel=1e-4)  # Bjerrum length of empty space, Å


def test_the_interval_has_the_true_value():
    """Moments of normal distribution, correlated over 5 frames, as of a constant of 70."""
    rng, n, volume = np.random.default_rng(3), 1000, 6500.0
    variance = 69 * 300 * volume / E2_EPS0_K
    inside = 0
    for _ in range(60):
        noise = rng.normal(0, np.sqrt(variance * (1 - 0.8**2)), (n, 3))
        moments = np.full((n, 4), volume)
        moments[0, :3] = rng.normal(0, np.sqrt(variance), 3)
        for i in range(1, n):
            moments[i, :3] = 0.8 * moments[i - 1, :3] + noise[i]
        found = Dielectric().finish({0: (np.arange(n), moments)})["dielectric"].estimates["epsilon"](0.95)
        inside += found.low[0] < 70 < found.high[0]
    assert inside >= 52


@pytest.mark.filterwarnings("ignore:.*the topology has no bonds")
def test_limits_contain_the_constant_of_the_model():
    table = himach.run(Dielectric(charges=SPCE), *sample("water"), cache="off", progress=False)["dielectric"]
    assert table["epsilon_low"][0] < 70 < table["epsilon_high"][0]


@pytest.mark.parametrize(
    ("trajectory", "topology", "parameters", "words"),
    [
        (*sample("water"), {"charges": SPCE, "temperature": 0.0}, "dielectric: temperature must be greater than 0"),
        (*sample("water"), {}, "dielectric: the topology has no charges"),
        (DCD, PSF, {}, "dielectric: the trajectory has no box"),
        (XTC, TPR, {"selection": "resname SOL NA+"}, r"the molecule of NA\+\d+ has a charge of 1 e"),
        (XTC, TPR, {"selection": "protein"}, "select whole neutral molecules"),
        (DCD_TRICLINIC, PSF_TRICLINIC, {"selection": "name OH2"}, "dielectric: what is selected of the molecule of"),
        (XTC, GRO, {"selection": "resname SOL", "charges": SPCE}, "charges say nothing of"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*the topology has no bonds")
def test_bad_input(trajectory, topology, parameters, words):
    with pytest.raises(himach.UsageError, match=words):
        plain.run(Dielectric(**parameters), trajectory, topology, stop=1)


@pytest.mark.filterwarnings("ignore:.*the topology has no bonds")
def test_a_frame_without_a_box_is_named(tmp_path):
    trajectory, topology = sample("water")
    universe = MDAnalysis.Universe(topology, trajectory)
    with MDAnalysis.Writer(str(tmp_path / "some.trr"), len(universe.atoms)) as writer:
        for ts in universe.trajectory[:3]:
            ts.dimensions = None if ts.frame == 2 else ts.dimensions
            writer.write(universe.atoms)
    with pytest.raises(himach.UsageError, match="the frame has no box"):
        plain.run(Dielectric(charges=SPCE), tmp_path / "some.trr", topology)
