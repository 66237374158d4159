"""Vectors of which only some atoms were requested, against plain arrays."""

import re

import MDAnalysis as mda
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from MDAnalysis import transformations
from support.io_samples import FORMATS

from himach.errors import AnalysisError
from himach.frame import RawFrame
from himach.io.trajectories.origin import open_origin
from himach.io.universe.requested import RequestedVectors
from himach.io.universe.topology import load_topology

from .test_view import new_view

N = 12


class Refused(Exception):  # noqa: N818
    """Carries the atom."""


def refuse(atom):
    raise Refused(atom)


def vectors_of(requested: np.ndarray) -> RequestedVectors:
    vectors = RequestedVectors(requested, refuse)
    vectors.vectors = np.arange(3 * len(requested), dtype=np.float32).reshape(-1, 3)
    return vectors


ATOMS = st.integers(-N - 1, N)
ROWS = st.one_of(
    ATOMS,
    ATOMS.map(np.int32),
    st.slices(N),
    st.lists(ATOMS, min_size=1).map(lambda some: np.array(some, dtype=np.int64)),
    st.lists(ATOMS, min_size=1).map(lambda some: np.array(some, dtype=np.int32)),
    st.lists(ATOMS, min_size=1),
    st.lists(ATOMS, min_size=2, max_size=2).map(lambda some: np.array(some * 4).reshape(2, 4)[:, ::2]),
    st.lists(st.booleans(), min_size=N, max_size=N).map(np.array),
    st.lists(st.booleans(), min_size=N, max_size=N),
)
KEYS = st.one_of(ROWS, st.tuples(ROWS, st.one_of(st.integers(0, 2), st.slices(3))), ROWS.map(lambda rows: (rows,)))


@given(requested=st.lists(st.booleans(), min_size=N, max_size=N).map(np.array), key=KEYS)
def test_any_index_is_an_arrays_or_refused_for_the_first_atom_not_asked_for(requested, key):
    vectors = vectors_of(requested)
    rows = key[0] if isinstance(key, tuple) else key
    try:
        chosen = np.atleast_1d(np.arange(N)[rows]).ravel()
    except IndexError:
        with pytest.raises(IndexError):
            vectors[key]
        return
    plain = vectors.vectors.copy()
    if requested[chosen].all():
        np.testing.assert_array_equal(vectors[key], plain[key])
        assert np.shape(vectors[key]) == np.shape(plain[key])
        assert vectors[key].dtype == np.float32
        vectors[key] = 7
        plain[key] = 7
        np.testing.assert_array_equal(vectors.vectors, plain)
        return
    first = int(chosen[~requested[chosen]][0])
    for access in (lambda: vectors[key], lambda: vectors.__setitem__(key, 7)):
        with pytest.raises(Refused) as caught:
            access()
        assert caught.value.args == (first,)
    np.testing.assert_array_equal(vectors.vectors, plain)


def test_what_needs_every_atom_is_refused():
    vectors = vectors_of(np.arange(N) < 3)
    assert (vectors.shape, vectors.dtype, vectors.ndim, len(vectors)) == ((N, 3), np.float32, 2, N)
    assert repr(vectors) == "RequestedVectors(3 of 12 atoms)"
    for use in (
        lambda: np.asarray(vectors),
        lambda: np.array(vectors),
        lambda: vectors - 1,
        lambda: np.ones((N, 3)) + vectors,
        lambda: np.mean(vectors, axis=0),
        lambda: vectors.mean(0),
        lambda: vectors.copy("C"),
        lambda: vectors.T,
        lambda: list(vectors),
        lambda: vectors[...],
        lambda: vectors[None],
        lambda: vectors == vectors,
    ):
        with pytest.raises(Refused, match="None"):
            use()
    with pytest.raises(AttributeError):
        vectors.nonsense


@pytest.fixture(scope="module")
def opened():
    topology, trajectory = FORMATS["XTC"]
    origin = open_origin([trajectory], topology)
    return origin, load_topology(topology, origin), mda.Universe(topology, trajectory)


def only(raw: RawFrame, atoms: np.ndarray) -> RawFrame:
    """Return the frame as a store gives it: what was not requested for is rubbish."""
    positions = np.full_like(raw.positions, np.nan)
    positions[atoms] = raw.positions[atoms]
    return RawFrame(raw.number, raw.time, positions, raw.box)


@pytest.mark.parametrize("copy", [False, True])
def test_groups_of_requested_atoms_are_those_of_mdanalysis(opened, copy):
    origin, _, theirs = opened
    view = new_view(opened)
    ours = [view.universe.select_atoms("name CA and resid 1:50", updating=u) for u in (0, 1)]
    view.ask([view.universe.select_atoms("name OW and resid 300:2000"), view.universe.select_atoms("protein").residues])
    for number in (0, 3, 1):
        frame = view.bind(only(next(origin.read([number])), view.needs), number, copy)
        theirs.trajectory[number]
        others = theirs.select_atoms("name CA and resid 1:50")
        for group in ours:
            np.testing.assert_array_equal(group.center_of_mass(), others.center_of_mass())
        protein = view.universe.select_atoms("protein")
        water, text = "name OW and resid 300:2000", "around 5 global group protein"
        near, expected = (
            u.select_atoms(water).select_atoms(text, protein=u.select_atoms("protein")) for u in (view.universe, theirs)
        )
        assert len(near)
        np.testing.assert_array_equal(near.indices, expected.indices)
        np.testing.assert_array_equal(frame.positions[protein.ix], theirs.select_atoms("protein").positions)
        assert protein.radius_of_gyration() == theirs.select_atoms("protein").radius_of_gyration()
        protein.positions = protein.positions + 1
        np.testing.assert_array_equal(frame.positions[protein.ix[:1]], theirs.atoms.positions[protein.ix[:1]] + 1)


def test_other_atoms_are_refused_by_name(opened):
    origin = opened[0]
    view = new_view(opened)
    protein = view.universe.select_atoms("protein")
    view.ask(protein)
    frame = view.bind(next(origin.read([1])), 1)
    universe = frame.universe
    water = universe.select_atoms("resname SOL")
    first = water[0]
    words = re.escape(f"Shell touches atom {first.index} ({first.name} of residue SOL {first.resid})")
    for touch in (
        lambda: frame.positions[water.ix],
        lambda: frame.positions[first.ix],
        lambda: water.positions,
        water.center_of_geometry,
        lambda: water.translate([1, 0, 0]),
        lambda: first.position,
        lambda: universe.atoms.positions,
        lambda: universe.select_atoms("resname SOL and around 3 protein"),
        lambda: universe.trajectory.ts.positions[water.ix],
        lambda: universe.trajectory.ts[water.ix],
        lambda: universe.trajectory.ts.copy().positions[water.ix],
        lambda: setattr(universe.trajectory.ts, "positions", np.zeros((universe.atoms.n_atoms, 3))),
    ):
        with pytest.raises(AnalysisError, match=words + r".*add it to atoms\(\) of Shell"):
            touch()
    with pytest.raises(AnalysisError, match="positions, velocities or forces of all 47681 atoms"):
        np.asarray(universe.trajectory.ts.positions)
    assert len(protein.positions) == len(protein)


@pytest.mark.parametrize("replaces", [False, True])
def test_transformations_get_all_atoms(opened, replaces):
    origin, _, theirs = opened
    view = new_view(opened)

    def shifted(ts):
        new = ts.copy() if replaces else ts
        new.positions -= new.positions[-1]
        return new

    view.universe.trajectory.add_transformations(transformations.translate([1, 2, 3]), shifted)
    view.ask(view.universe.atoms[:4])
    assert view.needs is None
    for number in (2, 0):
        frame = view.bind(next(origin.read([number])), number)
        theirs.trajectory[number]
        moved = theirs.atoms.positions + np.float32([1, 2, 3])
        np.testing.assert_array_equal(frame.positions[:4], (moved - moved[-1])[:4])
        with pytest.raises(AnalysisError, match="touches atom 4 "):
            view.universe.atoms[:5].positions


def test_all_atoms_are_a_plain_array(opened):
    view = new_view(opened)
    view.ask(view.universe.segments)
    assert view.needs is None
    assert type(view.bind(next(opened[0].read([0])), 0).positions) is np.ndarray


def test_no_atoms(opened):
    view = new_view(opened)
    view.ask([])
    assert len(view.needs) == 0
    frame = view.bind(next(opened[0].read([0])), 0)
    assert len(frame.positions[np.array([], dtype=np.int64)]) == 0
    with pytest.raises(AnalysisError, match="touches atom 0 "):
        frame.positions[:]


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (lambda u: None, r"atoms\(\) of Shell returned None \(NoneType\); return an AtomGroup"),
        (lambda u: u.atoms.ix, r"atoms\(\) of Shell returned .*0.* \(int64\)"),
        (lambda u: ["protein"], r"returned 'protein' \(str\)"),
        (lambda u: u.select_atoms("prop x > 3", updating=True), "a group that updates"),
        (lambda u: [u.copy().atoms], "a group of another Universe"),
    ],
)
def test_senseless_atoms_are_refused(opened, groups, words):
    view = new_view(opened)
    with pytest.raises(AnalysisError, match=words):
        view.ask(groups(view.universe))
