"""Kernels that search atoms within a distance beside MDAnalysis: pairs, distances and counts, ties included."""

import threading
from concurrent.futures import ThreadPoolExecutor

import MDAnalysis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.situations import least_width, situations
from MDAnalysis.lib.distances import capped_distance, self_capped_distance
from MDAnalysis.lib.mdamath import triclinic_vectors
from MDAnalysisTests.datafiles import GRO, XTC

from himach.kernels import contacts, histogram, neighbors, within


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


SKEWED = {
    "octahedron": [30, 30, 30, 70.53, 109.47, 70.53],
    "dodecahedron": [30, 30, 30, 60, 60, 90],
    "strongly": [30, 30, 30, 90, 90, 30],
    "all angles": [30, 30, 30, 40, 40, 40],
    "flat": [30, 10, 30, 90, 90, 25],
}


@pytest.mark.parametrize("box", SKEWED.values(), ids=SKEWED)
def test_skewed_boxes(box):
    """The nearest of all images up to half the least width; beyond, what MDAnalysis takes for it."""
    box = np.array(box, dtype=np.float32)
    vectors = triclinic_vectors(box).astype(float)
    half = 0.5 * least_width(box)
    rng = np.random.default_rng(1)
    a, b = ((rng.random((80, 3)) @ vectors).astype(np.float32) for _ in range(2))
    images = np.stack(np.meshgrid(*[range(-4, 5)] * 3), axis=-1).reshape(-1, 3) @ vectors
    apart = b[None].astype(float) - a[:, None]
    nearest = np.sqrt(np.min([((apart + image) ** 2).sum(axis=-1) for image in images], axis=0))
    for part in (0.5, 0.95, 0.999):
        pairs, distances = neighbors(a, b, part * half, box)
        np.testing.assert_array_equal(pairs, np.argwhere(nearest <= part * half))
        np.testing.assert_allclose(distances, nearest[tuple(pairs.T)], atol=1e-5)
    for part in (1.2, 2.0, 3.0):
        result = neighbors(a, b, part * half, box)
        expected = in_order(*capped_distance(a, b, part * half, box=box, method="bruteforce"))
        np.testing.assert_array_equal(result[0], expected[0])
        np.testing.assert_allclose(result[1], expected[1], rtol=1e-6)


@pytest.mark.parametrize("groups", [1, 2])
@settings(max_examples=200)
@given(situations())
def test_pairs(groups, situation):
    others, expected = (None, self_capped(situation)) if groups == 1 else (situation.b, capped(situation))
    pairs, distances = neighbors(situation.a, others, situation.cutoff, situation.box)
    np.testing.assert_array_equal(pairs, expected[0])
    np.testing.assert_array_equal(distances, expected[1])


@settings(max_examples=200)
@given(situations(), st.sampled_from([1, 3, 6, 7, 70, 500]), st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_histogram_of_all_pairs_and_of_those_of_two_groups(situation, bins, n_groups, seed):
    random = np.random.default_rng(seed)
    groups, rest = (random.integers(0, n_groups, len(subset)) for subset in (situation.a, situation.b))
    arguments = situation.cutoff, bins, situation.box

    def expected(distances):
        return np.histogram(distances, bins, (0, situation.cutoff))[0]

    pairs, distances = capped(situation)
    apart = groups[pairs[:, 0]] != rest[pairs[:, 1]]
    np.testing.assert_array_equal(histogram(situation.a, situation.b, *arguments), expected(distances))
    np.testing.assert_array_equal(
        histogram(situation.a, situation.b, *arguments, groups, rest), expected(distances[apart])
    )
    situation.b = situation.a
    pairs, distances = capped(situation)
    once = pairs[:, 0] < pairs[:, 1]
    apart = once & (groups[pairs[:, 0]] != groups[pairs[:, 1]])
    np.testing.assert_array_equal(histogram(situation.a, None, *arguments), expected(distances[once]))
    np.testing.assert_array_equal(histogram(situation.a, None, *arguments, groups), expected(distances[apart]))


SOME = np.zeros((3, 3), np.float32)


def test_no_atoms():
    pairs, distances = neighbors(SOME[:0], SOME, 1)
    assert pairs.shape == (0, 2)
    assert distances.shape == (0,)
    assert neighbors(SOME[:1], None, 1, return_distances=False).shape == (0, 2)
    assert histogram(SOME, SOME[:0], 1, 5).tolist() == [0] * 5
    assert histogram(SOME, SOME[:0], 1, 2, None, [0, 1, 2], np.empty(0, int)).tolist() == [0, 0]
    assert within(SOME[:0], SOME, 1).tolist() == []
    assert within(SOME, SOME[:0], 1, [9, 9, 9, 90, 90, 90]).tolist() == []
    pairs, distances = contacts(SOME[:0], [], SOME, [0, 0, 1], 1)
    assert pairs.shape == (0, 2)
    assert distances.shape == (0,)
    assert contacts(SOME, [4, 4, 4], None, None, 1, return_distances=False).shape == (0, 2)


def test_atoms_at_one_place():
    assert neighbors(SOME, None, 1, return_distances=False).tolist() == [[0, 1], [0, 2], [1, 2]]
    assert within(SOME, SOME, 0).tolist() == [0, 1, 2]


@settings(max_examples=200)
@given(situations())
def test_within_is_capped_distance(situation):
    result = within(situation.b, situation.a, situation.cutoff, situation.box)
    assert result.dtype == np.int64
    np.testing.assert_array_equal(result, np.unique(capped(situation)[0][:, 1]))


def water_and_protein():
    universe = MDAnalysis.Universe(GRO, XTC)
    return universe, universe.select_atoms("name OW"), universe.select_atoms("protein")


def test_threads_do_not_share_memory():
    universe, water, protein = water_and_protein()
    groups = [water.positions[i::4].copy() for i in range(4)]
    expected = [within(group, protein.positions, 3.5, universe.dimensions) for group in groups]
    started = threading.Barrier(4)

    def search(group):
        started.wait()
        return [within(group, protein.positions, 3.5, universe.dimensions) for _ in range(20)]

    with ThreadPoolExecutor(4) as pool:
        for places, atoms in zip(pool.map(search, groups), expected, strict=True):
            assert len(places) == 20
            for each in places:
                np.testing.assert_array_equal(each, atoms)


def test_far_from_the_origin():
    """Single precision tells nothing there; the answer is still that of the metric."""
    random = np.random.default_rng(1)
    a, b = (random.uniform(0, 20, (2, 50, 3)) + 1e8).astype(np.float32)
    for box in (None, [20, 21, 22, 90, 90, 90], [20, 21, 22, 70, 80, 75]):
        pairs = capped_distance(a, b, 2.5, box=box, method="bruteforce", return_distances=False)
        np.testing.assert_array_equal(within(b, a, 2.5, box), np.unique(pairs[:, 1]))


def test_any_array_of_numbers():
    assert within([[0, 0, 0], [9, 0, 0]], np.ones((1, 3))[:, ::-1], 2).tolist() == [0]


def slow_contacts(a, groups, b, other_groups, cutoff, box):
    """Return pairs of groups, in order, and the least distance of each, from the list of pairs of atoms."""
    rest = groups if b is None else other_groups
    least = {}
    for (i, j), distance in zip(*(array.tolist() for array in neighbors(a, b, cutoff, box)), strict=True):
        pair = groups[i], rest[j]
        if b is None:
            pair = min(pair), max(pair)
            if pair[0] == pair[1]:
                continue
        least[pair] = min(distance, least.get(pair, np.inf))
    pairs = sorted(least)
    return pairs, [least[pair] for pair in pairs]


@st.composite
def grouped(draw):
    """Draw a situation, and the groups of its atoms: few, many, of one atom each, with numbers that have no atoms."""
    situation = draw(situations())
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    most = draw(st.sampled_from([1, 3, 20, 1000]))
    groups = [random.integers(0, most, len(subset)) for subset in (situation.a, situation.b)]
    return situation, *groups


@settings(max_examples=200)
@given(grouped(), st.booleans())
def test_beside_pairs_of_atoms(drawn, item):
    situation, groups, other_groups = drawn
    b, other_groups = (None, None) if item else (situation.b, other_groups)
    arguments = situation.a, groups, b, other_groups, situation.cutoff, situation.box
    pairs, distances = contacts(*arguments)
    expected = slow_contacts(*arguments)
    assert pairs.dtype == np.int64
    assert [tuple(pair) for pair in pairs.tolist()] == expected[0]
    assert distances.tolist() == expected[1]
    np.testing.assert_array_equal(contacts(*arguments, return_distances=False), pairs)


def test_more_contacts_than_a_table_holds_at_first():
    random = np.random.default_rng(2)
    positions, groups = random.uniform(0, 20, (3000, 3)).astype(np.float32), np.arange(3000)
    pairs, distances = contacts(positions, groups, None, None, 2.5)
    expected = neighbors(positions, None, 2.5)
    assert len(pairs) > 10_000
    np.testing.assert_array_equal(pairs, expected[0])
    np.testing.assert_array_equal(distances, expected[1])
    np.testing.assert_array_equal(contacts(positions, groups, None, None, 2.5, return_distances=False), pairs)
