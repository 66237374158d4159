"""Flip-flops beside those of lipyphilic."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lipyphilic._lipyferric import molecule_flip_flop

from himach.examples.membranes.flip_flops import find_flip_flops, states_of

#: The cholesterol of lipyphilic's tests, and what these expect, by the number of frames of a stay.
CHOLESTEROL = [-1] * 6 + [0, 0, 1, 0, 0] + [1] * 7 + [0] + [-1] * 6
KNOWN = {
    1: [(5, 8, 1, "success"), (8, 11, 1, "fail"), (17, 19, -1, "success")],
    2: [(5, 11, 1, "success"), (17, 19, -1, "success")],
    8: [(5, 24, -1, "ongoing")],
    14: [],
}


def found(states, stay):
    return [(event.left, event.arrived, event.target, event.outcome) for event in find_flip_flops(states, stay)]


@pytest.mark.parametrize("stay", KNOWN)
def test_known_cases(stay):
    assert found(CHOLESTEROL, stay) == KNOWN[stay]


@settings(max_examples=400)
@given(st.lists(st.tuples(st.sampled_from([-1, 0, 1]), st.integers(1, 6)), min_size=2, max_size=30), st.integers(1, 6))
def test_as_lipyphilic_does(runs, stay):
    states = np.repeat(*np.array([(1, 1), *runs, (-1, 1)]).T).astype(np.int8)  # one that begins between is another case
    expected = molecule_flip_flop(leaflets=states, frame_cutoff=stay)
    assert found(states, stay) == [(*row, outcome.lower()) for *row, outcome in zip(*expected, strict=True)]


def test_one_that_begins_between_has_not_left_a_leaflet():
    assert found([0, 0, 1, 1, 0, -1], 1) == [(3, 5, -1, "success")]
    assert found([0, 0, 0], 1) == []
    assert found([1, 1, 1], 1) == []


def test_states_of_runs():
    runs = [(1, np.array([0, 2, 5, 1]).tobytes()), (0, np.array([2, 1]).tobytes())]
    assert states_of(runs, 7, -1).tolist() == [1, 1, 0, -1, -1, 1, -1]
