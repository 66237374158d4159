"""Principal components beside those of MDAnalysis, gmx covar and numpy."""

import MDAnalysis
import numpy as np
import pytest
from MDAnalysis.analysis import align
from MDAnalysis.analysis.pca import PCA
from MDAnalysisTests.datafiles import DCD, PSF, RANDOM_WALK, RANDOM_WALK_TOPO
from support import plain

import himach
from himach import uncertainty
from himach.examples import sample
from himach.examples.structure import modes
from himach.examples.structure.pca import Pca


class Small(Pca):
    sizes = (8, 5)


def along(outcome, components):
    return np.column_stack([outcome["projections"][f"pc{i + 1}"] for i in range(components)])


def fitted(topology, trajectory, selection):
    universe, reference = (MDAnalysis.Universe(topology, trajectory) for _ in range(2))
    align.AlignTraj(universe, reference, select=selection, in_memory=True).run()
    return universe


@pytest.mark.parametrize(
    ("topology", "trajectory", "selection"),
    [(PSF, DCD, "name CA and resid 110:170"), (*sample("villin")[::-1], "protein and name CA")],
    ids=["AdK", "villin"],
)
def test_against_mdanalysis(topology, trajectory, selection):
    expected = PCA(MDAnalysis.Universe(topology, trajectory), selection, align=True).run()
    computed = plain.run(Small(selection=selection, components=5), trajectory, topology)
    results, variance = expected.results, computed["variance"]
    np.testing.assert_allclose(variance["variance"], results.variance[:5], rtol=2e-5)
    np.testing.assert_allclose(np.cumsum(variance["share"]), results.cumulated_variance[:5].real, rtol=1e-5)
    overlap = computed["components"].reshape(5, -1) @ results.p_components[:, :5].real
    np.testing.assert_allclose(np.abs(overlap), np.eye(5), atol=2e-4)
    np.testing.assert_allclose(computed["mean"], expected.mean, atol=2e-5)
    universe = fitted(topology, trajectory, selection)
    space = expected.transform(universe.select_atoms(selection), 5).real * np.sign(np.diagonal(overlap))
    np.testing.assert_allclose(along(computed, 5), space, atol=2e-3)
    np.testing.assert_allclose(variance["variance"], space.var(axis=0, ddof=1), rtol=1e-4)


def test_cross_correlation():
    selection = "name CA and resid 1:40"
    universe = fitted(PSF, DCD, selection)
    frames = np.array([universe.select_atoms(selection).positions for _ in universe.trajectory], np.float64)
    moves = frames - frames.mean(axis=0)
    products = np.einsum("tia,tja->ij", moves, moves)
    expected = products / np.sqrt(np.outer(np.diagonal(products), np.diagonal(products)))
    computed = plain.run(Small(selection=selection), DCD, PSF)["cross_correlation"]
    np.testing.assert_allclose(computed, expected, atol=1e-5)


def test_a_random_walk_is_a_cosine():
    computed = plain.run(Pca(selection="all", fit="none", components=2), RANDOM_WALK, RANDOM_WALK_TOPO)
    assert computed["variance"]["cosine"][0] == pytest.approx(0.99, abs=0.02)
    assert plain.run(Pca(components=2), *sample("villin"))["variance"]["cosine"][1] < 0.1


def test_fit_of_other_atoms():
    core, lid = "name CA and resid 1:29 60:121 160:214", "name CA and resid 122:159"
    universe = fitted(PSF, DCD, core)
    frames = np.array([universe.select_atoms(lid).positions.ravel() for _ in universe.trajectory], np.float64)
    values = np.linalg.eigvalsh(np.cov(frames.T))[::-1]
    computed = plain.run(Small(selection=lid, fit=core, components=3), DCD, PSF)
    np.testing.assert_allclose(computed["variance"]["variance"], values[:3], rtol=1e-5)
    np.testing.assert_allclose(computed["mean"].ravel(), frames.mean(axis=0), atol=1e-4)
    itself = plain.run(Small(selection=lid, components=3), DCD, PSF)
    assert itself["variance"]["variance"][0] < 0.5 * values[0]


@pytest.mark.parametrize(("start", "stop", "step"), [(10, 90, 3), (90, 10, -3)])
def test_frames_in_any_order(start, stop, step):
    result = himach.run(Small(selection="name CA"), DCD, PSF, start=start, stop=stop, step=step, cache="off")
    times = result["projections"]["time_ps"]
    assert (np.diff(times) > 0).all()
    assert len(times) == len(range(98)[start:stop:step])
    if step > 0:
        expected = PCA(MDAnalysis.Universe(PSF, DCD), "name CA", align=True).run(start=start, stop=stop, step=step)
        np.testing.assert_allclose(result["variance"]["variance"], expected.results.variance[:10].real, rtol=1e-5)


def test_an_atom_that_does_not_move_is_correlated_with_none():
    x = np.random.default_rng(0).normal(size=(20, 6)) * [1, 1, 1, 0, 0, 0]
    computed = modes.compute_components(modes.moments(x), 1).correlation
    np.testing.assert_allclose(computed, np.diag([1, 0]), rtol=1e-12, atol=0)


def test_free_energy():
    x, y = np.repeat([0.0, 1.0, 1.0], [60, 30, 10]), np.repeat([0.0, 0.0, 1.0], [60, 30, 10])
    table = modes.free_energy(x, y, 2)
    assert [list(table[name]) for name in ("pc1", "pc2")] == [[0.25, 0.75, 0.75], [0.25, 0.25, 0.75]]
    np.testing.assert_allclose(table["free_energy"], np.log([1, 2, 6]))
    assert table.units == {"pc1": "Å", "pc2": "Å", "free_energy": "kT"}
    computed = table.estimates["free_energy"](0.95)
    assert not computed.converged  # one change in all of the time tells of none


def test_free_energy_has_limits():
    random = np.random.default_rng(1)
    x, y = random.normal(size=(2, 5000))
    table = modes.free_energy(x, y, 6)
    computed = table.estimates["free_energy"](0.95)
    assert (computed.low <= computed.value).all()
    assert (computed.value <= computed.high).all()
    assert np.isfinite(computed.high).all()
    counts = np.histogram2d(x, y, 6)[0]
    assert len(computed.value) == (counts > 0).sum()
    visits = counts[counts > 0].astype(int)
    rare, few = visits < 20, uncertainty.count(visits, 0.95)
    assert rare.any()
    assert (computed.high >= computed.value + np.log(visits / few.low) - 1e-12)[rare].all()
    assert (computed.low <= computed.value - np.log(few.high / visits) + 1e-12)[rare].all()
    often = computed.value < 1  # cells with thousands of values that know nothing of each other: by Poisson's law
    expected = 2 / np.sqrt(counts.max() * np.exp(-computed.value[often]))
    np.testing.assert_allclose((computed.high - computed.low)[often] / 2, expected, rtol=0.6)


def test_one_component_is_drawn_in_time(tmp_path):
    result = himach.run(Pca(components=1), *sample("villin"), cache="off", out=tmp_path)
    assert "surface" not in result
    (axes,) = result.plot().axes
    assert axes.get_xlabel() == "time / ps"
    assert axes.get_ylabel().startswith("component 1 (")
    assert (tmp_path / "pca.png").exists()
    assert np.load(tmp_path / "components.npy").shape == (1, 35, 3)


def test_few_frames_have_few_components_and_a_single_one_none():
    with pytest.warns(UserWarning, match="components=10 is cut to 3, 214 atoms in 4 frames have no more"):
        computed = plain.run(Pca(selection="name CA"), DCD, PSF, stop=4)
    assert computed["components"].shape == (3, 214, 3)
    assert computed["variance"]["share"].sum() == pytest.approx(1)
    with pytest.raises(himach.UsageError, match="pca: one frame does not vary"):
        plain.run(Pca(), DCD, PSF, stop=1)


def test_too_many_atoms():
    modes.check_memory(Pca(), 214, 8)
    with pytest.raises(himach.UsageError, match=r"pca: the covariance of 1,000,000 atoms needs 7\.92e\+05 GB"):
        modes.check_memory(Pca(), 1_000_000, 8)
