"""Stays: Kaplan and Meier's curve beside SciPy's, and means without bias where most stays are cut off."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from himach import UsageError
from himach.uncertainty import mean_stay, stays

STAYS = st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=40)


@given(STAYS, st.sampled_from([0.8, 0.95]))
def test_the_curve_is_that_of_scipy(given_stays, level):
    durations, ended = np.array([d for d, _ in given_stays]), np.array([e for _, e in given_stays])
    found = stays(durations, ended, level)
    if not ended.any():
        assert found.times.tolist() == [0]
        return
    data = stats.CensoredData(uncensored=durations[ended], right=durations[~ended])
    curve = stats.ecdf(data).sf
    assert found.survival[1:] == pytest.approx(curve.evaluate(found.times[1:]))
    assert found.times[1:].tolist() == sorted(set(durations[ended].tolist()))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where none is left
        band = curve.confidence_interval(level, method="log-log")
    places = np.searchsorted(curve.quantiles, found.times[1:])
    left = found.survival[1:] > 0
    assert found.low[1:][left] == pytest.approx(band.low.probabilities[places][left], rel=1e-6)
    assert found.high[1:][left] == pytest.approx(band.high.probabilities[places][left], rel=1e-6)
    assert np.isnan(found.low[1:][~left]).all() and np.isnan(found.high[1:][~left]).all()


@given(STAYS)
def test_the_mean_is_all_time_over_stays_ended(given_stays):
    durations, ended = np.array([d for d, _ in given_stays]), np.array([e for _, e in given_stays])
    found = stays(durations, ended)
    assert (found.ended, found.cut) == (ended.sum(), (~ended).sum())
    if ended.any():
        assert found.mean.value == pytest.approx(durations.sum() / ended.sum())
        degrees = 2 * ended.sum() + 1
        limits = [2 * durations.sum() / stats.chi2.ppf(q, degrees) for q in (0.975, 0.025)]
        assert [found.mean.low, found.mean.high] == pytest.approx(limits)
    else:
        assert found.mean.value == found.mean.high == math.inf
        assert found.mean.low == pytest.approx(durations.sum() / -math.log(0.025))


def test_without_cuts_the_restricted_mean_is_the_mean():
    durations = np.random.default_rng(1).gamma(2, size=300)
    found = stays(durations, np.ones(300, dtype=bool)).restricted
    assert found.value == pytest.approx(durations.mean())
    assert found.error == pytest.approx(durations.std() / math.sqrt(300))
    assert found.low < found.value < found.high <= durations.max()


def test_the_restricted_mean_is_the_area_of_the_curve():
    found = stays([1, 2, 4, 5, 6], [True, False, True, False, False])
    # It is 1 up to 1, then 4/5 up to 4, then 8/15 up to 6.
    assert found.restricted.value == pytest.approx(1 + 3 * 4 / 5 + 2 * 8 / 15)
    # Greenwood's: areas beyond each end, 3.4667 and 1.0667, by deaths / (at risk * left), 1/20 and 1/6.
    beyond = (3 * 4 / 5 + 2 * 8 / 15, 2 * 8 / 15)
    assert found.restricted.error == pytest.approx(math.sqrt(beyond[0] ** 2 / 20 + beyond[1] ** 2 / 6))
    assert found.restricted.value + 1.96 * found.restricted.error > 6
    assert found.restricted.high == 6, "of no stay more was seen"
    assert not stays([1, 2], [True, False]).restricted.converged


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), min_size=1, max_size=20), st.sampled_from([0.5, 0.95]))
def test_mean_stays_of_many_are_those_of_each(drawn, level):
    kinds = [drawn, [(2.0, True)], [(3.0, False)], [(1.0, True), (4.0, False)]]
    total, ended = zip(*((sum(last for last, _ in kind), sum(over for _, over in kind)) for kind in kinds), strict=True)
    found = mean_stay(total, ended, level)
    assert "where no stay ended, a lower limit only" in found.method
    for i, kind in enumerate(kinds):
        if total[i] == 0:
            assert np.isnan([found.value[i], found.low[i], found.high[i]]).all()
            continue
        expected = stays(*zip(*kind, strict=True), level).mean
        np.testing.assert_allclose(
            [found.value[i], found.low[i], found.high[i], found.error[i]],
            [expected.value, expected.low, expected.high, expected.error],
            rtol=1e-12,
        )


@pytest.mark.parametrize(
    ("total", "ended", "error"),
    [
        ([1.0, 2.0], [1], "ended must have the shape of total"),
        ([-1.0], [1], "total"),
        ([1.0], [-1], "ended"),
        ([1.0], [0.5], "ended must be whole numbers of stays"),
        ([float("nan")], [1], "total has 1 values that are nan"),
    ],
)
def test_totals_that_are_none(total, ended, error):
    with pytest.raises(UsageError, match=error):
        mean_stay(total, ended)


def test_no_stay_ended_has_a_lower_limit_only():
    found = stays([3.0, 4.0], [False, False])
    assert "a lower limit only" in found.mean.method
    assert "inf" in str(found)
    assert found.survival.tolist() == found.low.tolist() == [1]


def test_it_says_what_it_found():
    text = str(stays([1.0, 2.0, 2.5, 4.0], [True, True, False, True]))
    assert text.startswith("mean stay 3")
    assert text.endswith("3 stays ended, 1 cut off")


@pytest.mark.parametrize(
    "durations, ended, words",
    [
        ([], [], "durations is empty"),
        ([1, -1], [True, True], "durations cannot be negative, as -1 is"),
        ([1, math.inf], [True, True], "the first at index 1"),
        ([0, 0], [True, True], "durations are all 0"),
        ([1, 2], [True], r"ended must have the shape of durations, \(2,\), not \(1,\)"),
        ([1, 2], [0.5, 1], "ended must be True or False"),
        ([[1, 2]], [[True, True]], r"shape \(n,\)"),
    ],
)
def test_what_are_no_stays_is_refused(durations, ended, words):
    with pytest.raises(UsageError, match=words):
        stays(durations, ended)


def watched(random, mean):
    """Return durations of stays that 300 sites entered, one each, at a random moment of a time of 1, and their ends."""
    entered, lasting = random.random(300), random.exponential(mean, 300)
    return np.minimum(lasting, 1 - entered), entered + lasting < 1


@pytest.mark.slow
@pytest.mark.parametrize("mean", [0.05, 0.5])
def test_a_mean_stay_is_unbiased_and_its_interval_contains_it(mean):
    random = np.random.default_rng(2)
    found = [stays(*watched(random, mean)) for _ in range(1000)]
    assert np.mean([each.mean.value for each in found]) == pytest.approx(mean, rel=0.02)
    assert 0.92 <= np.mean([each.mean.low <= mean <= each.mean.high for each in found]) <= 0.98
    truth = math.exp(-0.2 / mean)
    places = [np.searchsorted(each.times, 0.2, side="right") - 1 for each in found]
    inside = [each.low[i] <= truth <= each.high[i] for each, i in zip(found, places, strict=True)]
    assert 0.92 <= np.mean(inside) <= 0.985
