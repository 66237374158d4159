"""neighbors() and histogram() beside MDAnalysis: the same pairs, distances and counts, ties included."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from MDAnalysis.lib.distances import capped_distance, self_capped_distance
from support.situations import situations

import himach
from himach.kernels import histogram, neighbors


def in_order(pairs, distances):
    """Return pairs with the lesser index first where that is asked for, in order, and distances with them."""
    order = np.lexsort(pairs.T[::-1])
    return pairs[order], distances[order]


def capped(situation):
    """Return pairs and distances of capped_distance(); by all pairs where its grid refuses a box."""
    arguments = (situation.a, situation.b, situation.cutoff)
    try:
        return in_order(*capped_distance(*arguments, box=situation.box))
    except ValueError:
        return in_order(*capped_distance(*arguments, box=situation.box, method="bruteforce"))


def self_capped(situation):
    """Return those of self_capped_distance(), without its method by trees, which rounds in a way of its own."""
    method = "nsgrid" if len(situation.a) >= 100 else "bruteforce"
    arguments = (situation.a, situation.cutoff)
    try:
        pairs, distances = self_capped_distance(*arguments, box=situation.box, method=method)
    except ValueError:
        pairs, distances = self_capped_distance(*arguments, box=situation.box, method="bruteforce")
    return in_order(np.sort(pairs, axis=1), distances)


@settings(max_examples=200, deadline=None)
@given(situations())
def test_pairs_of_two_groups(situation):
    pairs, distances = neighbors(situation.a, situation.b, situation.cutoff, situation.box)
    expected_pairs, expected_distances = capped(situation)
    np.testing.assert_array_equal(pairs, expected_pairs)
    np.testing.assert_array_equal(distances, expected_distances)


@settings(max_examples=200, deadline=None)
@given(situations())
def test_pairs_in_one_group(situation):
    pairs, distances = neighbors(situation.a, None, situation.cutoff, situation.box)
    expected_pairs, expected_distances = self_capped(situation)
    np.testing.assert_array_equal(pairs, expected_pairs)
    np.testing.assert_array_equal(distances, expected_distances)


@settings(max_examples=200, deadline=None)
@given(situations(), st.sampled_from([1, 3, 6, 7, 70, 500]))
def test_histogram_of_two_groups(situation, bins):
    expected, _ = np.histogram(capped(situation)[1], bins, (0, situation.cutoff))
    found = histogram(situation.a, situation.b, situation.cutoff, bins, situation.box)
    np.testing.assert_array_equal(found, expected)


@settings(max_examples=200, deadline=None)
@given(situations(), st.sampled_from([1, 3, 6, 7, 70, 500]))
def test_histogram_in_one_group(situation, bins):
    situation.b = situation.a
    pairs, distances = capped(situation)
    expected, _ = np.histogram(distances[pairs[:, 0] < pairs[:, 1]], bins, (0, situation.cutoff))
    found = histogram(situation.a, None, situation.cutoff, bins, situation.box)
    np.testing.assert_array_equal(found, expected)


SOME = np.zeros((3, 3), np.float32)


def test_no_atoms():
    pairs, distances = neighbors(SOME[:0], SOME, 1)
    assert pairs.shape == (0, 2)
    assert distances.shape == (0,)
    assert neighbors(SOME[:1], None, 1, return_distances=False).shape == (0, 2)
    assert histogram(SOME, SOME[:0], 1, 5).tolist() == [0] * 5


def test_without_distances():
    assert neighbors(SOME, None, 1, return_distances=False).tolist() == [[0, 1], [0, 2], [1, 2]]


@pytest.mark.parametrize(("cutoff", "bins"), [(0, 5), (1, 0), (1, -3)])
def test_histogram_of_nothing(cutoff, bins):
    with pytest.raises(himach.UsageError, match="cutoff and bins must be greater than 0"):
        histogram(SOME, SOME, cutoff, bins)


def test_refusals():
    with pytest.raises(himach.UsageError, match="others must be an array"):
        neighbors(SOME, SOME[0], 1)
    with pytest.raises(himach.UsageError, match="must be finite"):
        histogram(SOME * np.nan, None, 1, 5)
