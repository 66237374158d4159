"""The parts of plans, and lengths of simulations for narrow intervals, each beside a slow twin."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning.made import record

import himach
from himach.engine.shuffle.exchange import shard_range
from himach.errors import UsageError
from himach.planning import closed_forms as forms
from himach.planning.costs import evaluate, fit_terms
from himach.planning.half_width import HalfWidth


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
