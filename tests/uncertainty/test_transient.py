"""Where a series is equilibrated: a transient of known length left out, beside what others find."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import needs
from uncertainty import series

from himach import UsageError
from himach.uncertainty import equilibration, inefficiency

N, SERIES = 1500, 20


def drawn(decay, length=N, phi=0.6):
    """Return series that begin five deviations above their mean, and lose the offset in so many values."""
    values = series.first_order(np.random.default_rng(6), phi, length, SERIES)
    return values + (5 * np.exp(-np.arange(length) / decay) if decay else 0)


def by_loop(values):
    """Return of all starts that one with the least squared standard error."""
    starts = range(int(0.9 * len(values)))
    errors = [np.var(values[s:]) * inefficiency(values[s:]) / (len(values) - s) for s in starts]
    enough = [len(values) - s >= 8 * inefficiency(values[s:]) for s in starts]
    return int(np.argmin(np.where(enough, errors, np.inf))) if any(enough) else 0


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=180), st.integers(0, 50))
def test_it_is_the_start_of_least_error(values, offset):
    values = np.array(values, dtype=float)
    values[:10] += offset
    found, best = equilibration(values), by_loop(values)
    if found != best:  # errors may be the same but for rounding
        errors = [np.var(values[s:]) * inefficiency(values[s:]) / (len(values) - s) for s in (found, best)]
        assert errors[0] == pytest.approx(errors[1], rel=1e-6)


@pytest.mark.parametrize("decay", [20, 60])
def test_a_transient_is_left_out_and_little_more(decay):
    found = [equilibration(values) for values in drawn(decay)]
    assert decay < np.median(found) < 4 * decay
    assert max(found) < N / 2


def test_of_a_series_in_equilibrium_little_is_left_out():
    assert np.median([equilibration(values) for values in drawn(0)]) <= 0.05 * N


def test_a_long_series_is_found_as_a_short_one():
    found = [equilibration(values) for values in drawn(2000, 50_000)[:8]]
    assert all(2000 < start < 5 * 2000 for start in found)
    assert all(start % 7 == 0 for start in found), "of bins of 7 values"


def test_nothing_is_left_out_where_too_little_would_be_left():
    assert equilibration(np.arange(50.0)) == 0
    assert equilibration([3.0]) == 0
    assert equilibration([0.0] * 30) == 0


@pytest.mark.parametrize("unit", [1e300, 1e-300])
def test_units_do_not_matter(unit):
    values = drawn(20)[0]
    assert equilibration(values * unit) == equilibration(values) > 0


def test_what_is_no_series_is_refused():
    with pytest.raises(UsageError, match="values is empty"):
        equilibration([])
    with pytest.raises(UsageError, match="the first at index 1"):
        equilibration([0, np.nan])


@pytest.mark.slow
@pytest.mark.parametrize("decay", [20, 60])
def test_it_lies_where_others_find_it(decay):
    red, _ = needs.module("red"), needs.module("pymbar")
    from pymbar.timeseries import detect_equilibration

    values = drawn(decay)
    ours = np.median([equilibration(each) for each in values])
    theirs = [
        np.median([red.detect_equilibration_init_seq(each)[0] for each in values]),
        np.median([detect_equilibration(each)[0] for each in values]),
    ]
    assert min(theirs) - N / 200 <= ours <= max(theirs) + N / 200
