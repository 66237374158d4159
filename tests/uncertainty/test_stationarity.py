"""Halves of a series: SciPy's Welch over the blocks of each, and how often halves of what is stationary agree."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from uncertainty import series

from himach import UsageError
from himach.uncertainty import halves, inefficiency, mean


def blocks_of(half):
    """Return the means of the blocks of a half."""
    blocks = int(min(20, max(4, len(half) / inefficiency(half) / 8)))
    length = len(half) // blocks
    return half[len(half) - blocks * length :].reshape(blocks, length).mean(axis=1)


@pytest.mark.parametrize("n", [400, 401])
@pytest.mark.parametrize("start", [0, 33])
def test_it_is_welchs_interval_over_the_blocks(n, start):
    values = np.random.default_rng(5).normal(size=n) * np.linspace(1, 3, n) + np.arange(n) / n
    used = values[start:]
    first, second = used[: len(used) // 2], used[-(len(used) // 2) :]
    found = halves(values, 0.9, start=start)
    between = stats.ttest_ind(blocks_of(second), blocks_of(first), equal_var=False).confidence_interval(0.9)
    assert found.value == pytest.approx(second.mean() - first.mean(), rel=1e-12)
    assert found.high - found.low == pytest.approx(between.high - between.low, rel=1e-9)
    assert (found.low + found.high) / 2 == pytest.approx(found.value)
    assert found.blocks == len(blocks_of(first)) + len(blocks_of(second))
    assert found.n_eff == mean(first).n_eff + mean(second).n_eff
    assert found.converged


def test_halves_of_what_is_stationary_agree_and_of_a_step_do_not():
    rng = np.random.default_rng(2)
    steady = [halves(series.first_order(rng, 0.9, 4000)) for _ in range(300)]
    agree = np.mean([each.low <= 0 <= each.high for each in steady])
    assert 0.91 <= agree <= 0.98
    step = np.repeat([0.0, 1.0], 500) + rng.normal(size=1000)
    assert halves(step).low > 0.8


def test_too_few_values_tell_nothing():
    for values in ([1.0], [1.0, 2.0], np.arange(200.0)):
        found = halves(values)
        assert not found.converged
        assert math.isnan(found.low) and math.isnan(found.high)
        assert found.blocks == 0
    assert halves([1.0, 2.0]).value == 1


def test_values_without_spread_have_no_width():
    found = halves([2.5] * 100)
    assert (found.value, found.low, found.high, found.converged) == (0, 0, 0, True)
    step = halves([0.1] * 50 + [0.3] * 50)
    assert step.low == step.high == step.value == pytest.approx(0.2)


def test_what_is_none_is_refused():
    with pytest.raises(UsageError, match="values is empty"):
        halves([])
    with pytest.raises(UsageError, match="start must be an index"):
        halves([1.0], start=1)
    with pytest.raises(UsageError, match="level"):
        halves([1.0], 95)
