import itertools
import warnings

import MDAnalysis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from MDAnalysis.analysis.msd import EinsteinMSD
from MDAnalysis.lib.distances import minimize_vectors
from MDAnalysis.lib.mdamath import triclinic_vectors
from MDAnalysis.transformations import NoJump
from MDAnalysisTests.datafiles import DCD, GRO, PSF, XTC
from support import plain

import himach
from himach.examples import sample
from himach.examples.displacements import (
    UNIT,
    block_lags,
    block_msd,
    diffusion,
    limits_of_diffusion,
    limits_of_msd,
    unwrap,
    windowed_msd,
)
from himach.examples.msd import Msd

seeds = st.integers(0, 2**32 - 1)


def test_against_mdanalysis():
    trajectory, topology = sample("nanopore")
    universe = MDAnalysis.Universe(topology, trajectory)
    universe.trajectory.add_transformations(NoJump())
    expected = EinsteinMSD(universe, "name K CL O", fft=False).run().results.timeseries
    table = plain.run(Msd(selection="name K CL O", tau_max=len(expected) - 1), trajectory, topology)["msd"]
    assert table["msd"][0] == 0
    np.testing.assert_allclose(table["msd"][1:], expected[1:], rtol=1e-4)
    np.testing.assert_allclose(table["tau_ps"], np.arange(len(expected)) * universe.trajectory.dt, rtol=1e-6)


def test_shortest_steps_in_a_triclinic_box_that_changes():
    universe = MDAnalysis.Universe(GRO, XTC)
    atoms = universe.select_atoms("name OW and resid 1-2000")
    frames = [(atoms.positions.astype(np.float64), ts.dimensions.copy()) for ts in universe.trajectory]
    steps = [minimize_vectors(new - old, box) for (old, _), (new, box) in itertools.pairwise(frames)]
    expected = windowed_msd(np.cumsum([frames[0][0], *steps], axis=0).transpose(1, 0, 2)).mean(axis=0)
    table = plain.run(Msd(selection="name OW and resid 1-2000", tau_max=len(frames) - 1), XTC, GRO)["msd"]
    np.testing.assert_allclose(table["msd"], expected, rtol=1e-4)


def test_without_unwrapping():
    universe = MDAnalysis.Universe(PSF, DCD)
    expected = EinsteinMSD(universe, "name CA", fft=False).run().results.timeseries
    table = plain.run(Msd(selection="name CA", tau_max=97, unwrap=False), DCD, PSF)["msd"]
    np.testing.assert_allclose(table["msd"][1:], expected[1:], rtol=1e-4)


def wrapped_walk(seed, m=40):
    """Return a random walk, the same in boxes that breathe, by which it is wrapped at each step, and the boxes."""
    rng = np.random.default_rng(seed)
    sides = rng.uniform(10, 20, 3) * rng.uniform(0.98, 1.02, (m, 1))
    boxes = np.column_stack([sides, np.broadcast_to(rng.choice([90, 75, 110], 3), (m, 3))])
    vectors = np.array([triclinic_vectors(box, dtype=np.float64) for box in boxes])
    steps = rng.normal(size=(m, 3))
    steps /= np.linalg.norm(steps, axis=1)[:, None]
    steps *= rng.uniform(0, 0.49, (m, 1)) * vectors[:, range(3), range(3)].min(axis=1)[:, None]
    walk = np.cumsum(steps, axis=0)
    wrapped = [walk[0]]
    for step, cell in zip(steps[1:], vectors[1:], strict=True):
        gone = wrapped[-1] + step
        wrapped.append(gone - np.floor(gone @ np.linalg.inv(cell)) @ cell)
    return walk, np.array(wrapped), boxes


@given(seeds)
def test_unwrap_finds_the_walk(seed):
    walk, wrapped, boxes = wrapped_walk(seed)
    np.testing.assert_allclose(unwrap(wrapped, boxes), walk, atol=1e-9)


@given(seeds)
def test_unwrap_leaves_a_whole_path_alone(seed):
    walk, _, boxes = wrapped_walk(seed)
    np.testing.assert_allclose(unwrap(walk, boxes), walk, atol=1e-9)


def test_diffusion_at_constant_pressure():
    """Brownian particles: 0.23 Å²/ps, a cubic box of 30 Å that fluctuates by 0.1 Å, a frame each 10 ps."""
    rng = np.random.default_rng(1)
    m, n = 20_000, 10
    sides = rng.normal(30, 0.1, m)
    steps = rng.normal(0, np.sqrt(2 * 0.23 * 10), (n, m, 3))
    wrapped = np.empty_like(steps)
    at = np.full((n, 3), 15.0)
    for i, side in enumerate(sides):
        at = wrapped[:, i] = (at + steps[:, i]) % side
    boxes = np.column_stack([sides, sides, sides, *np.full((3, m), 90.0)])
    found = windowed_msd(unwrap(wrapped, boxes)).mean(axis=0)
    np.testing.assert_allclose(found, windowed_msd(np.cumsum(steps, axis=1)).mean(axis=0), rtol=0.02)
    assert found[1] == pytest.approx(6 * 0.23 * 10, rel=0.02)


def test_a_path_that_others_unwrapped_in_a_box_that_changes_is_warned_of():
    walk, _, boxes = wrapped_walk(1)
    msd = Msd(selection="all", unwrap=False)
    with pytest.warns(UserWarning, match="the box changes"):
        msd.paths(walk, boxes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        msd.paths(walk, np.broadcast_to(boxes[0], boxes.shape))


@settings(max_examples=50)
@given(seeds, st.integers(1, 30))
def test_windowed_msd_is_the_mean_over_origins(seed, m):
    positions = np.random.default_rng(seed).normal(50, 10, (m, 3))
    expected = [np.mean(((positions[tau:] - positions[: m - tau]) ** 2).sum(axis=1)) for tau in range(m)]
    np.testing.assert_allclose(windowed_msd(positions), expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(64, 300), st.integers(1, 40), st.integers(1, 3))
def test_blocks_of_windows_beside_windows_one_by_one(seed, m, n_lags, n):
    paths = np.random.default_rng(seed).normal(50, 10, (n, m, 3)).cumsum(axis=1)
    n_blocks, n_lags = block_lags(m, n_lags)
    length = (m - n_lags + 1) // n_blocks
    expected = [
        [
            sum(((path[t + lag] - path[t]) ** 2).sum() for path in paths for t in range(b * length, (b + 1) * length))
            for lag in range(n_lags)
        ]
        for b in range(n_blocks)
    ]
    found = block_msd(paths, n_blocks, n_lags, n)
    np.testing.assert_allclose(found * UNIT * n, np.array(expected) / length, rtol=1e-9, atol=1e-9)
    assert (found == sum(block_msd(path[np.newaxis], n_blocks, n_lags, n) for path in paths)).all()
    assert length > 0
    assert (n_blocks * length + n_lags - 1 <= m) and n_lags <= max(1, m // 8)


@pytest.mark.parametrize("m", [*range(1, 70), 127, 128, 129, 511, 512, 513])
def test_blocks_have_windows_whatever_the_lags(m):
    for lags in range(1, 70):
        n_blocks, n_lags = block_lags(m, lags)
        if n_blocks:
            assert (m - n_lags + 1) // n_blocks > 0
            found = block_msd(np.arange(3.0 * m).reshape(1, m, 3), n_blocks, n_lags, 1) * UNIT
            np.testing.assert_allclose(found, np.broadcast_to(27.0 * np.arange(n_lags) ** 2, found.shape), atol=1e-6)


def test_displacements_as_of_a_gas_do_not_overflow():
    m = 100
    path = 2e3 / np.sqrt(3) * np.arange(m)[:, np.newaxis] / m * np.ones(3)
    sums = sum(block_msd(path[np.newaxis] * 1.0, 32, 5, 1_000_000) for _ in range(3))
    np.testing.assert_allclose(sums[0] * UNIT * 1e6 / 3, (20.0 * np.arange(5)) ** 2, rtol=1e-5)


def test_two_frames_have_a_table_of_diffusion():
    result = himach.run(Msd(selection="name K", tau_max=1), *sample("nanopore"), stop=2, cache="off", progress=False)
    assert np.isnan(result["diffusion"]["d_cm2_s"][0])
    assert list(result["diffusion"]) == ["from_ps", "to_ps", "d_cm2_s", "d_cm2_s_low", "d_cm2_s_high"]
    result.plot()


def test_diffusion_and_bands_of_brownian_particles():
    """Of 40 runs of 1,000 frames: the truth is outside of some intervals, and inside of most."""
    rng = np.random.default_rng(4)
    m, n_lags, n, tau = 1000, 101, 5, 2.0 * np.arange(101)
    fitted = slice(10, 91)
    inside, d_inside = np.zeros(n_lags), 0
    for _ in range(40):
        paths = np.cumsum(rng.normal(0, np.sqrt(2 * 0.23 * 2.0), (n, m, 3)), axis=1)
        of_block = block_msd(paths, *block_lags(m, n_lags), n) * UNIT
        msd = windowed_msd(paths)[:, :n_lags].mean(axis=0)
        band = limits_of_msd(msd, of_block, 0.95)
        inside += (band.low <= 6 * 0.23 * tau) & (6 * 0.23 * tau <= band.high)
        d = diffusion(tau[fitted], msd[fitted])
        found = limits_of_diffusion(d, tau[fitted], of_block[:, fitted], 0.95)
        assert found.low < d < found.high
        d_inside += found.low <= 0.23e-4 <= found.high
    assert (inside >= 34).all()
    assert 34 <= d_inside < 40


def test_diffusion_is_that_of_the_lags_that_are_fitted():
    table = plain.run(Msd(selection="name K CL", tau_max=10, fit="0.4-1.2"), *sample("nanopore"))
    msd, found = table["msd"], table["diffusion"]
    some = slice(2, 7)
    slope = np.polyfit(msd["tau_ps"][some], msd["msd"][some], 1)[0]
    assert found["d_cm2_s"][0] == pytest.approx(slope / 6 * 1e-4, rel=1e-9)
    np.testing.assert_allclose([found["from_ps"][0], found["to_ps"][0]], [0.4, 1.2], rtol=1e-5)


@pytest.mark.parametrize(
    ("fit", "told"), [("10", "give two lags"), ("a-b", "give two lags"), ("90-95", "reach from 0 to")]
)
def test_lags_that_cannot_be_fitted_are_refused(fit, told):
    with pytest.raises(himach.UsageError, match=f"fit '{fit}'.*{told}"):
        plain.run(Msd(selection="name K", tau_max=10, fit=fit), *sample("nanopore"))


def test_lags_too_long_for_the_trajectory_have_no_interval():
    result = himach.run(Msd(selection="name K CL", tau_max=40), *sample("nanopore"), cache="off", progress=False)
    table, uncertainty = result["msd"], result.record["uncertainty"]
    known = np.isfinite(table["msd_low"])
    assert known[:5].all() and not known[150 // 8 :].any()
    assert np.isnan(result["diffusion"]["d_cm2_s_low"][0])
    assert uncertainty["diffusion"]["blocks"] == 0


@settings(max_examples=50)
@given(seeds, st.integers(1, 30), st.integers(1, 9))
def test_many_paths_at_once_give_the_same_bits(seed, m, n):
    walks = [wrapped_walk(seed + i, m)[1] for i in range(n)]
    boxes = wrapped_walk(seed, m)[2]
    many = windowed_msd(unwrap(np.array(walks), boxes))
    assert many.tobytes() == np.array([windowed_msd(unwrap(walk, boxes)) for walk in walks]).tobytes()


@pytest.mark.parametrize("start", [0, 9])
def test_reduced_many_at_a_time(start):
    analysis = Msd(selection="name OW and resid 1-2000", tau_max=9 - start)
    table = himach.run(analysis, XTC, GRO, start=start, cache="off", progress=False).outcome["msd"]
    if start == 0:
        expected = plain.run(Msd(selection=analysis.selection, tau_max=9), XTC, GRO)["msd"]
        assert table["msd"].tobytes() == expected["msd"].tobytes()
    assert table["msd"][0] == 0


def test_no_box_to_unwrap_by():
    with pytest.raises(himach.UsageError, match="unwrap=False"):
        plain.run(Msd(selection="name CA"), DCD, PSF)


def test_empty_selection():
    with pytest.raises(himach.UsageError, match="parameter selection"):
        plain.run(Msd(unwrap=False), DCD, PSF)


def test_both_axes_are_logarithmic_on_request():
    result = himach.run(Msd(selection="name K", loglog=True), *sample("nanopore"), cache="off")
    (axes,) = result.plot().axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    path, diffusion, _ = (line.get_xydata() for line in axes.lines)
    np.testing.assert_array_equal(path[:, 1], result["msd"]["msd"][1:])
    np.testing.assert_allclose(diffusion[:, 1] / diffusion[:, 0], path[-1, 1] / path[-1, 0])
    assert axes.get_legend().get_texts()[0].get_text() == "slope 1: diffusion"
