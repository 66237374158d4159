"""Runs of presence and survival, against sets of what is present in each frame as waterdynamics has them."""

import warnings

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from MDAnalysis.lib.correlations import autocorrelation, correct_intermittency

from himach.examples.survival import find_runs, find_runs_of_many, survival

presence = st.lists(st.sets(st.integers(0, 4)), min_size=1, max_size=25)


def runs_of(sets, intermittency):
    atoms = sorted(set().union(*sets))
    return [find_runs(np.flatnonzero([atom in frame for frame in sets]), intermittency) for atom in atoms]


def pairs(runs):
    """First frames and lengths."""
    return np.frombuffer(runs, np.int64).reshape(-1, 2).tolist()


def by_sets(sets, tau_max):
    """Intersect the sets of [t, t + tau], frame by frame."""
    probability = []
    for tau in range(tau_max + 1):
        ratios = [
            len(set.intersection(*sets[t : t + tau + 1])) / len(sets[t]) for t in range(len(sets) - tau) if sets[t]
        ]
        probability.append(np.mean(ratios) if ratios else np.nan)
    return probability


@given(presence, st.integers(0, 4))
def test_runs_of_many_are_those_of_each(sets, intermittency):
    each = [np.flatnonzero([atom in frame for frame in sets]) for atom in sorted(set().union(*sets))]
    assume(each)
    offsets = np.cumsum([0, *map(len, each)])
    for order in (1, -1):  # backwards, a selection's steps descend
        steps = np.concatenate([atom[::order] for atom in each])
        together = find_runs_of_many(steps, offsets, intermittency)
        for runs, atom, alone in zip(together, each, runs_of(sets, intermittency), strict=True):
            assert runs == alone
            assert find_runs(atom[::order], intermittency) == alone


@given(presence, st.integers(0, 4), st.data())
def test_survival_is_that_of_sets(sets, intermittency, data):
    tau_max = data.draw(st.integers(0, len(sets) - 1))
    found = survival(runs_of(sets, intermittency), len(sets), tau_max)
    np.testing.assert_allclose(found, by_sets(correct_intermittency(sets, intermittency), tau_max), rtol=1e-14)


@given(presence, st.integers(0, 4), st.data())
def test_survival_is_that_of_mdanalysis(sets, intermittency, data):
    tau_max = data.draw(st.integers(0, len(sets) - 1))
    filled = correct_intermittency(sets, intermittency)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # means of nothing
        _, expected, _ = autocorrelation(filled, tau_max)
    found = survival(runs_of(sets, intermittency), len(sets), tau_max)
    if not any(sets):
        expected[0] = np.nan  # which says 1 of nothing
    np.testing.assert_allclose(found, expected, rtol=1e-14)


@given(presence, st.integers(0, 4))
def test_runs_cover_the_filled_frames(sets, intermittency):
    filled = correct_intermittency(sets, intermittency)
    for atom in set().union(*sets):
        steps = np.flatnonzero([atom in frame for frame in sets])
        runs = find_runs(np.sort(np.append(steps, steps)), intermittency)  # twice is once
        covered = [step for first, length in pairs(runs) for step in range(first, first + length)]
        assert covered == np.flatnonzero([atom in frame for frame in filled]).tolist()


def test_nothing_ever_present():
    np.testing.assert_array_equal(survival([], 5, 2), [np.nan] * 3)


@pytest.mark.parametrize(("intermittency", "expected"), [(0, [[0, 1], [3, 2]]), (1, [[0, 1], [3, 2]]), (2, [[0, 5]])])
def test_gaps(intermittency, expected):
    assert pairs(find_runs(np.array([0, 3, 4]), intermittency)) == expected
