"""Counts and proportions: the published limits, exact coverage, bursts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from himach import UsageError
from himach.uncertainty import count, proportion

LEVELS = st.sampled_from([0.5, 0.9, 0.95, 0.999])


@given(st.integers(1, 10**6), LEVELS)
def test_limits_of_a_count_are_garwoods(k, level):
    found = count(k, level)
    assert found.low == pytest.approx(stats.chi2.ppf((1 - level) / 2, 2 * k) / 2)
    assert found.high == pytest.approx(stats.chi2.ppf((1 + level) / 2, 2 * k + 2) / 2)
    assert (found.value, found.n_eff, found.method, found.converged) == (k, k, "Garwood's limits", True)
    # What they are: k or more of the lower mean, k or fewer of the upper one, are as improbable as the level says.
    assert stats.poisson.sf(k - 1, found.low) == pytest.approx((1 - level) / 2, rel=1e-5)


def test_no_event_has_an_upper_limit_only():
    found = count(0)
    assert (found.value, found.low) == (0, 0)
    assert found.high == pytest.approx(3.689, abs=1e-3)
    assert found.method == "Garwood's limits; no event: an upper limit only"
    assert "an upper limit only" in str(found)


def test_a_rate_is_a_count_by_time():
    events, rate = count(7), count(7, time=250.0)
    assert [rate.value, rate.low, rate.high] == pytest.approx([x / 250 for x in (7, events.low, events.high)])


def test_counts_may_be_many():
    many = count([0, 3, 12])
    assert many.low == pytest.approx([count(k).low for k in (0, 3, 12)])
    assert many.high == pytest.approx([count(k).high for k in (0, 3, 12)])
    assert "an upper limit only" in many.method


@pytest.mark.nightly(but=5)
@pytest.mark.parametrize("mean", np.geomspace(0.5, 50, 25))
def test_a_count_contains_the_truth_as_often_as_it_says(mean):
    found = count(np.arange(300))
    inside = (found.low <= mean) & (mean <= found.high)
    assert stats.poisson.pmf(np.arange(300), mean)[inside].sum() >= 0.95


def test_bursts_are_told_and_widen_the_interval():
    blocks = [0, 0, 31, 2, 0, 0, 25, 0]
    found = count(58, blocks=blocks)
    assert found.method.startswith("Student's t over blocks: events in bursts, Fano factor")
    error = np.std(blocks, ddof=1) * math.sqrt(8)
    assert found.high == pytest.approx(58 + stats.t.ppf(0.975, 7) * error)
    assert found.low == 0, "there are no fewer events than none"
    assert found.blocks == 8
    assert found.n_eff < 58
    assert count(58, time=2.0, blocks=blocks).high == pytest.approx(found.high / 2)


def test_events_without_memory_are_not_taken_for_bursts():
    random = np.random.default_rng(1)
    drawn = random.poisson(6, size=(2000, 8))
    told = np.mean([count(blocks.sum(), blocks=blocks).blocks > 0 for blocks in drawn])
    assert 0.001 < told < 0.02
    found = count(drawn[0].sum(), blocks=drawn[0])
    assert "Garwood's limits; Fano factor" in found.method
    assert found.high == count(drawn[0].sum()).high


def test_blocks_without_events_or_too_few_tell_nothing():
    assert count(0, blocks=[0, 0, 0, 0]).high == count(0).high
    assert count(40, blocks=[40, 0, 0]).method == "Garwood's limits"


@pytest.mark.parametrize(
    "arguments, options, words",
    [
        ((-1,), {}, "k cannot be negative, as -1 is"),
        ((1.5,), {}, "k must be whole numbers of events"),
        ((math.nan,), {}, "k has 1 values that are nan or infinite"),
        ((3,), {"time": 0.0}, "time must be positive and finite, not 0.0"),
        ((3,), {"time": math.inf}, "time must be positive"),
        ((3,), {"blocks": [1, 1]}, "blocks add up to 2 events, not to the 3 of k"),
        (([3, 4],), {"blocks": [3, 4]}, "for a single k"),
        ((3, 2), {}, "level must be"),
    ],
)
def test_what_is_no_count_is_refused(arguments, options, words):
    with pytest.raises(UsageError, match=words):
        count(*arguments, **options)


@given(st.integers(0, 300), st.integers(8, 300), LEVELS)
def test_limits_of_a_proportion_are_wilsons(k, n, level):
    k = min(k, n)
    found = proportion(k, n, level)
    interval = stats.binomtest(k, n).proportion_ci(level, method="wilson")
    assert [found.low, found.high] == pytest.approx([interval.low, interval.high], abs=1e-12)
    assert found.value == k / n
    assert 0 <= found.low <= found.value <= found.high <= 1


def test_below_eight_independent_trials_there_is_no_interval():
    found = proportion(3, 7.9)
    assert not found.converged
    assert np.isnan([found.low, found.high]).all()
    assert np.isnan([proportion(0, 3).low, proportion(3, 3).high]).all()
    assert "not converged (N_eff 7.9)" in str(found)


def test_proportions_may_be_many():
    many = proportion([0, 3.5, 12], 12)
    assert many.high == pytest.approx([proportion(k, 12).high for k in (0, 3.5, 12)])


@pytest.mark.parametrize("n", [20, 50, 200])
@pytest.mark.parametrize("p", [0.05, 0.2, 0.5, 0.9])
def test_a_proportion_contains_the_truth_as_often_as_it_should(n, p):
    k = np.arange(n + 1)
    found = proportion(k, n)
    covered = stats.binom.pmf(k, n, p)[(found.low <= p) & (p <= found.high)].sum()
    assert 0.92 <= covered <= 0.98


@pytest.mark.parametrize("k, n_eff", [(-1, 10), (11, 10), (1, 0), (1, -3), (math.nan, 10), (1, math.inf)])
def test_what_is_no_proportion_is_refused(k, n_eff):
    with pytest.raises(UsageError, match=r"k must lie between 0 and n_eff|nan or infinite"):
        proportion(k, n_eff)
