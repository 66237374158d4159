"""Independent runs and two groups of them: Student's and Welch's t, Holm's correction."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from himach.uncertainty import Difference, difference, holm, mean, replicas

NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=12)


@given(NUMBERS, st.sampled_from([0.5, 0.95, 0.99]))
def test_it_is_students_t(means, level):
    result = replicas(means, level)
    error = np.std(means, ddof=1) / math.sqrt(len(means))
    half = stats.t.ppf((1 + level) / 2, len(means) - 1) * error
    assert result.value == pytest.approx(np.mean(means))
    assert [result.low, result.high] == pytest.approx([np.mean(means) - half, np.mean(means) + half])
    assert result.between == pytest.approx(np.std(means, ddof=1))
    assert (result.n_eff, result.blocks, result.converged) == (len(means), len(means), True)
    assert math.isnan(result.within)


def test_two_runs_say_what_their_interval_is_worth():
    result = replicas([1.0, 1.2])
    assert result.half_width == pytest.approx(12.706 * 0.1, rel=1e-4)
    assert result.method.startswith("Student's t over 2 runs: t = 12.7")
    assert "t = 12.7" in str(result)
    assert replicas([1, 1.2, 1.1]).method == "Student's t over 3 runs"
    assert "3 runs" in str(replicas([1, 1.2, 1.1]))


def test_a_single_replica_has_no_interval():
    result = replicas([3.0])
    assert not result.converged
    assert result.value == 3
    assert np.isnan([result.low, result.high, result.between]).all()
    assert "not converged" in str(result)


def test_runs_bring_their_own_errors():
    random = np.random.default_rng(1)
    runs = [mean(random.normal(size=800)) for _ in range(4)]
    result = replicas(runs)
    assert result.within == pytest.approx(math.sqrt(np.mean([run.error**2 for run in runs])))
    plain = replicas([run.value for run in runs], errors=[run.error for run in runs])
    assert (plain.low, plain.high, plain.within) == (result.low, result.high, result.within)
    assert replicas([1.0, 2.0], errors=[3.0, 4.0]).within == pytest.approx(math.sqrt(12.5))


def test_curves_of_runs_are_taken_bin_by_bin():
    curves = np.random.default_rng(2).normal(size=(5, 3))
    result = replicas(curves)
    each = [replicas(curves[:, i]) for i in range(3)]
    assert result.low == pytest.approx([item.low for item in each])
    assert result.between == pytest.approx([item.between for item in each])
    assert result.within.shape == (3,)
    assert "curve of 3 values" in str(result)


pytestmark = pytest.mark.filterwarnings("error")

PROBABILITIES = st.lists(st.floats(0, 1) | st.just(math.nan), min_size=1, max_size=12)


def groups(seed: int, n_first: int, n_second: int, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    """Return values of two groups of runs that spread differently."""
    random = np.random.default_rng(seed)
    return random.normal(size=(n_first, *shape)), random.normal(0.7, 2.5, size=(n_second, *shape))


def fields(result: Difference) -> list:
    return [result.value, result.low, result.high, result.error, result.df, result.p]


def slow_holm(p: list[float]) -> list[float]:
    """Return Holm's correction as it is defined: each p by the number of those not smaller, never falling."""
    tested = [each for each in p if not math.isnan(each)]
    largest, result = 0.0, {}
    for rank, each in enumerate(sorted(tested)):
        largest = max(largest, (len(tested) - rank) * each)
        result.setdefault(each, min(1.0, largest))
    return [result.get(each, math.nan) for each in p]


@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
@pytest.mark.parametrize("n_first, n_second", [(2, 2), (2, 7), (5, 3), (40, 60)])
@pytest.mark.parametrize("shape", [(), (6,), (2, 3)])
def test_it_is_welchs_t(n_first, n_second, shape, level):
    first, second = groups(1, n_first, n_second, *shape)
    result = difference(first, second, level)
    theirs = stats.ttest_ind(second, first, equal_var=False)
    limits = theirs.confidence_interval(level)
    near = {"rtol": 1e-12, "atol": 1e-12}  # limits near 0 are differences of larger numbers
    np.testing.assert_allclose(result.value, second.mean(axis=0) - first.mean(axis=0), **near)
    np.testing.assert_allclose([result.low, result.high], [limits.low, limits.high], **near)
    np.testing.assert_allclose([result.p, result.df], [theirs.pvalue, theirs.df], rtol=1e-12)
    np.testing.assert_allclose(np.abs(result.value / result.error), np.abs(theirs.statistic), rtol=1e-12)
    assert (result.level, result.converged) == (level, True)
    assert result.n_eff == result.blocks == n_first + n_second


def test_a_far_difference_has_a_small_p():
    first, second = groups(2, 8, 8)
    theirs = stats.ttest_ind(second + 1e4, first, equal_var=False).pvalue
    assert difference(first, second + 1e4).p == pytest.approx(theirs, rel=1e-12, abs=0)
    assert 0 < theirs < 1e-20


@pytest.mark.parametrize("first, second", [([1.0], [2.0]), ([1.0], [2.0, 4, 3])])
def test_a_single_run_has_no_interval(first, second):
    for result in (difference(first, second), difference(second, first)):
        assert not result.converged
        assert abs(result.value) == np.mean(second) - 1
        assert np.isnan(fields(result)[1:]).all()
        assert result.method == "none: a single run does not tell how runs differ"
        assert "not converged" in str(result)


def test_groups_without_spread_have_no_p():
    result = difference([0.1, 0.1, 0.1], [0.3, 0.3, 0.3])  # numpy's variance of these is not 0
    assert (result.value, result.low, result.high, result.error) == (0.3 - 0.1, 0.3 - 0.1, 0.3 - 0.1, 0)
    assert np.isnan([result.p, result.df]).all()
    assert result.converged


def test_a_single_group_without_spread_counts_as_exactly_known():
    result = difference([0.1, 0.1, 0.1], [0.3, 0.5, 0.4])
    assert result.df == 2
    assert result.p == pytest.approx(stats.ttest_1samp([0.3, 0.5, 0.4], 0.1).pvalue)


def test_values_without_spread_do_not_harm_those_beside_them():
    first, second = groups(6, 4, 3, 2)
    whole = difference(np.c_[first, np.ones(4)], np.c_[second, np.ones(3)])
    assert np.isnan(whole.p).tolist() == [False, False, True]
    assert whole.low[:2] == pytest.approx(difference(first, second).low)
    assert (whole.low[2], whole.high[2]) == (0, 0)


@given(PROBABILITIES)
def test_holm_is_its_slow_twin(p):
    np.testing.assert_array_equal(holm(p), slow_holm(p))
