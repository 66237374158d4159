"""How much longer a simulation must be for narrow intervals."""

from __future__ import annotations

import math

import pytest
from planning.made import record

import himach
from himach.errors import UsageError
from himach.planning.half_width import HalfWidth


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
