"""The mean of a series: the explicit loop's blocks, its rule, and how often it contains the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from uncertainty import series

from himach import UsageError
from himach.uncertainty import mean
from himach.uncertainty.block_mean import n_blocks


def by_loop(values, level):
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
    found = mean(values, level)
    value, low, high, blocks = by_loop([float(v) for v in values], level)
    assert [found.value, found.low, found.high] == pytest.approx([value, low, high], rel=1e-9, abs=1e-9, nan_ok=True)
    assert (found.blocks, found.converged, found.level) == (blocks, blocks > 0, level)


@pytest.mark.parametrize(
    "n_eff, blocks", [(1, 0), (7.99, 0), (8, 4), (39.9, 4), (40, 5), (47.9, 5), (64, 8), (160, 20), (1e6, 20)]
)
def test_the_rule_for_blocks(n_eff, blocks):
    assert n_blocks(n_eff) == blocks


def test_below_eight_independent_values_there_is_no_interval():
    walk = mean(np.arange(100.0))
    assert not walk.converged
    assert math.isnan(walk.low) and math.isnan(walk.high) and math.isnan(walk.error) and math.isnan(walk.half_width)
    assert walk.value == 49.5
    assert walk.blocks == 0
    assert walk.n_eff < 8
    assert "not converged (N_eff" in str(walk)
    assert not mean([1, 2, 1, 2, 1, 2, 1]).converged
    assert mean([1, 2, 1, 2, 1, 2, 1, 2]).converged


@pytest.mark.parametrize("constant", [0.1, 0.0, -7e300, 1e308, 5e-324])
@pytest.mark.parametrize("n", [8, 9, 1000])
def test_a_constant_is_known_exactly(constant, n):
    found = mean([constant] * n)
    assert found.value == found.low == found.high == constant
    assert (found.n_eff, found.inefficiency, found.error) == (n, 1, 0)


@given(st.integers(0, 150))
def test_values_before_the_start_do_not_count(start):
    values = np.random.default_rng(2).normal(size=200)
    found, alone = mean(values, start=start), mean(values[start:])
    assert found.start == start
    assert [found.value, found.low, found.high, found.n_eff] == [alone.value, alone.low, alone.high, alone.n_eff]


@pytest.mark.parametrize("level", [0, 1, -0.5, 95, math.nan, "0.95", None, True])
def test_a_level_is_between_0_and_1(level):
    with pytest.raises(UsageError, match=r"level must be a number between 0 and 1, such as 0\.95, not"):
        mean([1.0, 2.0], level)


@pytest.mark.parametrize("start", [-1, 2, 1.0, True])
def test_a_start_is_an_index(start):
    with pytest.raises(UsageError, match="start must be an index from 0 to 1, not"):
        mean([1.0, 2.0], start=start)


@pytest.mark.slow
@pytest.mark.parametrize("phi, n_eff, widest", [(0.9922, 16, 1.42), (0.9693, 64, 1.22), (0.7778, 512, 1.07)])
def test_intervals_contain_the_truth(phi, n_eff, widest):
    found = [mean(values) for values in series.first_order(np.random.default_rng(4), phi, 4096, 500)]
    made = [each for each in found if each.converged]
    assert len(made) > 470
    assert 0.90 <= np.mean([each.low <= 0 <= each.high for each in made]) <= 0.98
    assert 0.95 <= np.mean([each.half_width for each in made]) / (1.96 / math.sqrt(n_eff)) <= widest
