"""Independent runs: Student's t over them, and what they say of their own errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from himach import UsageError
from himach.uncertainty import mean, replicas

NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=12)


@given(NUMBERS, st.sampled_from([0.5, 0.95, 0.99]))
def test_it_is_students_t(means, level):
    found = replicas(means, level)
    error = np.std(means, ddof=1) / math.sqrt(len(means))
    half = stats.t.ppf((1 + level) / 2, len(means) - 1) * error
    assert found.value == pytest.approx(np.mean(means))
    assert [found.low, found.high] == pytest.approx([np.mean(means) - half, np.mean(means) + half])
    assert found.between == pytest.approx(np.std(means, ddof=1))
    assert (found.n_eff, found.blocks, found.converged) == (len(means), len(means), True)
    assert math.isnan(found.within)


def test_two_runs_say_what_their_interval_is_worth():
    found = replicas([1.0, 1.2])
    assert found.half_width == pytest.approx(12.706 * 0.1, rel=1e-4)
    assert found.method.startswith("Student's t over 2 runs: t = 12.7")
    assert "t = 12.7" in str(found)
    assert replicas([1, 1.2, 1.1]).method == "Student's t over 3 runs"
    assert "3 runs" in str(replicas([1, 1.2, 1.1]))


def test_a_single_run_has_no_interval():
    found = replicas([3.0])
    assert not found.converged
    assert found.value == 3
    assert np.isnan([found.low, found.high, found.between]).all()
    assert "not converged" in str(found)


def test_runs_bring_their_own_errors():
    random = np.random.default_rng(1)
    runs = [mean(random.normal(size=800)) for _ in range(4)]
    found = replicas(runs)
    assert found.within == pytest.approx(math.sqrt(np.mean([run.error**2 for run in runs])))
    plain = replicas([run.value for run in runs], errors=[run.error for run in runs])
    assert (plain.low, plain.high, plain.within) == (found.low, found.high, found.within)
    assert replicas([1.0, 2.0], errors=[3.0, 4.0]).within == pytest.approx(math.sqrt(12.5))


def test_curves_of_runs_are_taken_bin_by_bin():
    curves = np.random.default_rng(2).normal(size=(5, 3))
    found = replicas(curves)
    each = [replicas(curves[:, i]) for i in range(3)]
    assert found.low == pytest.approx([one.low for one in each])
    assert found.between == pytest.approx([one.between for one in each])
    assert found.within.shape == (3,)
    assert "curve of 3 values" in str(found)


@pytest.mark.parametrize(
    "means, errors, words",
    [
        ([], None, "means is empty"),
        (1.0, None, "a value for each run, not a single number"),
        ([1, math.nan], None, "the first at index 1"),
        ([1, 2], [1], r"errors must have the shape of means, \(2,\), not \(1,\)"),
        ([1, 2], [1, -1], "errors cannot be negative"),
        ([mean([1, 2]), 2.0], None, "numbers or Estimates, not both"),
        ([mean([1, 2])], [1.0], "Estimates bring their errors"),
    ],
)
def test_what_does_not_fit_is_refused(means, errors, words):
    with pytest.raises(UsageError, match=words):
        replicas(means, errors=errors)


@pytest.mark.slow
@pytest.mark.parametrize("runs", [3, 10])
def test_intervals_contain_the_truth(runs):
    means = np.random.default_rng(3).normal(scale=math.hypot(0.3, 0.1), size=(2000, runs))
    found = [replicas(each) for each in means]
    assert 0.93 <= np.mean([each.low <= 0 <= each.high for each in found]) <= 0.97
