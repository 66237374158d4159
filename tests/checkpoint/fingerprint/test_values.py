"""What setup() leaves for map(): what of it counts, and what is said where it cannot be compared."""

from __future__ import annotations

import io
import os
import pickle
import random
from collections import OrderedDict, defaultdict, deque
from pathlib import Path

import MDAnalysis
import numpy as np
import pytest
from checkpoint.fingerprint.fingerprints import TOPOLOGY, TRAJECTORY, fingerprint_of
from MDAnalysis.transformations import center_in_box, fit_rot_trans, translate
from scipy.spatial import cKDTree

from himach import Analysis
from himach.checkpoint.map_fingerprint import differences
from himach.digests.values import ValueDigests, topology_digest


class Kept(Analysis):
    """Keeps what a test says."""

    def map(self, frame):
        yield 1, self.thing


def keeping(make, **options):
    class Mine(Kept):
        def setup(self, universe):
            self.thing = make(universe)

    return fingerprint_of(Mine(), **options)


OTHER = ["self.thing is another after setup()"]


def test_a_reference_structure_belongs_to_the_first_frame():
    def make(u):
        return u.select_atoms("name CA").positions

    before = keeping(make, stop=10)
    assert differences(before, keeping(make)) == []
    assert differences(before, keeping(make, start=1)) == OTHER


@pytest.mark.parametrize(
    "make",
    [
        lambda u: u.select_atoms("name CA"),
        lambda u: u.atoms[3],
        lambda u: u.residues,
        lambda u: u.segments[0],
        lambda u: u.select_atoms("around 4 name CA", updating=True),
        lambda u: [u, {"a": u.atoms}],
        lambda u: u.trajectory,
        lambda u: u.trajectory.ts,
    ],
)
def test_what_follows_the_frame_does_not_count_by_it(make):
    assert differences(keeping(make), keeping(make, start=4)) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda u: u.select_atoms("name CA"), lambda u: u.select_atoms("name CB")),
        (lambda u: u.atoms[3], lambda u: u.atoms[4]),
        (lambda u: u.atoms[[3]], lambda u: u.atoms[3].residue),
        (
            lambda u: u.select_atoms("around 4 name CA", updating=True),
            lambda u: u.select_atoms("around 5 name CA", updating=True),
        ),
        (
            lambda u: u.select_atoms("around 4 name CA", updating=True),
            lambda u: u.select_atoms("resid 1:9").select_atoms("around 4 name CA", updating=True),
        ),
    ],
)
def test_groups_count_by_their_atoms(one, other):
    assert keeping(one).parts["state"] != keeping(other).parts["state"]


def test_another_universe_counts_by_its_positions():
    def copied(u):
        return u.copy().atoms

    def loaded(u):
        return MDAnalysis.Universe(TOPOLOGY, TRAJECTORY).atoms

    assert differences(keeping(copied), keeping(copied)) == []
    assert differences(keeping(copied), keeping(copied, start=2)) == OTHER
    assert differences(keeping(loaded), keeping(loaded, start=2)) == []


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda u: open(TOPOLOGY), "_io.TextIOWrapper"),  # noqa: SIM115
        (lambda u: {"deep": [io.StringIO("x"), (i for i in range(3))]}, "builtins.dict"),
        (lambda u: Restless(), "Restless"),
    ],
)
def test_what_cannot_be_compared_is_never_the_same(make, reason):
    before = keeping(make)
    assert reason in before.unstable["self.thing"]
    (told,) = differences(before, before)
    assert told.startswith("self.thing cannot be compared with that of another run (") and reason in told


TRANSFORMATIONS = {
    "translate": lambda u: translate([1, 2, 3]),
    "fit": lambda u: fit_rot_trans(u.select_atoms("name CA"), u.copy().select_atoms("name CA")),
    "center": lambda u: center_in_box(u.atoms),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_transformations_count(name):
    wanted = [True]

    def make(u):
        if wanted[0]:
            u.trajectory.add_transformations(TRANSFORMATIONS[name](u))
        return 1

    before, again = keeping(make), keeping(make)
    assert not before.unstable and differences(before, again) == []
    wanted[0] = False
    assert before.parts["state"]["universe.trajectory"] != keeping(make).parts["state"]["universe.trajectory"]


def test_a_topology_that_setup_changes_from_the_frame_counts():
    def make(u):
        u.add_TopologyAttr("tempfactors", u.atoms.positions[:, 0])
        return 1

    before = keeping(make)
    assert differences(before, keeping(make, stop=5)) == []
    assert differences(before, keeping(make, start=1)) == ["the topology is another"]


def test_caches_do_not_count():
    class Mine(Analysis):
        caches = ("buffer",)

        def setup(self, universe):
            self.buffer = universe.atoms.positions

        def map(self, frame):
            yield 1, len(self.buffer)

    assert differences(fingerprint_of(Mine()), fingerprint_of(Mine(), start=2)) == []


class Plain:
    def __init__(self, value):
        self.value = value


class Slotted:
    __slots__ = ("_hidden", "value")

    def __init__(self, value):
        self.value = value


class Restless:
    def __reduce__(self):
        return Restless, (), {"token": os.urandom(8)}


class Several(list):
    pass


class Table(np.ndarray):
    pass


def digest(value):
    return ValueDigests().digest(value)


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
    for i, one in enumerate(VALUES):
        same = [other for j, other in enumerate(VALUES) if j != i and digests[j] == digests[i]]
        assert not same, (one, same)


def test_values_are_the_same_after_a_journey():
    for value in VALUES:
        if not callable(value):
            assert digest(pickle.loads(pickle.dumps(value))) == digest(value), value


def test_arrays_count_by_what_is_in_them_wherever_it_lies():
    values = np.arange(12.0).reshape(3, 4)
    assert digest(values) == digest(np.asfortranarray(values)) == digest(np.repeat(values, 2, axis=0)[::2])


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


def test_what_setup_attached_to_the_universe_counts():
    class Mine(Analysis):
        def setup(self, universe):
            universe.reference = universe.atoms.positions

        def map(self, frame):
            yield 1, frame.universe.reference

    told = differences(fingerprint_of(Mine()), fingerprint_of(Mine(), start=1))
    assert told == ["universe.reference is another after setup()"]


def test_topologies_differ_by_every_attribute():
    universe = MDAnalysis.Universe(TOPOLOGY)
    before = topology_digest(universe._topology)
    assert before == topology_digest(MDAnalysis.Universe(TOPOLOGY)._topology)
    universe.atoms.positions += 1
    assert before == topology_digest(universe._topology)
    for change in (
        lambda u: setattr(u.atoms[3], "name", "X"),
        lambda u: setattr(u.atoms[3], "mass", 77),
        lambda u: setattr(u.residues[0], "resname", "X"),
        lambda u: setattr(u.atoms[3], "residue", u.residues[5]),
        lambda u: u.add_bonds([(0, 1)]),
    ):
        universe = MDAnalysis.Universe(TOPOLOGY)
        change(universe)
        assert before != topology_digest(universe._topology)


def test_a_thing_whose_attributes_do_not_count():
    """Such as a later stage of a chain without parameters, on which a run put the selected frames."""
    digests = ValueDigests(skipped=lambda cls: frozenset({"frames"}))
    bare, selected = Bare(), Bare()
    selected.frames = range(3)
    assert digests.digest(selected, stable=True) == digests.digest(bare, stable=True)


class Bare:
    """It has no attributes of its own."""
