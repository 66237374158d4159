"""within() beside MDAnalysis's capped_distance(): the same atoms, those at the cutoff included."""

import threading

import MDAnalysis
import numpy as np
import pytest
from hypothesis import given, settings
from kernels.situations import situations
from MDAnalysis.lib.distances import capped_distance
from MDAnalysisTests.datafiles import GRO, XTC

import himach
from himach.kernels import within


def capped(situation):
    """Return the pairs of capped_distance(); by all pairs where its grid refuses a box."""
    arguments = (situation.a, situation.b, situation.cutoff)
    try:
        return capped_distance(*arguments, box=situation.box, return_distances=False)
    except ValueError:
        return capped_distance(*arguments, box=situation.box, return_distances=False, method="bruteforce")


@settings(max_examples=200)
@given(situations())
def test_within_is_capped_distance(situation):
    found = within(situation.b, situation.a, situation.cutoff, situation.box)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, np.unique(capped(situation)[:, 1]))


def water_and_protein():
    universe = MDAnalysis.Universe(GRO, XTC)
    return universe, universe.select_atoms("name OW"), universe.select_atoms("protein")


def test_water_about_a_protein():
    universe, water, protein = water_and_protein()
    for timestep in universe.trajectory[::3]:
        pairs = capped_distance(
            protein.positions, water.positions, 3.5, box=timestep.dimensions, return_distances=False
        )
        found = within(water.positions, protein.positions, 3.5, timestep.dimensions)
        np.testing.assert_array_equal(found, np.unique(pairs[:, 1]))


def test_threads_do_not_share_memory():
    universe, water, protein = water_and_protein()
    groups = [water.positions[i::4].copy() for i in range(4)]
    expected = [within(group, protein.positions, 3.5, universe.dimensions) for group in groups]
    found = [[] for _ in groups]

    def search(i):
        for _ in range(20):
            found[i].append(within(groups[i], protein.positions, 3.5, universe.dimensions))

    threads = [threading.Thread(target=search, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        assert len(found[i]) == 20
        for each in found[i]:
            np.testing.assert_array_equal(each, expected[i])


def test_far_from_the_origin():
    """Single precision tells nothing there; the answer is still that of the metric."""
    random = np.random.default_rng(1)
    a, b = (random.uniform(0, 20, (2, 50, 3)) + 1e8).astype(np.float32)
    for box in (None, [20, 21, 22, 90, 90, 90], [20, 21, 22, 70, 80, 75]):
        pairs = capped_distance(a, b, 2.5, box=box, method="bruteforce", return_distances=False)
        np.testing.assert_array_equal(within(b, a, 2.5, box), np.unique(pairs[:, 1]))


def test_no_atoms():
    some, none = np.zeros((3, 3), np.float32), np.zeros((0, 3), np.float32)
    assert within(none, some, 1).tolist() == []
    assert within(some, none, 1, [9, 9, 9, 90, 90, 90]).tolist() == []
    assert within(some, some, 0).tolist() == [0, 1, 2]


def test_any_array_of_numbers():
    assert within([[0, 0, 0], [9, 0, 0]], np.ones((1, 3))[:, ::-1], 2).tolist() == [0]


SOME = np.zeros((3, 3), np.float32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((SOME[0], SOME, 1), r"positions must be an array of shape \(n, 3\), not \(3,\)"),
        ((SOME, np.zeros((3, 2)), 1), r"others must be an array of shape \(n, 3\), not \(3, 2\)"),
        ((SOME, SOME, -1), "cutoff must be a number, 0 or more, not -1"),
        ((SOME, SOME, float("nan")), "cutoff must be a number, 0 or more"),
        ((SOME, SOME, 1, [9, 9, 9]), "three lengths and three angles"),
        ((SOME, SOME, 1, [9, 9, 0, 90, 90, 90]), "lengths must be positive"),
        ((SOME, SOME, 1, [9, 9, 9, 20, 80, 120]), "angles must fit together"),
        ((SOME, SOME * np.nan, 1), "positions must be finite"),
        ((SOME + np.inf, SOME, 1), "positions must be finite"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(himach.UsageError, match=message):
        within(*arguments)
