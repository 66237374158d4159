"""The time-major form that runs make by themselves: when, where, by whom, and when not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from MDAnalysisTests.datafiles import DCD, PSF
from support.cache_data import stage_on_nodes
from support.commands import himach

from himach import Analysis
from himach import run as himach_run
from himach.io.store.quota import survey
from himach.io.store.store import Store, StoreConflictError
from himach.io.timemajor import making as making_module
from himach.io.timemajor import uses
from himach.io.timemajor.form import open_form
from himach.io.timemajor.making import making
from himach.io.timemajor.uses import FIRST_SPEED, RUNS, SHARE, Uses, is_worth_it
from himach.runner import rank

FEW = [5, 100, 2000]
NO_SPEED = b'{"runs": 3, "credit": 1, "speed": 0, "wanted": true}'
ENDLESS = b'{"runs": 3, "credit": Infinity, "speed": 1e8, "wanted": true}'
# Runs of milliseconds count here, and earn what it takes.
SCRIPT = """
import himach
import himach.io.timemajor.uses
import himach.runner.rank

himach.runner.rank.WORTH_COUNTING = 0.0
himach.io.timemajor.uses.SHARE = 1e6

class Few(himach.Analysis):
    def atoms(self, universe):
        return universe.atoms[[5, 100, 2000]]

    def map(self, frame):
        yield frame.number, float(frame.positions[100, 0])

    def reduce(self, key, series):
        return series.values[0]
"""


class Some(Analysis):
    """Positions of an atom, of some that are read."""

    def __init__(self, chosen):
        self.chosen = chosen

    def atoms(self, universe):
        return universe.atoms[self.chosen]

    def map(self, frame):
        yield frame.number, float(frame.positions[100, 0])

    def reduce(self, key, series):
        return series.values[0]


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store that holds AdK; runs of milliseconds count, and earn what it takes."""
    monkeypatch.setattr(rank, "WORTH_COUNTING", 0.0)
    monkeypatch.setattr(uses, "SHARE", 1e6)
    himach("stage", DCD, "--topology", PSF, "--cache", tmp_path / "store")
    return tmp_path / "store"


def dataset_in(place):
    store = Store(place)
    (name,) = (name for name in store.names() if not name.endswith("]"))
    (generation,) = store.generations(name)
    return store.dataset(name, generation)


def run(store, atoms=FEW, **more):
    """Return what a run gives, and the bytes that it reads."""
    result = himach_run(Some(atoms), DCD, PSF, cache=store, reuse="never", progress=False, **more)
    return {name: list(column) for name, column in result.outcome.items()}, result.record["bytes"]


def test_runs_that_ask_again_and_again_for_few_atoms_make_it(store):
    for _ in range(RUNS - 1):
        expected, before = run(store)
        assert open_form(dataset_in(store)) is None
    outcome, read = run(store)
    assert (outcome, read) == (expected, before)
    assert len(open_form(dataset_in(store)).chunks()) == 1
    outcome, read = run(store)
    assert outcome == expected
    assert read["cache"] * 10 < before["cache"]
    assert read["origin"] == 0


def test_not_for_runs_of_most_atoms_or_few_frames(store):
    for _ in range(RUNS + 1):
        run(store, atoms=list(range(1500)))
        run(store, step=49)
    assert open_form(dataset_in(store)) is None


def test_not_where_somebody_wants_the_frames_alone(store):
    himach("stage", DCD, "--topology", PSF, "--cache", store, "--layout", "frame")
    for _ in range(RUNS + 1):
        run(store)
    assert open_form(dataset_in(store)) is None
    himach("stage", DCD, "--topology", PSF, "--cache", store, "--layout", "both")
    assert Uses.of(dataset_in(store)).wanted


def test_not_where_the_quota_has_no_room(store, monkeypatch):
    held = {segment.id for segment in survey(store).segments}
    monkeypatch.setenv("HIMACH_QUOTA", str(survey(store).used + 20000))
    expected, _ = run(store)
    for _ in range(RUNS):
        assert run(store)[0] == expected
    form = open_form(dataset_in(store))
    assert form is None or not len(form.chunks())
    assert held <= {segment.id for segment in survey(store).segments}


def test_what_fails_there_fails_no_run(store, monkeypatch):
    def fails(maker, chunk):
        raise ZeroDivisionError

    monkeypatch.setattr(making_module.Maker, "make", fails)
    expected, _ = run(store)
    for _ in range(RUNS):
        assert run(store)[0] == expected
    assert Uses.of(dataset_in(store)).credit == 0


def test_not_in_a_run_whose_time_is_limited(store, tmp_path):
    for _ in range(RUNS + 1):
        run(store, out=tmp_path / "out", max_time=600)
    assert open_form(dataset_in(store)) is None


def test_a_chunk_of_no_frames_is_not_made(store):
    dataset = dataset_in(store)
    maker = making_module.Maker(dataset, making_module.begin_form(dataset, 3341))
    assert not maker.make(7)
    assert maker.make(0)


def test_a_form_whose_facts_are_damaged_is_not_deleted(store):
    dataset = dataset_in(store)
    form = making_module.begin_form(dataset, 3341)
    assert making_module.Maker(dataset, form).make(0)
    form.dataset.attach("time-major.json", b"{")
    with pytest.raises(StoreConflictError, match="no time-major form"):
        making_module.begin_form(dataset, 3341)
    assert form.dataset.native


def test_not_beside_another_that_makes_it(store):
    for _ in range(RUNS - 1):
        run(store)
    with making(dataset_in(store)):
        run(store)
    assert open_form(dataset_in(store)) is None
    run(store)
    assert open_form(dataset_in(store)) is not None


def test_what_was_earned_is_not_overdrawn(store, monkeypatch):
    monkeypatch.setattr(uses, "SHARE", 1e-9)
    for _ in range(RUNS + 1):
        run(store)
    assert open_form(dataset_in(store)) is None
    assert Uses.of(dataset_in(store)).runs == RUNS + 1


def test_it_goes_on_where_it_stopped(store, monkeypatch):
    """Bit by bit: a chunk a run, as much as was earned."""
    monkeypatch.setattr(Uses, "seconds", lambda uses, nbytes, took: 1e-9)
    monkeypatch.setattr(making_module, "span_for", lambda *of: 20)
    expected, _ = run(store)
    read = []
    for made in range(2, 6):
        outcome, nbytes = run(store)
        assert outcome == expected
        assert len(open_form(dataset_in(store)).chunks()) == made
        read.append(nbytes["cache"])
    assert read == sorted(read, reverse=True)


@pytest.mark.slow
def test_each_node_makes_its_own(tmp_path):
    nodes = ["a", "a", "b"]
    (tmp_path / "few.py").write_text(SCRIPT)
    words = [tmp_path / "few.py", "-t", DCD, "-s", PSF, "--reuse", "never"]
    assert stage_on_nodes(tmp_path, nodes, "stage", DCD, "--topology", PSF).returncode == 0
    tables, read = set(), []
    for i in range(RUNS + 1):
        out = tmp_path / f"out{i}"
        done = stage_on_nodes(tmp_path, nodes, "run", *words, "--out", out)
        assert done.returncode == 0, done.stderr
        assert ("so 2 chunks of the time-major form were made in" in done.stderr) == (i == RUNS - 1)
        tables.add((out / "Few.csv").read_bytes())
        read.append(json.loads((out / "run.json").read_text())["bytes"]["cache"])
    assert len(tables) == 1
    assert read[-1] * 10 < read[0]
    assert all(len(open_form(dataset_in(tmp_path / name)).chunks()) == 1 for name in ("a", "b"))


@given(st.lists(st.floats(0.0, 1e4), max_size=20), st.integers(1, 1 << 40), st.floats(1e6, 1e10))
def test_what_is_spent_was_earned(took, nbytes, speed):
    known, spent, one = Uses(speed=speed), 0.0, nbytes / speed
    for seconds in took:
        known.add(seconds)
        limit = known.seconds(nbytes, seconds)
        assert limit == 0 or known.runs >= RUNS
        assert limit <= max(SHARE * seconds, one)  # nobody pays for all that others have earned
        if limit:
            spent += limit
            known.spend(limit, round(limit * speed))
            known.speed = speed
    assert spent <= SHARE * sum(took) * (1 + 1e-9)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"runs": 3}', NO_SPEED, ENDLESS])
def test_a_damaged_note_is_none(tmp_path, content):
    dataset = Store(tmp_path).dataset("adk", b"1")
    dataset.attach("uses.json", content)
    assert Uses.of(dataset) == Uses()
    Uses(4, 2.5, 1e8, False).keep(dataset)
    assert Uses.of(dataset) == Uses(4, 2.5, 1e8, False)
    assert Uses().speed == FIRST_SPEED


def test_of_nothing_nothing_is_worth_it(tmp_path):
    dataset = Store(tmp_path).dataset("adk", b"1")
    assert not is_worth_it(dataset, 100, [1], 10)
