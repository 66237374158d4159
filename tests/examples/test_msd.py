import MDAnalysis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from MDAnalysis.analysis.msd import EinsteinMSD
from MDAnalysis.lib.mdamath import triclinic_vectors
from MDAnalysis.transformations import NoJump
from MDAnalysisTests.datafiles import DCD, GRO, PSF, XTC
from support import plain

import himach
from himach.examples import sample
from himach.examples.msd import Msd, unwrap, windowed_msd

seeds = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize(
    ("topology", "trajectory", "selection"),
    [(*reversed(sample("nanopore")), "name K CL O"), (GRO, XTC, "name OW and resid 1-2000")],
    ids=["orthogonal box", "triclinic box"],
)
def test_against_mdanalysis(topology, trajectory, selection):
    universe = MDAnalysis.Universe(topology, trajectory)
    universe.trajectory.add_transformations(NoJump())
    expected = EinsteinMSD(universe, selection, fft=False).run().results.timeseries
    table = plain.run(Msd(selection=selection, tau_max=len(expected) - 1), trajectory, topology)["msd"]
    assert table["msd"][0] == 0
    np.testing.assert_allclose(table["msd"][1:], expected[1:], rtol=1e-4)
    np.testing.assert_allclose(table["tau_ps"], np.arange(len(expected)) * universe.trajectory.dt, rtol=1e-6)


def test_without_unwrapping():
    universe = MDAnalysis.Universe(PSF, DCD)
    expected = EinsteinMSD(universe, "name CA", fft=False).run().results.timeseries
    table = plain.run(Msd(selection="name CA", tau_max=97, unwrap=False), DCD, PSF)["msd"]
    np.testing.assert_allclose(table["msd"][1:], expected[1:], rtol=1e-4)


def wrapped_walk(seed, m=40):
    """Return a random walk, the same wrapped into boxes that breathe, and the boxes."""
    rng = np.random.default_rng(seed)
    sides = rng.uniform(10, 20, 3) * rng.uniform(0.98, 1.02, (m, 1))
    boxes = np.column_stack([sides, np.broadcast_to(rng.choice([90, 75, 110], 3), (m, 3))])
    vectors = np.array([triclinic_vectors(box, dtype=np.float64) for box in boxes])
    scaled = rng.uniform(0, 1, 3) + np.cumsum(rng.uniform(-0.45, 0.45, (m, 3)), axis=0)
    scaled -= np.floor(scaled[0])
    walk = np.einsum("mi,mij->mj", scaled, vectors)
    wrapped = np.einsum("mi,mij->mj", scaled % 1, vectors)
    return walk, wrapped, boxes


@given(seeds)
def test_unwrap_finds_the_walk(seed):
    walk, wrapped, boxes = wrapped_walk(seed)
    np.testing.assert_allclose(unwrap(wrapped, boxes), walk, atol=1e-9)


@given(seeds)
def test_unwrap_leaves_a_whole_path_alone(seed):
    walk, _, boxes = wrapped_walk(seed)
    np.testing.assert_allclose(unwrap(walk, boxes), walk, atol=1e-9)


@settings(max_examples=50)
@given(seeds, st.integers(1, 30))
def test_windowed_msd_is_the_mean_over_origins(seed, m):
    positions = np.random.default_rng(seed).normal(50, 10, (m, 3))
    expected = [np.mean(((positions[tau:] - positions[: m - tau]) ** 2).sum(axis=1)) for tau in range(m)]
    np.testing.assert_allclose(windowed_msd(positions), expected, rtol=1e-9, atol=1e-9)


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
