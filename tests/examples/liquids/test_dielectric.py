"""dielectric, dipole-orientation and velocity-autocorrelation beside their definitions."""

import MDAnalysis
import mdtraj
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from MDAnalysis.analysis.dielectric import DielectricConstant
from MDAnalysisTests.datafiles import DCD_TRICLINIC, GRO, PSF_TRICLINIC, TRR
from support import plain

import himach
from himach.examples import sample
from himach.examples.liquids.autocorrelations import LIGHT, integral, spectral_density
from himach.examples.liquids.dielectric import E2_EPS0_K, Dielectric
from himach.examples.liquids.dipole_orientation import DipoleOrientation
from himach.examples.liquids.velocity_autocorrelation import VelocityAutocorrelation

SPCE = ["name OW = -0.8476", "name HW1 HW2 = 0.4238"]


def epsilon(trajectory, topology, **parameters):
    return plain.run(Dielectric(**parameters), trajectory, topology)["dielectric"]["epsilon"][0]


@pytest.mark.parametrize(("temperature", "known"), [(300.0, 3.874), (100.0, 9.621)])
def test_against_mdanalysis(temperature, known):
    universe = MDAnalysis.Universe(PSF_TRICLINIC, DCD_TRICLINIC)
    expected = DielectricConstant(universe.atoms, temperature=temperature).run().results.eps_mean
    computed = epsilon(DCD_TRICLINIC, PSF_TRICLINIC, temperature=temperature)
    assert computed == pytest.approx(expected, rel=2e-6)  # constants of 2010 there
    assert computed == pytest.approx(known, abs=6e-4)


def test_molecules_are_made_whole(tmp_path):
    universe = MDAnalysis.Universe(PSF_TRICLINIC, DCD_TRICLINIC)
    with MDAnalysis.Writer(str(tmp_path / "wrapped.trr"), len(universe.atoms)) as writer:
        for _ in universe.trajectory:
            universe.atoms.wrap()
            writer.write(universe.atoms)
    computed = epsilon(tmp_path / "wrapped.trr", PSF_TRICLINIC)
    assert computed == pytest.approx(epsilon(DCD_TRICLINIC, PSF_TRICLINIC), rel=1e-5)


@pytest.mark.filterwarnings("ignore:.*the topology has no bonds")
def test_against_gromacs_and_mdtraj_without_bonds():
    trajectory, topology = sample("water")
    computed = epsilon(trajectory, topology, charges=SPCE)
    # echo 0 | gmx dipoles -f water.xtc -s water.tpr -temp 300
    assert computed == pytest.approx(70.4059, abs=6e-5)
    water = mdtraj.load(str(trajectory), top=str(topology))
    expected = mdtraj.geometry.static_dielectric(water, np.tile([-0.8476, 0.4238, 0.4238], 216), 300)
    assert computed == pytest.approx(expected, rel=1e-6)


@pytest.mark.filterwarnings("ignore:.*the topology has no bonds")
def test_running_values_are_those_of_the_frames_up_to_there():
    outcome = plain.run(Dielectric(charges=SPCE), *sample("water"))
    running = outcome["running"]
    assert running["epsilon"][0] == pytest.approx(1)
    assert running["epsilon"][-1] == outcome["dielectric"]["epsilon"][0]
    assert running["time_ps"][[0, -1]].tolist() == [200, 1200]
    few = plain.run(Dielectric(charges=SPCE), *sample("water"), stop=40)
    assert few["dielectric"]["epsilon"][0] == running["epsilon"][39]


@pytest.mark.parametrize(("axis", "center"), [("z", None), ("x", "resid 1")])
def test_orientation_against_dipole_vectors_of_mdanalysis(axis, center):
    parameters = {"selection": "all", "axis": axis, "bins": 5, "center": center}
    table = plain.run(DipoleOrientation(**parameters), DCD_TRICLINIC, PSF_TRICLINIC)["orientation"]
    universe, along = MDAnalysis.Universe(PSF_TRICLINIC, DCD_TRICLINIC), "xyz".index(axis)
    sums = np.zeros((3, 5))
    for _ in universe.trajectory:
        inverse = np.linalg.inv(universe.trajectory.ts.triclinic_dimensions.astype(float))
        dipoles = universe.atoms.dipole_vector(unwrap=True, compound="fragments", wrap=False)
        cosines = dipoles @ inverse[:, along] / np.linalg.norm(dipoles, axis=1) / np.linalg.norm(inverse[:, along])
        places = universe.atoms.center_of_mass(unwrap=True, compound="fragments", wrap=False) @ inverse[:, along]
        if center is not None:
            images = np.exp(2j * np.pi * (universe.select_atoms(center).positions @ inverse[:, along]))
            middle = np.angle(images.mean()) / (2 * np.pi)
            offsets = np.angle(images * np.exp(-2j * np.pi * middle)) / (2 * np.pi)
            places += 0.5 - middle - offsets.mean()
        layers = (places % 1 * 5).astype(int)
        for row, values in enumerate((cosines, 1.5 * cosines**2 - 0.5, np.ones(len(cosines)))):
            sums[row] += np.bincount(layers, values, 5)
    np.testing.assert_allclose(table["cosine"], sums[0] / sums[2], atol=1e-6)
    np.testing.assert_allclose(table["order"], sums[1] / sums[2], atol=1e-6)
    np.testing.assert_allclose(table["molecules"], sums[2] / len(universe.trajectory))


def test_the_interval_is_as_wide_as_theory_says_and_has_the_true_value():
    """Moments of normal distribution that know nothing of each other, as of a constant of 70."""
    n, volume = 10_000, 6500.0
    moments = np.full((n, 4), volume)
    moments[:, :3] = np.random.default_rng(3).normal(0, np.sqrt(69 * 300 * volume / E2_EPS0_K), (n, 3))
    computed = Dielectric().finish({0: (np.arange(n), moments)})["dielectric"].estimates["epsilon"](0.95)
    assert computed.low[0] < 70 < computed.high[0]
    # The variance of a mean of chi-squared with 3 degrees of freedom, times sigma squared, is 6 sigma^4 / n.
    half = 1.96 * 69 * np.sqrt(6 / n) / 3
    assert (computed.high[0] - computed.low[0]) / 2 == pytest.approx(half, rel=0.4)


seeds = st.integers(0, 2**32 - 1)
# echo 0 | gmx velacc -f argon.trr -n all.ndx -acflen 226: lag in frames and autocorrelation
GMX = {1: 0.98904, 5: 0.75776, 10: 0.31157, 20: -0.10218, 55: -0.03446, 100: 0.03022, 200: 0.01640}
RAHMAN = 2.43e-5  # cm²/s, of argon at 94.4 K and this density: Phys. Rev. 136, A405 (1964)


def direct(vectors, lag):
    m = vectors.shape[-2]
    return (vectors[..., lag:, :] * vectors[..., : m - lag, :]).sum(axis=-1).mean(axis=-1)


def test_against_gromacs():
    outcome = plain.run(VelocityAutocorrelation(selection="all", tau_max=225), *sample("argon"))
    computed = outcome["vacf"]["c"][list(GMX)]
    np.testing.assert_allclose(computed, list(GMX.values()), atol=6e-6)
    np.testing.assert_allclose(outcome["vacf"]["tau_ps"], 0.02 * np.arange(226), rtol=1e-5)


def test_argon_diffuses_as_rahman_found():
    run = VelocityAutocorrelation(selection="all", tau_max=55)
    result = himach.run(run, *sample("argon"), cache="off")
    d = result["diffusion"]
    assert d["d_cm2_s"][0] == pytest.approx(RAHMAN, rel=0.1)
    assert d["d_cm2_s_low"][0] < RAHMAN < d["d_cm2_s_high"][0]
    assert d["to_ps"][0] == pytest.approx(1.1, rel=1e-5)
    curve, spectrum = result["vacf"], result["spectrum"]
    for table, column in ((curve, "c"), (spectrum, "density")):
        assert (table[f"{column}_low"] <= table[column]).all() and (table[column] <= table[f"{column}_high"]).all()
    assert curve["c_low"][0] == curve["c"][0] == curve["c_high"][0] == 1
    assert np.trapezoid(spectrum["density"], spectrum["wavenumber"]) == pytest.approx(1)
    units = {name: result[table].units[name] for table, name in (("spectrum", "wavenumber"), ("spectrum", "density"))}
    assert units == {"wavenumber": "cm⁻¹", "density": "cm"}


@pytest.mark.parametrize("weights", ["none", "mass"])
def test_beside_sums_over_atoms(weights):
    universe = MDAnalysis.Universe(GRO, TRR)
    atoms = universe.select_atoms("protein and resid 1-40")
    velocities = np.array([atoms.velocities for _ in universe.trajectory], dtype=np.float64).transpose(1, 0, 2)
    shares = atoms.masses if weights == "mass" else np.ones(len(atoms))
    expected = np.array([np.average(direct(velocities, lag), weights=shares) for lag in range(10)])
    run = VelocityAutocorrelation(selection="protein and resid 1-40", tau_max=9, weights=weights)
    outcome = plain.run(run, TRR, GRO)
    np.testing.assert_allclose(outcome["vacf"]["c"], expected / expected[0], atol=1e-9)
    assert ("diffusion" in outcome) == (weights == "none")
    if weights == "none":
        area = np.trapezoid(expected, outcome["vacf"]["tau_ps"])
        assert outcome["diffusion"]["d_cm2_s"][0] == pytest.approx(area / 3 * 1e-4)


@given(seeds, st.integers(2, 50))
def test_a_spectrum_is_a_sum_of_cosines(seed, n):
    dt = 0.004
    curve = np.random.default_rng(seed).normal(0, 1, n)
    wavenumbers, density = spectral_density(curve, dt)
    lags = dt * np.arange(n)
    waves = np.cos(2 * np.pi * LIGHT * wavenumbers[:, np.newaxis] * lags)
    expected = [
        4 * LIGHT * integral(curve * np.cos(np.pi / 2 * np.arange(n) / (n - 1)) ** 2 * wave, dt) for wave in waves
    ]
    np.testing.assert_allclose(density, expected, atol=1e-12)
    assert np.trapezoid(density, wavenumbers) == pytest.approx(curve[0])


@pytest.mark.parametrize("stop", [1, 2, 10])
def test_few_frames(stop):
    with np.errstate(all="raise"):
        run = VelocityAutocorrelation(selection="all", tau_max=min(5, stop - 1))
        result = himach.run(run, *sample("argon"), stop=stop, cache="off")
    assert result["vacf"]["c"][0] == 1
    assert len(result["spectrum"]["density"]) == (0 if stop == 1 else min(6, stop))


def made(tmp_path, velocities):
    """Write a trajectory of one atom, with a frame for each of its velocities, some of which are None."""
    universe = MDAnalysis.Universe.empty(1, trajectory=True, velocities=True)
    with MDAnalysis.Writer(str(tmp_path / "made.trr"), 1) as writer:
        for number, velocity in enumerate(velocities):
            universe.trajectory.ts.has_velocities = velocity is not None
            if velocity is not None:
                universe.atoms.velocities = [velocity]
            universe.trajectory.ts.time = number
            writer.write(universe.atoms)
    universe.add_TopologyAttr("names", ["C"])
    universe.atoms.write(str(tmp_path / "made.gro"))
    return tmp_path / "made.trr", tmp_path / "made.gro"


def test_what_has_no_velocities(tmp_path):
    files = made(tmp_path, [[1, 2, 3], [1, 2, 3], None])
    with pytest.raises(himach.UsageError, match="the frame has no velocities"):
        plain.run(VelocityAutocorrelation(selection="all", tau_max=1), *files)
    files = made(tmp_path, [[0, 0, 0]] * 4)
    with pytest.raises(himach.UsageError, match="all velocities of the selected atoms are 0"):
        plain.run(VelocityAutocorrelation(selection="all", tau_max=1), *files)
