"""Kernels against what numpy says, and the benchmark at a small size."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranks import clean_environment

from himach.engine import grouping, sharding
from himach.engine.columns import SHARDS
from himach.engine.exchange import shards_of

SMALL = st.lists(st.integers(0, 9), max_size=50)


@given(SMALL)
def test_counting_sort_is_a_stable_sort(ids):
    column = np.array(ids, dtype=np.uint16)
    places, bounds = sharding.count_places(column, 10)
    np.testing.assert_array_equal(np.argsort(places), np.argsort(column, kind="stable"))
    np.testing.assert_array_equal(bounds, np.searchsorted(np.sort(column), np.arange(11)))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9) | st.integers(0, 2**32 - 1)), max_size=60))
def test_rows_are_ordered_by_group_and_frame_and_else_as_they_came(pairs):
    ids, at = np.array(pairs, dtype=np.uint32).reshape(-1, 2).T.copy()
    bounds, ordered, rows = grouping.order_rows(ids, at, 4)
    np.testing.assert_array_equal(rows, np.lexsort((at, ids)))
    np.testing.assert_array_equal(ordered, at[rows])
    np.testing.assert_array_equal(bounds, np.searchsorted(np.sort(ids), np.arange(5)))


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("n", [0, 1, 100, 5000])
@pytest.mark.parametrize("top", [2, 50, 2**62])
def test_rows_are_numbered_by_first_appearance(width, n, top):
    keys = np.random.default_rng(1).integers(-top, top, (n, width))
    ids, first = grouping.group_rows(keys)
    known = {}
    assert ids.tolist() == [known.setdefault(tuple(key), len(known)) for key in keys.tolist()]
    assert [tuple(key) for key in keys[first].tolist()] == list(known)


@pytest.mark.parametrize("dtype", ["i1", "f4", "f8", "c16", "V3", "i4,f8"])
def test_scatter_moves_rows_of_any_size(dtype):
    rng = np.random.default_rng(2)
    column = rng.integers(0, 255, 20 * np.dtype(dtype).itemsize, dtype=np.uint8)
    places = rng.permutation(20).astype(np.uint32)
    target = np.empty_like(column)
    sharding.scatter(column, places, target)
    wanted = np.empty((20, np.dtype(dtype).itemsize), dtype=np.uint8)
    wanted[places] = column.reshape(20, -1)
    np.testing.assert_array_equal(target.reshape(20, -1), wanted)


def test_shards_are_stable_and_even():
    shards = sharding.shard_rows(np.arange(100_000).reshape(-1, 1), SHARDS)
    # Runs of other versions and machines must shard alike: these numbers are part of what a kept run means.
    assert shards[:4].tolist() == [220, 381, 383, 358]
    counts = np.bincount(shards, minlength=SHARDS)
    assert counts.min() > 120 and counts.max() < 280


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 511, 512, 600])
def test_every_shard_belongs_to_one_rank(size):
    owners = [rank for rank in range(size) for _ in range(*shards_of(rank, size, SHARDS))]
    assert len(owners) == SHARDS
    assert owners == [shard * size // SHARDS for shard in range(SHARDS)]


def test_the_benchmark_runs_at_a_small_size():
    done = subprocess.run(
        [sys.executable, "-P", "-m", "himach", "bench", "shuffle", "--pairs", "2e4", "--repeats", "1"],
        capture_output=True,
        text=True,
        env=clean_environment(),
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("million pairs/s") == 4
