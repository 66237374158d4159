"""Rows by key and frame, against what numpy says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from himach.engine.merging import grouping
from himach.engine.pairs import sharding


@given(
    st.integers(1, 3),
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=60), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_rows_are_merged_by_key_and_frame_and_else_as_they_came(width, ranks, random):
    places = random.sample(range(2**32), 10 * len(ranks))  # no frame is on two ranks
    keys = [np.array([[key] * width for key, _ in pairs], dtype=np.int64).reshape(-1, width) for pairs in ranks]
    at = [np.array([frame for _, frame in pairs], dtype=np.uint32) for pairs in ranks]
    rows = [np.array(places[10 * rank : 10 * rank + 10], dtype=np.uint32) for rank in range(len(ranks))]
    carried = [np.array([random.randrange(2**32) for _ in pairs], dtype=np.uint32) for pairs in ranks]
    groups: dict = {}
    for rank, pairs in enumerate(ranks):
        for (key, frame), what in zip(pairs, carried[rank].tolist(), strict=True):
            groups.setdefault(key, []).append((int(rows[rank][frame]), what))
    merged, bounds, ordered, moved = grouping.merge_rows(keys, at, rows, carried)
    assert merged.tolist() == [[key] * width for key in groups]
    assert bounds.tolist() == np.cumsum([0, *map(len, groups.values())]).tolist()
    expected = [pair for pairs in groups.values() for pair in sorted(pairs, key=lambda pair: pair[0])]
    assert list(zip(ordered.tolist(), moved.tolist(), strict=True)) == expected


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("n", [0, 1, 100, 5000])
@pytest.mark.parametrize("top", [2, 50, 2**62])
def test_rows_are_numbered_by_first_appearance(width, n, top):
    keys = np.random.default_rng(1).integers(-top, top, (n, width))
    ids, groups = grouping.group_rows(keys)
    known = {}
    assert ids.tolist() == [known.setdefault(tuple(key), len(known)) for key in keys.tolist()]
    assert [tuple(key) for key in groups.tolist()] == list(known)


@pytest.mark.parametrize("size", [1, 3, 4, 8, 12, 16])
@pytest.mark.parametrize("offset", [0, 4, 1])  # values lie behind uint32: at any multiple of 4
def test_rows_of_any_size_are_scattered_and_gathered(size, offset):
    rng = np.random.default_rng(2)
    column = rng.integers(0, 255, offset + 20 * size, dtype=np.uint8)[offset:]
    places = rng.permutation(20).astype(np.uint32)
    target, back = np.empty((2, offset + 20 * size), dtype=np.uint8)[:, offset:]
    sharding.scatter(column, places, target)
    expected = np.empty((20, size), dtype=np.uint8)
    expected[places] = column.reshape(20, -1)
    np.testing.assert_array_equal(target.reshape(20, -1), expected)
    grouping.gather(target, places, back, size)
    np.testing.assert_array_equal(back, column)
