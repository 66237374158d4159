"""Survival of stays beside counting by hand, and water-residence beside waterdynamics."""

import MDAnalysis
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from MDAnalysis.lib.correlations import correct_intermittency
from scipy.stats import CensoredData, ecdf
from support import plain
from waterdynamics import SurvivalProbability

from himach import uncertainty
from himach.examples import sample
from himach.examples.interactions.survival import find_runs, occupancy, stay_tables, survival
from himach.examples.interactions.water_residence import WaterResidence

presence = st.lists(st.sets(st.integers(0, 4)), min_size=1, max_size=25)


def runs_of(sets, intermittency):
    atoms = sorted(set().union(*sets))
    return [find_runs(np.flatnonzero([atom in frame for frame in sets]), intermittency) for atom in atoms]


def by_sets(sets, tau_max):
    probability = []
    for tau in range(tau_max + 1):
        ratios = [
            len(set.intersection(*sets[t : t + tau + 1])) / len(sets[t]) for t in range(len(sets) - tau) if sets[t]
        ]
        probability.append(np.mean(ratios) if ratios else np.nan)
    return probability


@given(presence, st.integers(0, 4), st.data())
def test_survival_is_that_of_sets(sets, intermittency, data):
    tau_max = data.draw(st.integers(0, len(sets) - 1))
    result = survival(runs_of(sets, intermittency), len(sets), tau_max)
    np.testing.assert_allclose(result, by_sets(correct_intermittency(sets, intermittency), tau_max), rtol=1e-14)


def stays_one_by_one(present, intermittency):
    """How long each stay that begins after the first frame was seen to last, in frames, and whether it ended."""
    filled, n = present.copy(), len(present)
    for gap in np.flatnonzero(~present):
        before, after = np.flatnonzero(present[:gap]), np.flatnonzero(present[gap:])
        if len(before) and len(after) and after[0] + gap - before[-1] <= intermittency + 1:
            filled[gap] = True
    stays, t = [], 0
    while t < n:
        if not filled[t]:
            t += 1
            continue
        end = t
        while end < n and filled[end]:
            end += 1
        if t > intermittency:
            ended = end + intermittency < n
            stays.append((end - t if ended else max(0, n - 1 - intermittency - t), ended))
        t = end
    return stays


@given(st.lists(st.lists(st.booleans(), min_size=12, max_size=12), min_size=1, max_size=6), st.integers(0, 2))
def test_lasting_beside_stays_one_by_one(present, intermittency):
    present = np.array(present)
    assume(present.any())
    stays = [stay for atom in present for stay in stays_one_by_one(atom, intermittency)]
    runs = [find_runs(np.flatnonzero(atom), intermittency) for atom in present if atom.any()]
    curve, mean = stay_tables(runs, 12, 0.5, intermittency)
    assert (mean["stays"][0], mean["ended"][0]) == (len(stays), sum(ended for _, ended in stays))
    lasted, ended = (np.array(column) for column in zip(*stays, strict=True)) if stays else (np.zeros(0), np.zeros(0))
    if not lasted.any():
        assert np.isnan(mean["mean_ps"][0]) and curve["lasting"].tolist() == [1]
        return
    if ended.any():
        assert mean["mean_ps"][0] == pytest.approx(0.5 * lasted.sum() / ended.sum())
        expected = ecdf(CensoredData(uncensored=0.5 * lasted[ended], right=0.5 * lasted[~ended])).sf
        np.testing.assert_allclose(curve["lasting"], np.append(1, expected.evaluate(curve["time_ps"][1:])), atol=1e-12)
    else:
        assert np.isinf(mean["mean_ps"][0])
    for column in curve.estimates["lasting"], mean.estimates["mean_ps"]:
        assert np.shape(column(0.9).low) in {(), curve["lasting"].shape}


@given(st.lists(st.lists(st.lists(st.booleans(), min_size=9, max_size=9), min_size=1, max_size=3), max_size=4))
def test_occupancy_beside_frames_one_by_one(things):
    things = [np.array(thing) for thing in things if np.any(thing)]
    runs = [[find_runs(np.flatnonzero(atom)) for atom in thing if atom.any()] for thing in things]
    result = occupancy(runs, 9)
    np.testing.assert_allclose(result.values, [thing.any(axis=0).mean() for thing in things])
    limits = result.estimate(0.9)
    for thing, low, high in zip(things, limits.low, limits.high, strict=True):
        present = thing.any(axis=0).astype(float)
        n_eff = 1 if present.all() else 9 / uncertainty.inefficiency(present)
        expected = uncertainty.proportion(present.mean() * n_eff, n_eff, 0.9)
        np.testing.assert_allclose([low, high], [expected.low, expected.high])


def test_of_what_is_always_there_nobody_knows_how_long_it_is_away():
    result = occupancy([[find_runs(np.arange(200))], [find_runs(np.arange(0, 200, 2))]], 200).estimate(0.9)
    assert np.isnan(result.low[0]) and np.isnan(result.high[0])
    assert result.low[1] < 0.5 < result.high[1]
    alternating = [find_runs(np.append(np.arange(0, 8192, 2), 8191))]
    assert occupancy([alternating], 8192).estimate(0.9).n_eff <= 8192


def test_absences_that_are_bridged_do_not_make_stays_longer():
    """Stays of 30 frames on average, away for 40: absences of up to 5 frames are bridged, in runs of 100 frames."""
    rng = np.random.default_rng(2)
    runs, bridged = [], []
    for steps in np.cumsum(
        np.stack([rng.geometric(1 / 30, (4000, 30)), rng.geometric(1 / 40, (4000, 30))], axis=2).reshape(4000, -1),
        axis=1,
    ):
        states = np.searchsorted(steps, np.arange(500, 600), side="right") % 2 == 0
        runs += [find_runs(np.flatnonzero(states), 5)] if states.any() else []
        # A long run of the same atom tells how long stays are with what is bridged.
        whole = np.searchsorted(steps, np.arange(steps[-1]), side="right") % 2 == 0
        bridged.append(np.frombuffer(find_runs(np.flatnonzero(whole), 5), np.int64)[3:-2:2])
    _, mean = stay_tables(runs, 100, 1.0, 5)
    assert mean["mean_ps"][0] == pytest.approx(np.concatenate(bridged).mean(), rel=0.06)


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


def test_atoms_of_the_solute_are_no_water():
    trajectory, topology = sample("nanopore")
    table = plain.run(WaterResidence(water="name O K", solute="name K", tau_max=3), trajectory, topology, stop=5)
    other = plain.run(WaterResidence(water="name O", solute="name K", tau_max=3), trajectory, topology, stop=5)
    np.testing.assert_array_equal(table["survival"]["survival"], other["survival"]["survival"])
