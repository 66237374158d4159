import MDAnalysis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from MDAnalysisTests.datafiles import GRO, TRR, XTC
from support import plain

import himach
from himach.examples import sample
from himach.examples.liquids.autocorrelations import (
    LIGHT,
    block_products,
    integral,
    spectral_density,
    windowed_products,
)
from himach.examples.liquids.displacements import UNIT, block_lags
from himach.examples.liquids.velocity_autocorrelation import VelocityAutocorrelation

seeds = st.integers(0, 2**32 - 1)
# echo 0 | gmx velacc -f argon.trr -n all.ndx -acflen 226: lag in frames and autocorrelation
GMX = {1: 0.98904, 5: 0.75776, 10: 0.31157, 20: -0.10218, 55: -0.03446, 100: 0.03022, 200: 0.01640}
RAHMAN = 2.43e-5  # cm²/s, of argon at 94.4 K and this density: Phys. Rev. 136, A405 (1964)


def direct(vectors, lag):
    m = vectors.shape[-2]
    return (vectors[..., lag:, :] * vectors[..., : m - lag, :]).sum(axis=-1).mean(axis=-1)


def test_against_gromacs():
    outcome = plain.run(VelocityAutocorrelation(selection="all", tau_max=225), *sample("argon"))
    found = outcome["vacf"]["c"][list(GMX)]
    np.testing.assert_allclose(found, list(GMX.values()), atol=6e-6)
    np.testing.assert_allclose(outcome["vacf"]["tau_ps"], 0.02 * np.arange(226), rtol=1e-5)


def test_argon_diffuses_as_rahman_found():
    run = VelocityAutocorrelation(selection="all", tau_max=55)
    result = himach.run(run, *sample("argon"), cache="off", progress=False)
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


def test_lags_beyond_an_eighth_have_no_interval():
    run = VelocityAutocorrelation(selection="all", tau_max=100)
    result = himach.run(run, *sample("argon"), cache="off", progress=False)
    known = np.isfinite(result["vacf"]["c_low"])
    assert known[:56].all() and not known[56:].any()
    assert np.isnan(result["spectrum"]["density_low"]).all()
    assert np.isnan(result["diffusion"]["d_cm2_s_low"]).all()


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


@settings(max_examples=50)
@given(seeds, st.integers(1, 40))
def test_windowed_products_are_means_over_origins(seed, m):
    vectors = np.random.default_rng(seed).normal(0, 5, (3, m, 3)).cumsum(axis=1)
    expected = np.stack([direct(vectors, lag) for lag in range(m)], axis=-1)
    np.testing.assert_allclose(windowed_products(vectors), expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(64, 300), st.integers(1, 40), st.integers(1, 3))
def test_blocks_of_windows_beside_windows_one_by_one(seed, m, n_lags, n):
    rng = np.random.default_rng(seed)
    vectors, weights = rng.normal(0, 5, (n, m, 3)), rng.uniform(0.1, 1, n)
    n_blocks, n_lags = block_lags(m, n_lags)
    length = (m - n_lags + 1) // n_blocks
    expected = [
        [
            sum(
                weight * (path[t + lag] * path[t]).sum()
                for path, weight in zip(vectors, weights, strict=True)
                for t in range(b * length, (b + 1) * length)
            )
            for lag in range(n_lags)
        ]
        for b in range(n_blocks)
    ]
    found = block_products(vectors, weights, n_blocks, n_lags)
    np.testing.assert_allclose(found * UNIT, np.array(expected) / length, rtol=1e-9, atol=1e-8)
    each = [block_products(vectors[i : i + 1], weights[i : i + 1], n_blocks, n_lags) for i in range(n)]
    np.testing.assert_array_equal(found, sum(each))


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


def test_a_wave_is_found_at_its_wavenumber():
    """An oscillation of 20 fs, which is 1668 per cm."""
    wavenumbers, density = spectral_density(np.cos(2 * np.pi * np.arange(1001) * 0.001 / 0.02), 0.001)
    assert wavenumbers[density.argmax()] == pytest.approx(1667.8, abs=17)
    assert wavenumbers[-1] == pytest.approx(16678, rel=1e-4)


@pytest.mark.parametrize("weights", ["none", "mass"])
def test_spectra_have_limits(weights):
    run = VelocityAutocorrelation(selection="all", tau_max=20, weights=weights)
    result = himach.run(run, *sample("argon"), stop=200, cache="off", progress=False)
    assert np.isfinite(result["spectrum"]["density_low"]).all()


@pytest.mark.parametrize("stop", [1, 2, 10])
def test_few_frames(stop):
    with np.errstate(all="raise"):
        run = VelocityAutocorrelation(selection="all", tau_max=min(5, stop - 1))
        result = himach.run(run, *sample("argon"), stop=stop, cache="off", progress=False)
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
    with pytest.raises(himach.UsageError, match="velocity-autocorrelation: the trajectory has no velocities; give one"):
        plain.run(VelocityAutocorrelation(selection="protein", tau_max=1), XTC, GRO)
    files = made(tmp_path, [[1, 2, 3], [1, 2, 3], None])
    with pytest.raises(himach.UsageError, match="the frame has no velocities"):
        plain.run(VelocityAutocorrelation(selection="all", tau_max=1), *files)


def test_atoms_that_stand_still(tmp_path):
    files = made(tmp_path, [[0, 0, 0]] * 4)
    with pytest.raises(himach.UsageError, match="all velocities of the selected atoms are 0"):
        plain.run(VelocityAutocorrelation(selection="all", tau_max=1), *files)


def test_bad_parameters():
    with pytest.raises(himach.UsageError, match="tau_max must be 0 or more, not -1"):
        plain.run(VelocityAutocorrelation(selection="all", tau_max=-1), *sample("argon"))
    with pytest.raises(himach.UsageError, match="parameter selection: 'name XYZ' selects none"):
        plain.run(VelocityAutocorrelation(selection="name XYZ"), *sample("argon"))
