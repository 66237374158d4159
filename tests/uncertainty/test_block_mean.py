"""Series: their mean, inefficiency, halves and equilibration, beside slow twins, SciPy and what is known of them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from uncertainty import series

from himach.uncertainty import equilibration, halves, inefficiency, mean

WALKS = st.lists(st.integers(-3, 3), min_size=1, max_size=60)


@given(WALKS, st.booleans())
def test_the_inefficiency_is_that_of_the_slow_twin(steps, summed):
    values = np.cumsum(steps) if summed else np.array(steps)
    # Where a pair of lags is 0 but for rounding, one may end the sum and the other not: what is added is as small.
    assert inefficiency(values) == pytest.approx(series.inefficiency(values.tolist()), rel=1e-6)


@given(WALKS, st.integers(-5, 5), st.sampled_from([-4.0, 0.5, 2.0**400, 2.0**-400]))
def test_units_do_not_matter_for_the_inefficiency(steps, shift, unit):
    values = np.cumsum(steps).astype(float)
    assert inefficiency((values + shift) * unit) == pytest.approx(inefficiency(values), rel=1e-6)


@pytest.mark.parametrize("phi", [0, 0.5, 0.9])
def test_the_inefficiency_is_that_of_the_process(phi):
    random = np.random.default_rng(1)
    result = [inefficiency(values) for values in series.first_order(random, phi, 4000, 40)]
    assert np.mean(result) == pytest.approx((1 + phi) / (1 - phi), rel=0.06)


def mean_by_loop(values, level):
    """Return the mean, its limits and the blocks, by the rule as it is written down."""
    n_eff = len(values) / series.inefficiency(values)
    value = math.fsum(values) / len(values)
    if n_eff < 8:
        return value, math.nan, math.nan, 0
    blocks = int(min(20, max(4, n_eff / 8)))
    length = len(values) // blocks
    first = len(values) - blocks * length
    means = [math.fsum(values[first + b * length : first + (b + 1) * length]) / length for b in range(blocks)]
    middle = math.fsum(means) / blocks
    variance = math.fsum((m - middle) ** 2 for m in means) / (blocks - 1)
    half = stats.t.ppf((1 + level) / 2, blocks - 1) * math.sqrt(variance / blocks)
    return value, value - half, value + half, blocks


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.95, 0.999]))
def test_it_is_what_the_loop_finds(values, level):
    result = mean(values, level)
    value, low, high, blocks = mean_by_loop([float(v) for v in values], level)
    assert [result.value, result.low, result.high] == pytest.approx([value, low, high], rel=1e-9, abs=1e-9, nan_ok=True)
    assert (result.blocks, result.converged, result.level) == (blocks, blocks > 0, level)
    assert np.isfinite([result.error, result.half_width]).tolist() == [blocks > 0] * 2


@pytest.mark.parametrize("constant", [0.1, 0.0, -7e300, 1e308, 5e-324])
@pytest.mark.parametrize("n", [8, 9, 1000])
def test_a_constant_is_known_exactly(constant, n):
    result = mean([constant] * n)
    assert result.value == result.low == result.high == constant
    assert (result.n_eff, result.inefficiency, result.error) == (n, 1, 0)


@given(st.integers(0, 150))
def test_values_before_the_start_do_not_count(start):
    values = np.random.default_rng(2).normal(size=200)
    result, alone = mean(values, start=start), mean(values[start:])
    assert result.start == start
    assert [result.value, result.low, result.high, result.n_eff] == [alone.value, alone.low, alone.high, alone.n_eff]


def blocks_of(half):
    blocks = int(min(20, max(4, len(half) / inefficiency(half) / 8)))
    length = len(half) // blocks
    return half[len(half) - blocks * length :].reshape(blocks, length).mean(axis=1)


@pytest.mark.parametrize("n", [400, 401])
@pytest.mark.parametrize("start", [0, 33])
def test_halves_have_welchs_interval_over_the_blocks(n, start):
    values = np.random.default_rng(5).normal(size=n) * np.linspace(1, 3, n) + np.arange(n) / n
    used = values[start:]
    first, second = used[: len(used) // 2], used[-(len(used) // 2) :]
    result = halves(values, 0.9, start=start)
    between = stats.ttest_ind(blocks_of(second), blocks_of(first), equal_var=False).confidence_interval(0.9)
    assert result.value == pytest.approx(second.mean() - first.mean(), rel=1e-12)
    assert result.high - result.low == pytest.approx(between.high - between.low, rel=1e-9)
    assert (result.low + result.high) / 2 == pytest.approx(result.value)
    assert result.blocks == len(blocks_of(first)) + len(blocks_of(second))
    assert result.n_eff == mean(first).n_eff + mean(second).n_eff
    assert result.converged


def test_halves_of_too_few_values_are_not_converged():
    for values in ([1.0], [1.0, 2.0], np.arange(200.0)):
        result = halves(values)
        assert not result.converged
        assert math.isnan(result.low) and math.isnan(result.high)
        assert result.blocks == 0
    assert halves([1.0, 2.0]).value == 1


def test_halves_without_spread_have_no_width():
    result = halves([2.5] * 100)
    assert (result.value, result.low, result.high, result.converged) == (0, 0, 0, True)
    step = halves([0.1] * 50 + [0.3] * 50)
    assert step.low == step.high == step.value == pytest.approx(0.2)


N, SERIES = 1500, 20


def transients(decay, length=N):
    """Return series that begin five deviations above their mean, and lose the offset in so many values."""
    values = series.first_order(np.random.default_rng(6), 0.6, length, SERIES)
    return values + (5 * np.exp(-np.arange(length) / decay) if decay else 0)


def start_by_loop(values):
    """Return of all starts that one with the least squared standard error."""
    starts = range(int(0.9 * len(values)))
    errors = [np.var(values[s:]) * inefficiency(values[s:]) / (len(values) - s) for s in starts]
    enough = [len(values) - s >= 8 * inefficiency(values[s:]) for s in starts]
    return int(np.argmin(np.where(enough, errors, np.inf))) if any(enough) else 0


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=180), st.integers(0, 50))
def test_the_start_is_that_of_least_error(values, offset):
    values = np.array(values, dtype=float)
    values[:10] += offset
    result, best = equilibration(values), start_by_loop(values)
    if result != best:  # errors may be the same but for rounding
        errors = [np.var(values[s:]) * inefficiency(values[s:]) / (len(values) - s) for s in (result, best)]
        assert errors[0] == pytest.approx(errors[1], rel=1e-6)


def test_of_a_series_in_equilibrium_little_is_left_out():
    assert np.median([equilibration(values) for values in transients(0)]) <= 0.05 * N


def test_a_long_series_is_found_as_a_short_one():
    result = [equilibration(values) for values in transients(2000, 50_000)[:8]]
    assert all(2000 < start < 5 * 2000 for start in result)
    assert all(start % 7 == 0 for start in result), "of bins of 7 values"


@pytest.mark.parametrize("unit", [1e300, 1e-300])
def test_units_do_not_matter_for_the_start(unit):
    values = transients(20)[0]
    assert equilibration(values * unit) == equilibration(values) > 0
