"""Runs of analyses that say what they read: the same answers, less reading, and an error for everything else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.cache_data import N_ATOMS, N_FRAMES, make
from support.io_samples import FORMATS

import himach
from himach.frame import FIELDS, POSITIONS, VELOCITIES
from himach.io.frame_source import WHOLE
from himach.io.store import store
from himach.io.trajectory import xtc
from himach.runner.run import run


class Centre(himach.Analysis):
    """Where some atoms are, and what the Universe says of them; reads all frames whole."""

    first: int = 0
    last: int = 5

    def setup(self, universe):
        self.group = universe.atoms[self.first : self.last]
        self.atoms = self.group.ix  # an attribute may have the name of the method

    def map(self, frame):
        yield "rows", frame.positions[self.atoms]
        yield "group", self.group.center_of_geometry()

    def reduce(self, key, series):
        return np.array(series.values)

    def finish(self, results):
        return dict(results)


class Asking(Centre):
    """The same, reading those atoms alone."""

    def atoms(self, universe):
        return [universe.atoms[self.first : self.first + 1], self.group]


class Touching(Asking):
    """Touches an atom that it does not ask for."""

    def map(self, frame):
        yield "rows", frame.universe.atoms[self.last].position


class Fast(himach.Analysis):
    """Uses velocities in every `every`-th frame, and forces if there are any."""

    every: int = 1
    through: str = "frame"

    def setup(self, universe):
        self.group = universe.atoms[3:30]

    def map(self, frame):
        if frame.number % self.every == self.every - 1:
            if self.through == "frame":
                yield "v", None if frame.velocities is None else frame.velocities[self.group.ix]
                yield "f", None if frame.forces is None else frame.forces[self.group.ix]
            else:
                ts = frame.universe.trajectory.ts
                yield "v", self.group.velocities if ts.has_velocities else None
                yield "f", self.group.forces if ts.has_forces else None
        yield "x", frame.positions[self.group.ix]

    def reduce(self, key, series):
        return np.array(series.values)

    def finish(self, results):
        return dict(results)


class FastOfSome(Fast):
    """The same of some atoms."""

    def atoms(self, universe):
        return self.group


@pytest.fixture
def place(tmp_path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def asked_of_the_store(monkeypatch) -> list:
    """Return a list that fills with what is asked of the store: number of frames, fields."""
    asked = []
    read = store.Dataset.read

    def noting(self, numbers, options=WHOLE):
        asked.append((len(numbers), options.fields or FIELDS))
        return read(self, numbers, options)

    monkeypatch.setattr(store.Dataset, "read", noting)
    return asked


def bits(outcome: dict) -> dict[str, bytes]:
    """Return every bit of an outcome."""
    return {name: b"".join(np.asarray(value).tobytes() for value in outcome[name]) for name in sorted(outcome)}


def outcomes(analysis, trajectory, topology, place):
    """Analyse without a cache, filling it, and from it; check that the outcomes agree to the last bit."""
    results = [run(analysis, trajectory, topology, cache=cache, progress=False) for cache in ("off", place, place)]
    several = isinstance(analysis, list)
    every = [list(result.outcome.values()) if several else [result.outcome] for result in results]
    for others in every[1:]:
        for one, other in zip(every[0], others, strict=True):
            assert bits(one) == bits(other)
    assert results[2].record["bytes"]["origin"] == 0
    return every[0]


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("name", ["md.trr", "md.xtc", "md.dcd"])
def test_the_answer_is_the_same_with_atoms(tmp_path, place, name):
    topology, trajectory = make(tmp_path, name=name)
    (expected,) = outcomes(Centre(), trajectory, topology, place)
    (found,) = outcomes(Asking(), trajectory, topology, place / "other")
    assert bits(found) == bits(expected)


def test_several_analyses_each_see_their_own_atoms(tmp_path, place):
    topology, trajectory = make(tmp_path)
    ranges = [(0, 5), (40, N_ATOMS), (3, 44)]
    asking = outcomes([Asking(first=a, last=b) for a, b in ranges], trajectory, topology, place)
    mixed = outcomes([Asking(first=0, last=5), Centre(first=40, last=N_ATOMS)], trajectory, topology, place / "two")
    plain = [run(Centre(first=a, last=b), trajectory, topology, cache="off").outcome for a, b in ranges]
    assert [bits(one) for one in asking] == [bits(one) for one in plain]
    assert [bits(one) for one in mixed] == [bits(one) for one in plain[:2]]
    with pytest.raises(himach.AnalysisError, match=r"Touching touches atom 5 \(C of residue RES 1\)"):
        run([Centre(), Touching(), Asking(first=5, last=6)], trajectory, topology, cache=place)


def test_an_atom_that_was_not_asked_for(tmp_path, place):
    topology, trajectory = make(tmp_path)
    for cache in ("off", place, place):
        with pytest.raises(himach.AnalysisError) as caught:
            run(Touching(), trajectory, topology, cache=cache)
        text = str(caught.value)
        assert "Touching touches atom 5 (C of residue RES 1), which its atoms() does not ask for" in text
        assert "add it to atoms() of Touching" in text
        assert "frame 0" in text


def test_atoms_that_fail(tmp_path):
    topology, trajectory = make(tmp_path, 2)

    class Wrong(Centre):
        def atoms(self, universe):
            return universe.select_atoms("no such word")

    with pytest.raises(himach.AnalysisError, match=r"Wrong.*atoms\(\)"):
        run(Wrong(), trajectory, topology, cache="off")


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("through", ["frame", "universe"])
@pytest.mark.parametrize("kind", [Fast, FastOfSome])
@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("name", ["md.trr", "md.xtc"])
def test_velocities_are_right_from_the_first_touch(tmp_path, place, asked_of_the_store, name, every, kind, through):
    topology, trajectory = make(tmp_path, name=name)
    (found,) = outcomes(kind(every=every, through=through), trajectory, topology, place)
    assert len(found["x"]) == N_FRAMES
    assert len(found["v"]) == N_FRAMES // every
    assert (found["v"][0] is None) == (name == "md.xtc")
    assert (0, FIELDS) not in asked_of_the_store
    assert asked_of_the_store[-1][1] == FIELDS  # turned on for what follows


def test_velocities_are_not_read_unless_touched(tmp_path, place, asked_of_the_store):
    topology, trajectory = make(tmp_path)
    run(Centre(), trajectory, topology, cache=place)
    asked_of_the_store.clear()
    run(Centre(), trajectory, topology, cache=place)
    (opening, *tasks) = asked_of_the_store
    assert opening == (1, FIELDS)  # the first frame, for setup()
    assert {fields for _, fields in tasks} == {POSITIONS}
    assert sum(count for count, _ in tasks) == N_FRAMES


def test_frames_are_not_read_twice_for_a_field(tmp_path, place, asked_of_the_store):
    topology, trajectory = make(tmp_path)
    run(Fast(), trajectory, topology, cache=place)
    asked_of_the_store.clear()

    class Velocities(Fast):
        def map(self, frame):
            yield "v", frame.velocities

    run([Velocities(), Velocities()], trajectory, topology, cache=place)
    opening, first_task, late, *tasks = asked_of_the_store
    assert opening == (1, FIELDS)
    assert first_task[1] == POSITIONS
    assert late == (first_task[0], VELOCITIES)  # one second reader for both analyses
    assert {fields for _, fields in tasks} == {POSITIONS | VELOCITIES}


def test_xtc_is_decoded_up_to_the_last_atom_and_kept_whole(tmp_path, place, monkeypatch):
    topology, trajectory = make(tmp_path, name="md.xtc")
    needed = []
    decode = xtc.decode
    monkeypatch.setattr(xtc, "decode", lambda *given: needed.append(given[-1]) or decode(*given))
    for cache in ("off", place):
        needed.clear()
        run(Asking(), trajectory, topology, cache=cache)
        assert needed[-N_FRAMES:] == [5] * N_FRAMES
    (complete,) = outcomes(Centre(first=40, last=N_ATOMS), trajectory, topology, place)
    assert len(complete["rows"]) == N_FRAMES


def test_only_the_blocks_of_asked_atoms_are_read(place):
    topology, trajectory = FORMATS["XTC"]
    results = {}
    for analysis in (Centre(), Asking(), Asking(first=3, last=3)):
        for _ in range(2):
            results[analysis.label(), analysis.first] = run(analysis, trajectory, topology, cache=place)
    whole, some, none = results["Centre", 0], results["Asking", 0], results["Asking", 3]
    assert bits(some.outcome) == bits(whole.outcome)
    sizes = [result.record["bytes"]["cache"] for result in (none, some, whole)]
    assert sizes[0] <= sizes[1] < sizes[2] / 5
    assert whole.record["bytes"]["origin"] == some.record["bytes"]["origin"] == 0
