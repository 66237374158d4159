"""Independent runs and two groups of them: Student's and Welch's t, the permutation test, Holm's correction."""

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from himach.uncertainty import Difference, difference, holm, mean, replicas
from himach.uncertainty.replicas import BINS_AT_ONCE, MOST_DIVISIONS

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

#: Values of runs as they are written down, so that ties are frequent.
DECIMALS = st.lists(st.integers(-30, 30).map(lambda tenths: tenths / 10), min_size=2, max_size=5)
PROBABILITIES = st.lists(st.floats(0, 1) | st.just(math.nan), min_size=1, max_size=12)


def groups(seed: int, n_first: int, n_second: int, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    """Return values of two groups of runs that spread differently."""
    random = np.random.default_rng(seed)
    return random.normal(size=(n_first, *shape)), random.normal(0.7, 2.5, size=(n_second, *shape))


def fields(result: Difference) -> list:
    return [result.value, result.low, result.high, result.error, result.df, result.p, result.p_exact]


def exact(first: list[float], second: list[float]) -> float:
    """Return p of the permutation test in fractions of integers, which know no rounding."""
    runs = [Fraction(str(value)) for value in [*first, *second]]
    means = []
    for chosen in combinations(range(len(runs)), len(first)):
        rest = [run for i, run in enumerate(runs) if i not in chosen]
        means.append(sum(rest) / len(second) - sum(runs[i] for i in chosen) / len(first))
    tails = sum(mean <= means[0] for mean in means), sum(mean >= means[0] for mean in means)
    return min(1.0, 2 * min(tails) / len(means))


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


@given(DECIMALS, DECIMALS)
@example([0.2, 0.2, -1.0], [0.2, 0.0, -0.8, -0.2])  # the means are equal but for rounding; SciPy says 0.8
def test_ties_are_those_of_exact_numbers(first, second):
    assert difference(first, second).p_exact == pytest.approx(exact(first, second), rel=1e-12)


@pytest.mark.parametrize(
    "n_first, n_second, known",
    [(8, 8, True), (8, 9, False), (1, MOST_DIVISIONS - 1, True), (1, MOST_DIVISIONS, False), (10**6, 10**6, False)],
)
def test_as_many_divisions_are_gone_through_as_can_be(n_first, n_second, known):
    first, second = groups(4, n_first, n_second)
    assert math.isfinite(difference(first, second).p_exact) == known


def test_a_long_curve_is_taken_in_parts():
    first, second = groups(5, 3, 3, BINS_AT_ONCE + 1)
    result = difference(first, second)
    assert result.p_exact.tolist() == [exact(first[:, i], second[:, i]) for i in range(BINS_AT_ONCE + 1)]
    assert "curve of 65 values" in str(result)


@pytest.mark.parametrize(
    "first, second, p_exact", [([1.0], [2.0], math.nan), ([1.0], [2.0, 3], 2 / 3), ([1.0], [2.0, 4, 3], 0.5)]
)
def test_a_single_run_has_no_interval(first, second, p_exact):
    for result in (difference(first, second), difference(second, first)):
        assert not result.converged
        assert abs(result.value) == np.mean(second) - 1
        assert np.isnan(fields(result)[1:-1]).all()
        assert result.p_exact == pytest.approx(p_exact, nan_ok=True)
        assert result.method == "none: a single run does not tell how runs differ"
        assert "not converged" in str(result)


def test_groups_without_spread_have_no_p():
    result = difference([0.1, 0.1, 0.1], [0.3, 0.3, 0.3])  # numpy's variance of these is not 0
    assert (result.value, result.low, result.high, result.error) == (0.3 - 0.1, 0.3 - 0.1, 0.3 - 0.1, 0)
    assert np.isnan([result.p, result.df]).all()
    assert (result.p_exact, result.converged) == (0.1, True)
    assert difference([2, 2], [2, 2]).p_exact == 1


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
