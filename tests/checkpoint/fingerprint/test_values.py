"""Digests of values: they differ where values do, and are the same for what is the same."""

import pickle
import random
from collections import OrderedDict, defaultdict, deque
from pathlib import Path

import MDAnalysis as mda
import numpy as np
import pytest
from scipy.interpolate import UnivariateSpline, interp1d
from scipy.spatial import cKDTree

from himach.state_hash import StateHasher, topology_digest


class Plain:
    def __init__(self, value):
        self.value = value


class Slotted:
    __slots__ = ("_hidden", "value")

    def __init__(self, value):
        self.value = value


class Several(list):
    pass


class Table(np.ndarray):
    pass


def digest(value):
    return StateHasher().digest(value)


def own(value, **attributes):
    for name, each in attributes.items():
        setattr(value, name, each)
    return value


VALUES = [
    *(0, 1, True, 1.0, -0.0, 0.0, float("nan"), 1j, "1", b"1", None, ..., range(3), range(4), slice(1), "\udc80"),
    *([], (), {}, set(), frozenset(), [1], (1,), {1}, {1: 1}, {1: None}, [[1]], [[], 1], bytearray(b"1")),
    *({"a": 1, "b": 2}, {"b": 2, "a": 1}, OrderedDict(a=1), defaultdict(list, a=1), deque([1]), deque([1], 3)),
    *(np.arange(3), np.arange(3.0), np.arange(3, dtype=np.int32), np.arange(4)[:3].reshape(3, 1), np.arange(0)),
    *(np.zeros((2, 3)), np.zeros((3, 2)), np.zeros(0), np.zeros((0, 3)), np.array(1), np.int64(1), np.float32(1)),
    *(np.array([1, None], dtype=object), np.array([None, 1], dtype=object), np.array(["a", "bc"]), np.array([b"a"])),
    *(np.zeros(2, dtype=[("a", int)]), np.zeros(2, dtype=[("b", int)]), np.ma.masked_array([1, 2], [0, 1])),
    *(np.ma.masked_array([1, 2], [1, 0]), np.array([1, 2]).view(Table), np.array([1, 3]).view(Table)),
    *(np.array(["2020-01-01"], dtype="M8[D]"), np.random.default_rng(1), np.random.default_rng(2)),
    *(random.Random(1), random.Random(2), np.random.RandomState(1), Path("a"), Path("b")),
    *(Plain(1), Plain(2), Slotted(1), Slotted(2), Several([1]), Several([2])),
    *(own(Several([1]), more=1), own(Several([1]), more=2), Plain([Plain(1)]), Plain([Plain(2)])),
    *(cKDTree(np.eye(3)), cKDTree(2 * np.eye(3)), len, max, np.sin, np.cos, int, float, [].append, [1].append),
    *((1, 2), (2, 1), ((1,), 2), (1, (2,)), ["ab"], ["a", "b"], [1, "1"], ["1", 1]),
]


def test_values_differ_where_they_are_different():
    digests = [digest(value) for value in VALUES]
    for i, value in enumerate(VALUES):
        same = [other for j, other in enumerate(VALUES) if j != i and digests[j] == digests[i]]
        assert not same, (value, same)


def test_values_are_the_same_after_a_journey():
    for value in VALUES:
        if not callable(value):
            assert digest(pickle.loads(pickle.dumps(value))) == digest(value), value


def test_interpolators_count_by_their_data_and_kind():
    """SciPy has them in private tuples and texts."""
    x = np.arange(5.0)
    for first, second in (
        (UnivariateSpline(x, x**2, s=0), UnivariateSpline(x, x**3, s=0)),
        (interp1d(x, x**2), interp1d(x, x**3)),
        (interp1d(x, x, kind="nearest"), interp1d(x, x, kind="previous")),
    ):
        assert digest(first) != digest(second)


def test_arrays_count_by_what_is_in_them_wherever_it_lies():
    values = np.arange(12.0).reshape(3, 4)
    assert digest(values) == digest(np.asfortranarray(values)) == digest(np.repeat(values, 2, axis=0)[::2])


def test_equal_texts_count_the_same_whether_they_are_one_object_or_two():
    for text in ("some", b"some"):
        assert digest([text, text]) == digest([text, text[:2] + text[2:]])


def test_things_that_lie_in_themselves_end():
    loop = [1]
    loop.append(loop)
    other = [2]
    other.append(other)
    assert digest(loop) != digest(other)
    assert digest(loop) == digest(pickle.loads(pickle.dumps(loop)))
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(RecursionError):
        digest(deep)


def test_one_of_many_bonds_counts():
    def digest_with(last):
        universe = mda.Universe.empty(300, trajectory=True)
        universe.add_TopologyAttr("bonds", [*((i, i + 1) for i in range(298)), (0, last)])
        return topology_digest(universe._topology)

    assert digest_with(298) == digest_with(298) != digest_with(299)
