"""Counts, proportions and stays: published limits, bursts, SciPy's curve of Kaplan and Meier."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from himach.uncertainty import count, mean_stay, proportion, stays

LEVELS = st.sampled_from([0.5, 0.9, 0.95, 0.999])


@given(st.integers(1, 10**6), LEVELS)
def test_limits_of_a_count_are_garwoods(k, level):
    result = count(k, level)
    assert result.low == pytest.approx(stats.chi2.ppf((1 - level) / 2, 2 * k) / 2)
    assert result.high == pytest.approx(stats.chi2.ppf((1 + level) / 2, 2 * k + 2) / 2)
    assert (result.value, result.n_eff, result.method, result.converged) == (k, k, "Garwood's limits", True)
    # What they are: k or more of the lower mean, k or fewer of the upper one, are as improbable as the level says.
    assert stats.poisson.sf(k - 1, result.low) == pytest.approx((1 - level) / 2, rel=1e-5)


def test_no_event_has_an_upper_limit_only():
    result = count(0)
    assert (result.value, result.low) == (0, 0)
    assert result.high == pytest.approx(3.689, abs=1e-3)
    assert result.method == "Garwood's limits; no event: an upper limit only"
    assert "an upper limit only" in str(result)


def test_a_rate_is_a_count_by_time():
    events, rate = count(7), count(7, time=250.0)
    assert [rate.value, rate.low, rate.high] == pytest.approx([x / 250 for x in (7, events.low, events.high)])


def test_counts_may_be_many():
    many = count([0, 3, 12])
    assert many.low == pytest.approx([count(k).low for k in (0, 3, 12)])
    assert many.high == pytest.approx([count(k).high for k in (0, 3, 12)])
    assert "an upper limit only" in many.method


def test_bursts_are_told_and_widen_the_interval():
    blocks = [0, 0, 31, 2, 0, 0, 25, 0]
    result = count(58, blocks=blocks)
    assert result.method.startswith("Student's t over blocks: events in bursts, Fano factor")
    error = np.std(blocks, ddof=1) * math.sqrt(8)
    assert result.high == pytest.approx(58 + stats.t.ppf(0.975, 7) * error)
    assert result.low == 0, "there are no fewer events than none"
    assert result.blocks == 8
    assert result.n_eff < 58
    assert count(58, time=2.0, blocks=blocks).high == pytest.approx(result.high / 2)


def test_events_without_memory_are_not_taken_for_bursts():
    random = np.random.default_rng(1)
    drawn = random.poisson(6, size=(2000, 8))
    share = np.mean([count(blocks.sum(), blocks=blocks).blocks > 0 for blocks in drawn])
    assert 0.001 < share < 0.02
    result = count(drawn[0].sum(), blocks=drawn[0])
    assert "Garwood's limits; Fano factor" in result.method
    assert result.high == count(drawn[0].sum()).high


def test_blocks_without_events_or_too_few_tell_nothing():
    assert count(0, blocks=[0, 0, 0, 0]).high == count(0).high
    assert count(40, blocks=[40, 0, 0]).method == "Garwood's limits"


@given(st.integers(0, 300), st.integers(8, 300), LEVELS)
def test_limits_of_a_proportion_are_wilsons(k, n, level):
    k = min(k, n)
    result = proportion(k, n, level)
    interval = stats.binomtest(k, n).proportion_ci(level, method="wilson")
    assert [result.low, result.high] == pytest.approx([interval.low, interval.high], abs=1e-12)
    assert result.value == k / n
    assert 0 <= result.low <= result.value <= result.high <= 1


def test_below_eight_independent_trials_there_is_no_interval():
    result = proportion(3, 7.9)
    assert not result.converged
    assert np.isnan([result.low, result.high]).all()
    assert np.isnan([proportion(0, 3).low, proportion(3, 3).high]).all()
    assert "not converged (N_eff 7.9)" in str(result)


def test_proportions_may_be_many():
    many = proportion([0, 3.5, 12], 12)
    assert many.high == pytest.approx([proportion(k, 12).high for k in (0, 3.5, 12)])


STAYS = st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=40)


@given(STAYS, st.sampled_from([0.8, 0.95]))
def test_the_curve_is_that_of_scipy(given_stays, level):
    durations, ended = np.array([d for d, _ in given_stays]), np.array([e for _, e in given_stays])
    result = stays(durations, ended, level)
    if not ended.any():
        assert result.times.tolist() == [0]
        return
    data = stats.CensoredData(uncensored=durations[ended], right=durations[~ended])
    curve = stats.ecdf(data).sf
    assert result.survival[1:] == pytest.approx(curve.evaluate(result.times[1:]))
    assert result.times[1:].tolist() == sorted(set(durations[ended].tolist()))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where none is left
        band = curve.confidence_interval(level, method="log-log")
    places = np.searchsorted(curve.quantiles, result.times[1:])
    left = result.survival[1:] > 0
    assert result.low[1:][left] == pytest.approx(band.low.probabilities[places][left], rel=1e-6)
    assert result.high[1:][left] == pytest.approx(band.high.probabilities[places][left], rel=1e-6)
    assert np.isnan(result.low[1:][~left]).all() and np.isnan(result.high[1:][~left]).all()


@given(STAYS)
def test_the_mean_is_all_time_over_stays_ended(given_stays):
    durations, ended = np.array([d for d, _ in given_stays]), np.array([e for _, e in given_stays])
    result = stays(durations, ended)
    assert (result.ended, result.cut) == (ended.sum(), (~ended).sum())
    if ended.any():
        assert result.mean.value == pytest.approx(durations.sum() / ended.sum())
        degrees = 2 * ended.sum() + 1
        limits = [2 * durations.sum() / stats.chi2.ppf(q, degrees) for q in (0.975, 0.025)]
        assert [result.mean.low, result.mean.high] == pytest.approx(limits)
    else:
        assert result.mean.value == result.mean.high == math.inf
        assert result.mean.low == pytest.approx(durations.sum() / -math.log(0.025))


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), min_size=1, max_size=20), st.sampled_from([0.5, 0.95]))
def test_mean_stays_of_many_are_those_of_each(drawn, level):
    kinds = [drawn, [(2.0, True)], [(3.0, False)], [(1.0, True), (4.0, False)]]
    total, ended = zip(*((sum(last for last, _ in kind), sum(over for _, over in kind)) for kind in kinds), strict=True)
    result = mean_stay(total, ended, level)
    assert "where no stay ended, a lower limit only" in result.method
    for i, kind in enumerate(kinds):
        if total[i] == 0:
            assert np.isnan([result.value[i], result.low[i], result.high[i]]).all()
            continue
        expected = stays(*zip(*kind, strict=True), level).mean
        np.testing.assert_allclose(
            [result.value[i], result.low[i], result.high[i], result.error[i]],
            [expected.value, expected.low, expected.high, expected.error],
            rtol=1e-12,
        )


def test_it_says_what_it_found():
    text = str(stays([1.0, 2.0, 2.5, 4.0], [True, True, False, True]))
    assert text.startswith("mean stay 3")
    assert text.endswith("3 stays ended, 1 cut off")
