"""msd and diffusion beside GROMACS; corrections for finite size."""

import warnings

import MDAnalysis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from MDAnalysis.lib.mdamath import triclinic_vectors
from MDAnalysisTests.datafiles import GRO, XTC
from support import plain

import himach
from himach.examples import sample
from himach.examples.liquids.displacements import (
    UNIT,
    block_lags,
    block_msd,
    diffusion,
    diffusion_limits,
    msd_limits,
    unwrap,
    windowed_msd,
)
from himach.examples.liquids.finite_size import mobility_lost, yeh_hummer
from himach.examples.liquids.msd import Msd

seeds = st.integers(0, 2**32 - 1)


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


def test_a_path_that_others_unwrapped_in_a_box_that_changes_is_warned_of():
    walk, _, boxes = wrapped_walk(1)
    msd = Msd(selection="all", unwrap=False)
    with pytest.warns(UserWarning, match="the box changes"):
        msd.paths(walk, boxes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        msd.paths(walk, np.broadcast_to(boxes[0], boxes.shape))


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
    computed = block_msd(paths, n_blocks, n_lags, n)
    np.testing.assert_allclose(computed * UNIT * n, np.array(expected) / length, rtol=1e-9, atol=1e-9)
    assert (computed == sum(block_msd(path[np.newaxis], n_blocks, n_lags, n) for path in paths)).all()
    assert length > 0
    assert (n_blocks * length + n_lags - 1 <= m) and n_lags <= max(1, m // 8)


def test_displacements_as_of_a_gas_do_not_overflow():
    m = 100
    path = 2e3 / np.sqrt(3) * np.arange(m)[:, np.newaxis] / m * np.ones(3)
    sums = sum(block_msd(path[np.newaxis] * 1.0, 32, 5, 1_000_000) for _ in range(3))
    np.testing.assert_allclose(sums[0] * UNIT * 1e6 / 3, (20.0 * np.arange(5)) ** 2, rtol=1e-5)


def test_two_frames_have_a_table_of_diffusion():
    result = himach.run(Msd(selection="name K", tau_max=1), *sample("nanopore"), stop=2, cache="off")
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
        band = msd_limits(msd, of_block, 0.95)
        inside += (band.low <= 6 * 0.23 * tau) & (6 * 0.23 * tau <= band.high)
        d = diffusion(tau[fitted], msd[fitted])
        computed = diffusion_limits(d, tau[fitted], of_block[:, fitted], 0.95)
        assert computed.low < d < computed.high
        d_inside += computed.low <= 0.23e-4 <= computed.high
    assert (inside >= 34).all()
    assert 34 <= d_inside < 40


def test_lags_too_long_for_the_trajectory_have_no_interval():
    result = himach.run(Msd(selection="name K CL", tau_max=40), *sample("nanopore"), cache="off")
    table, uncertainty = result["msd"], result.record["uncertainty"]
    known = np.isfinite(table["msd_low"])
    assert known[:5].all() and not known[150 // 8 :].any()
    assert np.isnan(result["diffusion"]["d_cm2_s_low"][0])
    assert uncertainty["diffusion"]["blocks"] == 0


@pytest.mark.parametrize("start", [0, 9])
def test_reduced_many_at_a_time(start):
    analysis = Msd(selection="name OW and resid 1-2000", tau_max=9 - start)
    table = himach.run(analysis, XTC, GRO, start=start, cache="off").outcome["msd"]
    if start == 0:
        expected = plain.run(Msd(selection=analysis.selection, tau_max=9), XTC, GRO)["msd"]
        assert table["msd"].tobytes() == expected["msd"].tobytes()
    assert table["msd"][0] == 0


def test_both_axes_are_logarithmic_on_request():
    result = himach.run(Msd(selection="name K", loglog=True), *sample("nanopore"), cache="off")
    (axes,) = result.plot().axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    path, diffusion, _ = (line.get_xydata() for line in axes.lines)
    np.testing.assert_array_equal(path[:, 1], result["msd"]["msd"][1:])
    np.testing.assert_allclose(diffusion[:, 1] / diffusion[:, 0], path[-1, 1] / path[-1, 0])
    assert axes.get_legend().get_texts()[0].get_text() == "slope 1: diffusion"


#: What `gmx msd -trestart 2 -beginfit 4 -endfit 30` (2022.5) finds of the water of the nanopore, its frames 2 ps apart:
#: with `-sel "name O"` alone, `-lateral z` or `-type z`; with `-mol -sel all`. MSD of 1, 2 and 15 frames in nm², D.
GMX = {
    "oxygens": ({}, [0.00626634, 0.0129449, 0.0777063], 0.4128),
    "molecules": ({"selection": "resname HOH", "molecules": True}, [0.00616361, 0.0127938, 0.0772895], 0.4112),
    "lateral": ({"directions": "xy"}, [0.00417917, 0.00873296, 0.0539449], 0.4326),
    "along the pore": ({"directions": "z"}, [0.00208717, 0.00421198, 0.0237614], 0.3732),
}


@pytest.mark.parametrize(("parameters", "msd", "d"), GMX.values(), ids=GMX)
def test_against_gromacs(parameters, msd, d):
    computed = himach.run(Msd(tau_max=17, fit="0.4-3", **parameters), *sample("nanopore"), cache="off").outcome
    np.testing.assert_allclose(computed["msd"]["msd"][[1, 2, 15]], np.array(msd) * 100, rtol=1e-5)
    assert computed["diffusion"]["d_cm2_s"][0] == pytest.approx(10 * d * 1e-5, abs=0.0005 * 1e-5)
    fitted = [computed["diffusion"][name][0] for name in ("from_ps", "to_ps")]
    np.testing.assert_allclose(fitted, [0.4, 3.0], rtol=1e-5)


def test_a_box_that_changes_counts_by_its_mean():
    universe = MDAnalysis.Universe(GRO, XTC)
    mean = np.mean([triclinic_vectors(ts.dimensions, dtype=np.float64) for ts in universe.trajectory], axis=0)
    msd = Msd(selection="name OW and resid 1-500", tau_max=9, viscosity=0.5, temperature=310)
    computed = himach.run(msd, XTC, GRO, cache="off")["diffusion"]
    lacks = computed["yeh_hummer_cm2_s"][0] - computed["d_cm2_s"][0]
    assert lacks == pytest.approx(yeh_hummer(mean, 0.5, 310), rel=1e-6)


#: Constants of cubic lattices, by the cube root of a cell's volume (Yeh and Hummer 2004), and by the radius of a sphere
#: of that volume (Hasimoto 1959).
CELLS = {
    "cube": ([25, 25, 25, 90, 90, 90], 2.837297, 1.7601),
    "truncated octahedron": ([25, 25, 25, 70.528779, 109.471221, 70.528779], None, 1.7919),
    "rhombic dodecahedron": ([25, 25, 25, 60, 60, 90], None, 1.7917),
}


@pytest.mark.parametrize(("box", "by_side", "by_sphere"), CELLS.values(), ids=CELLS)
def test_cells_of_cubic_symmetry(box, by_side, by_sphere):
    vectors = triclinic_vectors(box, dtype=np.float64)
    computed = mobility_lost(vectors) * np.cbrt(np.linalg.det(vectors))
    np.testing.assert_allclose(computed, computed[0, 0] * np.eye(3), atol=1e-7)
    assert computed[0, 0] / np.cbrt(4 * np.pi / 3) == pytest.approx(by_sphere, abs=6e-5)
    if by_side:
        assert computed[0, 0] == pytest.approx(by_side, abs=5e-7)


def test_the_box_in_which_diffusion_across_is_as_without_end():
    """Busch and Paschek, J. Phys. Chem. B 127, 7983 (2023): where the ratio of sides is 2.7933596497, to ten digits."""
    side = 22.0
    vectors = np.diag([side, side, 2.7933596497 * side])
    x, y, z = np.diagonal(mobility_lost(vectors)) * vectors[2, 2]
    np.testing.assert_allclose([x, y, z], [0, 0, 8.1711245653], atol=1e-8)
    assert yeh_hummer(vectors, 0.5, 300, [0, 1]) == pytest.approx(0, abs=1e-14)
    assert yeh_hummer(vectors, 0.5, 300) == pytest.approx(yeh_hummer(vectors, 0.5, 300, [2]) / 3)
