"""Inefficiency: the slow twin's, the known one's, and what does not change it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from uncertainty import series

from himach import UsageError
from himach.uncertainty import inefficiency

WALKS = st.lists(st.integers(-3, 3), min_size=1, max_size=60)


@given(WALKS, st.booleans())
def test_it_is_what_the_slow_twin_finds(steps, summed):
    values = np.cumsum(steps) if summed else np.array(steps)
    # Where a pair of lags is 0 but for rounding, one may end the sum and the other not: what is added is as small.
    assert inefficiency(values) == pytest.approx(series.inefficiency(values.tolist()), rel=1e-6)


@pytest.mark.parametrize("phi", [-0.5, 0.3, 0.8, 0.95])
def test_it_is_what_the_slow_twin_finds_of_long_memory(phi):
    for values in series.first_order(np.random.default_rng(2), phi, 200, 5):
        assert inefficiency(values) == pytest.approx(series.inefficiency(values.tolist()))


@given(WALKS, st.integers(-5, 5), st.sampled_from([-4.0, 0.5, 2.0**400, 2.0**-400]))
def test_units_do_not_matter(steps, shift, unit):
    values = np.cumsum(steps).astype(float)
    assert inefficiency((values + shift) * unit) == pytest.approx(inefficiency(values), rel=1e-6)


def test_values_that_compensate_each_other_count_as_independent():
    assert inefficiency([1, -1] * 50) == 1


@pytest.mark.parametrize("phi", [0, 0.5, 0.9])
def test_it_is_that_of_the_process(phi):
    random = np.random.default_rng(1)
    found = [inefficiency(values) for values in series.first_order(random, phi, 4000, 40)]
    assert np.mean(found) == pytest.approx((1 + phi) / (1 - phi), rel=0.06)


@pytest.mark.parametrize("values", [[3.0], [0.1] * 37, [1e308] * 5, [0, 0], [True, True]])
def test_a_constant_has_none(values):
    assert inefficiency(values) == 1


@pytest.mark.parametrize(
    "values, words",
    [
        ([], "values is empty"),
        ([1, np.nan, np.nan], "2 values that are nan or infinite, the first at index 1"),
        ([np.inf, 1], "the first at index 0"),
        ([[1, 2], [3, 4]], r"shape \(n,\), in time order, not \(2, 2\)"),
        (3.0, r"shape \(n,\), in time order, not \(\)"),
        (["a"], "real numbers, not <U1"),
        ([1j], "real numbers, not complex128"),
        ([[1], [2, 3]], "rows of unequal length"),
    ],
)
def test_what_is_no_series_is_refused(values, words):
    with pytest.raises(UsageError, match=words):
        inefficiency(values)
