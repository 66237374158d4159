"""Sums by blocks of frames in any order and grouping, curves with bands, and estimates as text."""

import dataclasses
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from uncertainty import series

from himach import UsageError
from himach.uncertainty import (
    FINE_BLOCKS,
    Estimate,
    add_blocks,
    block_level,
    block_row,
    fine_block,
    mean,
    of_blocks,
    replicas,
    split_blocks,
)
from himach.uncertainty.block_mean import n_blocks


def by_hand(numbers: list[int]) -> tuple[list[int], list[int]]:
    """Frames and sums of blocks, of frames whose one sum is their number."""
    length = 1
    while len({number // length for number in numbers}) > FINE_BLOCKS:
        length *= 2
    blocks: dict[int, list[int]] = {}
    for number in sorted(numbers):
        blocks.setdefault(number // length, []).append(number)
    return [len(block) for block in blocks.values()], [sum(block) for block in blocks.values()]


@given(
    numbers=st.one_of(
        st.sets(st.integers(0, 5000), min_size=1, max_size=300).map(sorted),
        st.builds(lambda first, n, step: list(range(first, first + n * step, step)), *[st.integers(1, 400)] * 3),
    ),
    data=st.data(),
)
def test_any_order_and_grouping(numbers, data):
    shuffled = data.draw(st.permutations(numbers))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(numbers)), max_size=6)))
    groups = [shuffled[a:b] for a, b in zip([0, *cuts], [*cuts, len(numbers)], strict=True)]
    added = [add_blocks([block_row(number, [number]) for number in group]) for group in groups if group]
    # Part of what was added up is added up once more.
    mixed = [add_blocks(added[: len(added) // 2]), *added[len(added) // 2 :]] if len(added) > 1 else added
    frames, sums = split_blocks(add_blocks(mixed))
    assert (frames.tolist(), sums[:, 0].tolist()) == by_hand(numbers)
    assert len(frames) <= FINE_BLOCKS


@given(st.sets(st.integers(0, 5000), min_size=1, max_size=300).map(sorted), st.integers(1, 40))
def test_blocks_that_are_joined_at_once(numbers, at_once):
    """Whoever knows which frames there will be needs no more rows than blocks, and the blocks are the same."""
    level = block_level(numbers)
    rows = [block_row(number, [number]) for number in numbers]
    subset = [add_blocks(rows[i : i + at_once], level) for i in range(0, len(rows), at_once)]
    assert all(len(item) <= (at_once >> level) + 2 for item in subset if len(numbers) == numbers[-1] + 1)
    assert add_blocks(subset).tolist() == add_blocks(rows).tolist() == add_blocks(rows, level).tolist()
    frames, sums = by_hand(numbers)
    by_block = {}
    for number in numbers:
        by_block.setdefault(number >> level, []).append(number)
    of_block = [block_row(own[-1], [sum(own)], frames=len(own), level=level) for own in by_block.values()]
    assert [item.tolist() for item in split_blocks(add_blocks(of_block))] == [frames, [[item] for item in sums]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: block_row(0, [0.5]), "sums must be integers"),
        (lambda: block_row(0, [[1]]), "of shape"),
        (lambda: block_row(-1, [1]), "number must be that of a frame, not -1"),
        (lambda: add_blocks([]), "no blocks"),
        (lambda: add_blocks([block_row(0, [1]), block_row(1, [1, 2])]), "of one length"),
        (lambda: add_blocks([np.zeros(5)]), "what block_row"),
        (lambda: add_blocks([np.zeros(2, np.int64)]), "rows of 2 are none"),
    ],
)
def test_what_is_no_block_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()


@given(st.integers(1, 5000))
def test_fine_blocks_follow_one_another_and_are_of_a_length(n):
    blocks = fine_block(np.arange(n), n)
    counts = np.bincount(blocks)
    assert len(counts) == min(64, n)
    assert (np.diff(blocks) >= 0).all()
    assert counts.min() >= 1 and np.ptp(counts) <= 1
    assert blocks.dtype == np.int64


def test_fine_blocks_do_not_overflow():
    assert fine_block(10**15 - 1, 10**15) == 63
    assert fine_block(np.array([0, 3], dtype=np.int8), 128).tolist() == [0, 1]
    assert fine_block([], 0).shape == (0,)


@pytest.mark.parametrize("steps", [[-1], [10], [3, 11]])
def test_a_step_is_one_of_the_selection(steps):
    with pytest.raises(UsageError, match="steps of a selection of 10 frames are 0 to 9, not"):
        fine_block(steps, 10)
    with pytest.raises(UsageError, match="steps must be integers, not float64"):
        fine_block([1.5], 10)


def curves(seed, n, bins, phi):
    random = np.random.default_rng(seed)
    return 5 + series.first_order(random, phi, n, bins).T.copy()


@pytest.mark.parametrize("n, phi", [(64, 0), (64, 0.5), (50, 0.2), (13, 0), (8, 0)])
def test_with_equal_weights_it_is_the_spread_of_the_coarse_blocks(n, phi):
    sums = curves(5, n, 30, phi)
    result = of_blocks(sums, np.full(n, 2.0), 0.9)
    n_eff = n / series.curve_inefficiency(sums, np.full(sums.shape, 2.0))
    blocks = n_blocks(n_eff)
    assert blocks >= 4
    assert (result.blocks, result.n_eff) == (blocks, pytest.approx(n_eff))
    assert result.value == pytest.approx(sums.sum(axis=0) / (2 * n))
    whole = n // blocks * blocks == n
    ratios = [sums[b * n // blocks : (b + 1) * n // blocks].mean(axis=0) / 2 for b in range(blocks)]
    error = np.std(ratios, axis=0, ddof=1) / math.sqrt(blocks)
    assert result.error == pytest.approx(error, rel=1e-9 if whole else 0.25)
    t = stats.t.ppf(0.95, blocks - 1)
    assert result.half_width == pytest.approx(t * result.error)
    assert (result.low + result.high) / 2 == pytest.approx(result.value)


def test_n_eff_is_what_all_bins_have_in_common():
    correlated, independent = curves(7, 64, 200, 0.6), curves(8, 64, 200, 0)
    # (1 + phi) / (1 - phi) is 4; of 64 blocks it is found somewhat less, as the mean is taken from them, too.
    assert 2.8 < of_blocks(correlated).inefficiency < 4
    assert of_blocks(independent).n_eff == 64
    scaled = correlated * np.geomspace(1e-6, 1e6, 200)
    assert of_blocks(scaled).n_eff == pytest.approx(of_blocks(correlated).n_eff)
    with_constants = np.column_stack([correlated, np.full((64, 50), 0.1)])
    assert of_blocks(with_constants).n_eff == pytest.approx(of_blocks(correlated).n_eff)


def test_a_block_counts_by_its_weight():
    random = np.random.default_rng(9)
    weights = random.integers(50, 150, size=(64, 400))
    sums = random.binomial(weights, 0.3)
    result = of_blocks(sums, weights)
    assert result.value == pytest.approx(sums.sum(axis=0) / weights.sum(axis=0))
    joined = [(s.sum(axis=0), w.sum(axis=0)) for s, w in zip(np.split(sums, 8), np.split(weights, 8), strict=True)]
    weight = weights.sum(axis=0)
    # Cochran, Sampling Techniques: the error of a ratio by its residuals.
    residuals = np.array([s - result.value * w for s, w in joined])
    assert result.blocks == 8
    assert result.error == pytest.approx(np.sqrt(8 / 7 * (residuals**2).sum(axis=0)) / weight, rel=0.03)


def test_blocks_of_little_weight_are_no_deviations():
    weights = np.random.default_rng(3).integers(5, 100, size=64) * np.linspace(0.1, 1, 64)
    sums = weights[:, None] * (5 + 0.1 * (curves(16, 64, 20, 0.5) - 5))
    every = np.tile(weights[:, None], 20)
    assert of_blocks(sums, weights).inefficiency == pytest.approx(series.curve_inefficiency(sums, every))


def test_where_a_coarse_block_has_no_weight_there_are_no_limits():
    sums, weights = curves(11, 64, 3, 0), np.ones((64, 3))
    weights[:20, 1] = sums[:20, 1] = 0
    weights[:, 2] = sums[:, 2] = 0
    result = of_blocks(sums, weights)
    assert result.converged
    assert np.isnan(result.low).tolist() == np.isnan(result.high).tolist() == [False, True, True]
    assert np.isnan(result.value).tolist() == [False, False, True]
    assert result.value[1] == pytest.approx(sums[20:, 1].mean())


def test_bins_that_do_not_vary_are_known():
    sums = np.column_stack([np.zeros(64, dtype=int), np.full(64, 7)])
    result = of_blocks(sums, np.full(64, 2))
    assert result.value.tolist() == result.low.tolist() == result.high.tolist() == [0, 3.5]
    assert result.n_eff == 64


def test_below_eight_independent_blocks_there_is_no_band():
    for sums in (curves(12, 7, 3, 0), np.cumsum(np.ones((64, 3)), axis=0)):
        result = of_blocks(sums)
        assert not result.converged
        assert np.isnan([result.low, result.high, result.error]).all()
        assert result.low.shape == result.value.shape == (3,)
        assert "not converged" in str(result)


@pytest.mark.parametrize("shape", [(), (4,), (4, 2), (2, 3, 2)])
def test_a_curve_may_have_any_shape(shape):
    sums = np.random.default_rng(13).normal(size=(64, *shape))
    result, flat = of_blocks(sums), of_blocks(sums.reshape(64, -1))
    assert np.shape(result.value) == np.shape(result.low) == np.shape(result.high) == shape
    assert np.array_equal(np.ravel(result.high), np.ravel(flat.high))


def test_of_is_what_is_wanted_of_the_curve():
    sums, weights = curves(14, 64, 6, 0.2), np.random.default_rng(2).uniform(1, 2, 64)
    curve = of_blocks(sums, weights)
    first = of_blocks(sums, weights, of=lambda values: values[2])
    assert (first.value, first.low, first.high) == (curve.value[2], curve.low[2], curve.high[2])
    double = of_blocks(sums, weights, of=lambda values: 2 * values)
    assert double.high == pytest.approx(2 * curve.high)
    inverse = of_blocks(sums, weights, of=lambda values: 1 / values.mean())
    plain = of_blocks(sums, weights, of=lambda values: values.mean())
    assert inverse.error == pytest.approx(plain.error / plain.value**2, rel=0.01)  # propagation of errors


def estimate(value, low, high, **more):
    return Estimate(value=value, low=low, high=high, level=0.95, error=0.0, **{"n_eff": 512.3, "blocks": 8, **more})


@pytest.mark.parametrize(
    "figures, shown",
    [
        ((2.7512, 2.7312, 2.7712), "2.75 [2.73, 2.77]"),
        ((2.7512, 2.7362, 2.7662), "2.751 [2.736, 2.766]"),
        ((0.001, -0.09, 0.09), "0.00 [-0.09, 0.09]"),
        ((-0.001, -0.3, 0.3), "0.0 [-0.3, 0.3]"),
        ((1234.4, 1034.2, 1434.7), "1234 [1034, 1435]"),
        ((3.1e-9, 2.8e-9, 3.4e-9), "3.1e-09 [2.8e-09, 3.4e-09]"),
        ((6.02e23, 6.0e23, 6.04e23), "6.02e+23 [6.00e+23, 6.04e+23]"),
        ((3.0, 3.0, 3.0), "3 [3, 3]"),
        ((math.inf, 2.5, math.inf), "inf [2.5, inf]"),
        ((np.ones((3, 2)), np.zeros((3, 2)), np.ones((3, 2))), "curve of 3 x 2 values"),
    ],
)
def test_value_and_limits_have_the_decimals_that_their_width_gives_sense(figures, shown):
    assert str(estimate(*figures)) == f"{shown} (95 %, 8 blocks, N_eff 512)"


def test_an_estimate_tells_its_method_or_that_there_is_none():
    few = estimate(2.75, math.nan, math.nan, n_eff=3.21, blocks=0, converged=False)
    assert str(few) == "2.75, not converged (N_eff 3.2)"
    assert str(estimate(12.0, 6.2, 21.0, blocks=0, method="Garwood's limits")) == "12 [6, 21] (95 %, Garwood's limits)"


def test_estimates_do_not_change_and_can_be_sent():
    result = mean(np.random.default_rng(1).normal(size=100))
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.value = 1.0
    assert str(pickle.loads(pickle.dumps(result))) == str(result)
    assert pickle.loads(pickle.dumps(replicas([1.0, 2.0]))).between == replicas([1.0, 2.0]).between


def test_importing_it_imports_no_mdanalysis():
    code = "import sys, himach.uncertainty; print('MDAnalysis' in sys.modules)"
    path = f"import himach; himach.__path__[:] = {list(__import__('himach').__path__)!r}; "
    done = subprocess.run([sys.executable, "-P", "-c", path + code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
