"""contacts() beside neighbors(): pairs of groups and their least distances from the pairs of atoms, one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.situations import situations

import himach
from himach.kernels import contacts, neighbors


def slow_contacts(a, groups, b, other_groups, cutoff, box):
    """Return pairs of groups, in order, and the least distance of each, from the list of pairs of atoms."""
    others = groups if b is None else other_groups
    least = {}
    for (i, j), distance in zip(*(array.tolist() for array in neighbors(a, b, cutoff, box)), strict=True):
        pair = groups[i], others[j]
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
    groups = [random.integers(0, most, len(some)) for some in (situation.a, situation.b)]
    return situation, *groups


@settings(max_examples=200)
@given(grouped(), st.booleans())
def test_beside_pairs_of_atoms(drawn, one):
    situation, groups, other_groups = drawn
    b, other_groups = (None, None) if one else (situation.b, other_groups)
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


def test_none_within_the_cutoff():
    positions = np.arange(300, dtype=np.float32).reshape(-1, 3)
    for distances in (True, False):
        found = contacts(positions, np.arange(100), None, None, 1, return_distances=distances)
        assert len(found[0] if distances else found) == 0


SOME = np.zeros((3, 3), np.float32)


def test_no_atoms():
    pairs, distances = contacts(SOME[:0], [], SOME, [0, 0, 1], 1)
    assert pairs.shape == (0, 2)
    assert distances.shape == (0,)
    assert contacts(SOME, [4, 4, 4], None, None, 1, return_distances=False).shape == (0, 2)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((SOME, [0, 1], None, None, 1), r"groups must have the shape \(3,\)"),
        ((SOME, None, None, None, 1), "groups must have the number of each position's group"),
        ((SOME, [0, 1, 1], SOME, None, 1), "groups must have the number of each position's group"),
        ((SOME, [0, 1, 1], None, [0, 1, 1], 1), "other_groups are of others, and there are none"),
        ((SOME, [0, -1, 1], None, None, 1), "groups are numbers from 0"),
        ((SOME, [0, 2**40, 1], None, None, 1), "are too many"),
        ((SOME, [0.0, 1.0, 1.0], None, None, 1), "groups must be integers"),
        ((SOME, [0, 1, 1], None, None, -1), "cutoff must be a number, 0 or more"),
        ((SOME * np.nan, [0, 1, 1], None, None, 1), "must be finite"),
        ((SOME, [0, 1, 1], None, None, 1, [1, 1, 0, 90, 90, 90]), "is none"),
    ],
)
def test_refusals(arguments, error):
    with pytest.raises(himach.UsageError, match=error):
        contacts(*arguments)
