"""Rows and their mean, to the last bit as numpy has them."""

import numpy as np
import pytest

from himach.io.universe.gather import mean_row, rows

VECTORS = np.random.default_rng(3).normal(size=(50, 3)).astype(np.float32)


@pytest.mark.parametrize(
    "index",
    [
        np.arange(50),
        np.arange(7, 31),
        np.arange(0, 50, 3),
        np.array([5, 5, 4, 49, 0]),
        np.array([3]),
        np.array([-1, 2]),
        np.array([], dtype=np.int64),
        np.arange(9, dtype=np.int32),
        np.arange(20)[::2],
        np.array([[1, 2], [3, 4]]),
        VECTORS[:, 0] > 0,
        slice(2, 9),
        4,
        (slice(None), 1),
    ],
    ids=repr,
)
@pytest.mark.parametrize("vectors", [VECTORS, VECTORS.astype(np.float64), VECTORS[::-1], np.asfortranarray(VECTORS)])
def test_rows_are_those_of_numpy(vectors, index):
    found = rows(vectors, index)
    np.testing.assert_array_equal(found, vectors[index])
    assert found.dtype == vectors.dtype
    if isinstance(index, np.ndarray):
        assert found.flags.owndata
        assert found.flags.writeable


@pytest.mark.parametrize("index", [np.array([0, 50]), np.array([-51]), np.arange(40, 60)])
def test_a_row_that_is_not_there_is_refused_by_numpy(index):
    with pytest.raises(IndexError):
        rows(VECTORS, index)
    assert mean_row(VECTORS, index) is None


def scattered(n):
    random = np.random.default_rng(n)
    return (random.normal(size=(n, 3)) * 10.0 ** random.integers(-9, 9, (n, 3))).astype(np.float32)


@pytest.mark.parametrize(
    "vectors",
    [*(scattered(n) for n in (2, 3, 8, 9, 127, 1000, 8193, 47681)), np.full((3, 3), -0.0, dtype=np.float32)],
    ids=len,
)
def test_means_are_those_of_numpy_to_the_last_bit(vectors):
    for some in (np.arange(len(vectors)), np.arange(1, len(vectors))):
        found = mean_row(vectors, some)
        if len(some) < 2:
            assert found is None
        else:
            assert found.tobytes() == vectors[some].astype(np.float64).mean(axis=0).tobytes()


def test_means_of_what_is_no_number():
    vectors = scattered(9)
    vectors[4, 1], vectors[5, 2] = np.inf, np.nan
    np.testing.assert_array_equal(mean_row(vectors, np.arange(9)), vectors.astype(np.float64).mean(axis=0))


@pytest.mark.parametrize("index", [np.arange(0, 50, 2), np.array([1, 2, 2]), np.array([3]), slice(0, 5)])
def test_other_rows_are_left_to_numpy(index):
    assert mean_row(VECTORS, index) is None
    assert mean_row(VECTORS.astype(np.float64), np.arange(9)) is None
