"""The parts of plans, and lengths of simulations for narrow intervals, each beside a slow twin."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning.made import record

import himach
from himach.engine.shuffle.exchange import shard_range
from himach.errors import UsageError
from himach.planning import closed_forms as forms
from himach.planning.costs import evaluate, fit_terms
from himach.planning.half_width import HalfWidth


def read_slowly(ranks, frames, seconds, nbytes, capacity, link, ahead):
    """Return when the last of some ranks is done that ask for frames ahead, each with its part of the origin.

    They are followed through small pieces of time.
    """
    left, busy = [nbytes] * ranks, [0.0] * ranks
    got, done = [0] * ranks, [0] * ranks
    reading, computing = set(range(ranks)), set()
    now = 0.0
    while reading or computing:
        rate = min(link, capacity / len(reading)) if reading else 0.0
        step = min([left[i] / rate for i in reading] + [busy[i] for i in computing])
        now += step
        for i in list(reading):
            left[i] -= rate * step
            if left[i] <= 1e-9 * nbytes:
                reading.discard(i)
                got[i] += 1
        for i in list(computing):
            busy[i] -= step
            if busy[i] <= 1e-12:
                computing.discard(i)
                done[i] += 1
        for i in range(ranks):
            if i not in computing and done[i] < got[i]:
                computing.add(i)
                busy[i] = seconds
            if i not in reading and got[i] < frames and got[i] - done[i] <= ahead:
                reading.add(i)
                left[i] = nbytes
    return now


@settings(max_examples=50)
@given(
    ranks=st.integers(1, 6), frames=st.integers(1, 40), seconds=st.floats(0.01, 5), nbytes=st.floats(1, 100),
    capacity=st.floats(1, 100), link=st.floats(0.01, 1), ahead=st.integers(2, 40),
)  # fmt: skip
def test_ranks_that_read_ahead_of_a_shared_origin_end_when_the_twin_says(
    ranks, frames, seconds, nbytes, capacity, link, ahead
):
    link *= capacity
    seconds_read = forms.read_seconds(ranks, frames, seconds, nbytes, capacity, link)
    slowly = read_slowly(ranks, frames, seconds, nbytes, capacity, link, ahead)
    # They all begin at once, so the first frames of all come later than of those that take turns.
    together = seconds + nbytes / min(link, capacity / ranks)
    assert seconds_read * (1 - 1e-9) <= slowly <= seconds_read + together


def test_rounds_grow_with_nodes_and_frames():
    times = [forms.zazen_seconds(nodes, 10**8, 1e-5, 1e9, 4e9) for nodes in (1, 2, 3, 8, 64, 10**6)]
    assert times == sorted(times)
    assert times[0] == 0
    assert forms.zazen_seconds(8, 10**9, 1e-5, 1e9, 4e9) > 5 * times[3]


@given(parts=st.lists(st.integers(0, 1000), min_size=64, max_size=64), ranks=st.sampled_from([1, 2, 4, 8, 16, 32, 64]))
def test_loads_are_those_of_the_shards_that_ranks_have(parts, ranks):
    each = [sum(parts[slice(*shard_range(rank, ranks, 64))]) for rank in range(ranks)]
    assert forms.loads(np.array(parts, float), ranks).tolist() == pytest.approx(each)


def test_skew_of_many_ranks_is_that_of_keys_that_are_thrown():
    rng = np.random.default_rng(5)
    parts = np.ones(64)
    thrown = [np.bincount(rng.integers(0, 1000, 20_000), minlength=1000).max() * 64 / 20_000 for _ in range(400)]
    for level in (0.05, 0.5, 0.95):
        expected = np.quantile(thrown, level)
        assert forms.most_loaded(parts, 20_000, 1000, level) == pytest.approx(expected, rel=0.06)
    assert forms.most_loaded(parts, 10, 10**6, 0.5) == pytest.approx(6.4)


def test_a_heavy_part_is_not_forgotten_beyond_the_ranks_that_are_known():
    parts = np.ones(64)
    parts[7] = 64
    known, beyond = (forms.most_loaded(parts, 1000, ranks, 0.5) for ranks in (64, 128))
    assert known == 64
    assert beyond == pytest.approx(32)


@pytest.mark.parametrize(
    ("nodes", "ranks", "each", "busiest"),
    [(2, 64, [1.0] * 64, 32.0), (2, 64, [64.0] + [0.0] * 63, 64.0), (4, 4, [1.0, 2.0, 1.0, 1.0], 2.0)],
)
def test_pairs_travel_to_the_node_that_gets_most(nodes, ranks, each, busiest):
    seconds = forms.exchange_seconds(sum(each), nodes, ranks, 0.0, 10.0, max(each))
    assert seconds == pytest.approx(busiest * (1 - 1 / nodes) / 10.0)


@pytest.mark.parametrize("count", [1, 2, 50, 2000])
def test_the_largest_of_many_is_that_of_draws(count):
    drawn = np.random.default_rng(6).standard_normal((2000, count)).max(axis=1)
    for level in (0.05, 0.5, 0.95):
        assert forms.most_of_normals(count, level) == pytest.approx(np.quantile(drawn, level), abs=0.08)
    assert math.isfinite(forms.most_of_normals(10**13, 0.95))


def drawn_with_pairs(
    startup: float, mapping: float, rest: float, every: float, rate: float, rng: np.random.Generator, most: int = 10_000
) -> float:
    """Return one draw of the time of a run that goes on where the last commit was."""
    spent, done = 0.0, 0.0
    every = min(every, mapping) or every
    for _ in range(most):
        left = startup + (mapping - done) + rest
        failed = rng.exponential(1 / rate) if rate > 0 else math.inf
        if failed >= left:
            return spent + left
        spent += failed
        done = min(mapping, done + max(0.0, failed - startup) // every * every)
    return math.inf


@pytest.mark.parametrize(("seconds", "rate"), [(120.0, 0.001), (120.0, 0.02), (12.0, 0.0)])
def test_expected_times_of_runs_that_fail_are_means_of_draws(seconds, rate):
    rng = np.random.default_rng(7)
    drawn = np.mean([drawn_with_pairs(0.0, 0.0, seconds, 1.0, rate, rng) for _ in range(4000)])
    assert forms.without_pairs(seconds, rate) == pytest.approx(drawn, rel=0.12)
    split = (0.1 * seconds, 0.8 * seconds, 0.1 * seconds)
    every = 0.4 * seconds
    kept = np.mean([drawn_with_pairs(*split, every, rate, rng) for _ in range(4000)])
    assert forms.with_pairs(*split, every, rate) == pytest.approx(kept, rel=0.12)
    assert forms.with_pairs(*split, every, rate) <= forms.without_pairs(seconds, rate) * 1.12
    long = forms.with_pairs(*split, 10 * seconds, rate)
    assert long == pytest.approx(
        np.mean([drawn_with_pairs(*split, 10 * seconds, rate, rng) for _ in range(4000)]), rel=0.12
    )
    assert long <= forms.without_pairs(seconds, rate) * (1 + 1e-9)


def test_a_run_that_never_ends_is_told_as_such():
    assert forms.without_pairs(1e6, 1.0) == math.inf
    assert forms.with_pairs(1e6, 1.0, 1.0, 30, 1.0) == math.inf


@given(
    ranks=st.lists(st.integers(1, 64), min_size=3, max_size=6, unique=True),
    constant=st.floats(0, 10), slope=st.floats(0, 1),
)  # fmt: skip
def test_a_sum_is_found_again(ranks, constant, slope):
    quantities = [{"one": 1.0, "ranks": float(count)} for count in ranks]
    seconds = [constant + slope * count for count in ranks]
    terms = fit_terms(quantities, seconds, ["one", "ranks"])
    assert evaluate(terms, {"one": 1.0, "ranks": 100.0}) == pytest.approx(constant + 100 * slope, rel=1e-3, abs=1e-3)
    assert min(terms.values()) >= 0


def test_what_rows_cannot_tell_apart_is_the_first_terms():
    rows = [{"one": 1.0, "steps": 3.0, "first": first} for first in (1.0, 0.0)]
    assert fit_terms(rows, [5.0, 2.0], ["one", "steps", "first"]) == pytest.approx({"one": 2, "steps": 0, "first": 3})
    assert fit_terms(rows[:1], [5.0], ["one", "steps", "first"]) == pytest.approx({"one": 5, "steps": 0, "first": 0})


def uncertainty_of(width, n_eff=40.0):
    return {"rdf": {"n_eff": n_eff, "half_widths": {"g": width}}}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("rdf.g<0.02", ("rdf", "g", 0.02)),
        ("rdf-2/a.b.c < 1e-3", ("rdf-2/a.b", "c", 1e-3)),
        (" x.y<5 ", ("x", "y", 5.0)),
    ],
)
def test_what_a_condition_says(text, parts):
    half_width = HalfWidth.parse(text)
    assert (half_width.table, half_width.column, half_width.most) == parts


@pytest.mark.parametrize(
    "text", ["", "rdf", "rdf.g", "rdf.g>1", "rdf<1", "rdf.g<", "rdf.g<nan", "rdf.g<0", "rdf.g<a", None]
)
def test_what_is_no_condition_is_refused(text):
    with pytest.raises(UsageError, match=r"such as 'rdf\.g<0\.02'"):
        HalfWidth.parse(text)


def test_what_is_narrow_enough_and_what_has_no_interval():
    half = HalfWidth.parse("rdf.g<0.1")
    assert half.times_as_long(uncertainty_of(0.05)) == (1.0, "intervals of rdf.g are within ±0.05")
    times, why = half.times_as_long(uncertainty_of(math.nan, n_eff=2.0))
    assert times == 4
    assert "no interval yet (N_eff 2)" in why
    for n_eff in (0, None):
        assert math.isnan(half.times_as_long(uncertainty_of(None, n_eff=n_eff))[0])
    with pytest.raises(UsageError, match="makes no intervals"):
        half.times_as_long({"rdf": {"n_eff": 4.0}})  # of an earlier himach


def test_a_plan_tells_it():
    run = {**record(frames=1000), "uncertainty": uncertainty_of(0.3)}
    plan = himach.plan(run, nodes=[1], until="rdf.g<0.1")
    row = {name: cells[0] for name, cells in plan["until"].items()}
    assert row == {
        "column": "rdf.g", "half_width": 0.3, "wanted": 0.1, "frames": 1000, "times_as_long": 9.0,
        "frames_needed": 9000,
    }  # fmt: skip
    assert "within ±0.3" in plan.notes[0]
    assert "until" not in himach.plan(run, nodes=[1])
    with pytest.raises(UsageError, match=r"makes no such interval; it makes rdf\.g"):
        himach.plan(run, nodes=[1], until="rdf.h<0.1")
    with pytest.raises(UsageError, match="makes no intervals"):
        himach.plan(record(), nodes=[1], until="rdf.g<0.1")
