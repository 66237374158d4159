"""The benchmark of what intervals cost, with few frames: what it says, and that it times what it says."""

from __future__ import annotations

import click
import numpy as np
import pytest

import himach
from himach.benchmarks.analyses.plain import PlainMsd, PlainRdf
from himach.benchmarks.parts import intervals
from himach.examples import BUILTINS, load, sample


def test_every_builtin_is_timed():
    assert set(intervals.CASES) == set(BUILTINS)


def test_one_is_timed_in_all_phases(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(intervals, "folder", lambda: tmp_path)
    click.command()(intervals.main)(["--only", "rdf", "--frames", "200", "--repeats", "1"], standalone_mode=False)
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("200 frames")
    assert [row.split("  ")[0] for row in rows] == [
        "rdf: map beside off", "rdf: map beside plain", "rdf: reduce beside plain", "rdf: whole beside plain",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "plain", "parameters", "column"),
    [("rdf", PlainRdf, {"a": "name K"}, "g"), ("msd", PlainMsd, {"selection": "name K", "tau_max": 9}, "msd")],
)
def test_what_adds_up_nothing_gives_the_same_and_no_band(name, plain, parameters, column):
    one, other = (
        himach.run(make(**parameters), *sample("nanopore"), stop=80, cache="off", progress=False)[name]
        for make in (load(name), plain)
    )
    np.testing.assert_array_equal(one[column], other[column])
    assert np.isfinite(one[f"{column}_low"][1:]).any()
    assert not np.isfinite(other[f"{column}_low"][1:]).any()
