"""How sure a table is, in words: of means, of intervals, and of halves."""

import numpy as np
import pytest

from himach import uncertainty
from himach.output.certainty import certainty, mean_lines
from himach.output.record import MeanRecord, Uncertainty
from himach.output.table import Column, Table
from himach.runner.outcome.estimates import add_estimates

TIMES = np.arange(1000) * 2.0


def told_of(table, level=0.95):
    """Return the lines of a table as a run makes them."""
    outcome = {"t": table}
    told = add_estimates(["Any"], [outcome], level, None)
    return certainty("t", outcome["t"], told["t"])


def in_time(values):
    return Table({"time_ps": Column(TIMES[: len(values)], "ps"), "d": Column(values, "Å", estimate=True)})


def test_a_mean_tells_its_interval_and_that_halves_agree():
    values = np.random.default_rng(1).normal(3, 1, 1000)
    (line,) = told_of(in_time(values))
    start = 2 * uncertainty.equilibration(values)
    mean = uncertainty.mean(values)
    assert line == f"mean of d / Å: {mean}, equilibrated from {start} ps; first and second half agree"


def test_halves_that_differ_are_told_with_by_how_much():
    values = np.random.default_rng(1).normal(3, 1, 1000) + (TIMES >= 1000)
    between = uncertainty.halves(values, 0.9)
    (line,) = mean_lines(Table({}), _means(values, 0.9))
    assert line.endswith(f"; the second half differs from the first by {str(between).partition(' (')[0]}")
    assert between.low > 0


def _means(values, level):
    between = uncertainty.halves(values, level)
    found = uncertainty.mean(values, level)
    told = MeanRecord(
        mean=found.value,
        low=found.low,
        high=found.high,
        n_eff=found.n_eff,
        blocks=found.blocks,
        method=found.method,
        start_ps=None,
        cut=False,
        halves=[between.value, between.low, between.high],
    )
    return Uncertainty(
        method="", level=level, blocks=0, n_eff=0, start_ps=None, replicas=None, means={"d": told}, half_widths={}
    )


def test_what_is_not_converged_says_nothing_of_halves():
    assert told_of(in_time(np.arange(50.0))) == ["mean of d / Å: 24.5, not converged (N_eff 2.9)"]
    values = np.random.default_rng(3).normal(size=10)
    (line,) = told_of(in_time(values))
    assert "half" not in line


@pytest.mark.parametrize("level", [0.95, 0.5])
def test_intervals_in_a_table_have_a_line(level):
    (line,) = told_of(Table({"direction": ["up", "down"], "events": Column([3, 5], estimate="count")}), level)
    assert line == f"intervals of events in t: {100 * level:g} %, Garwood's limits"


def test_intervals_that_are_not_there_say_so():
    sums, weights = np.ones((3, 2)), np.ones((3, 2))
    (line,) = told_of(Table({"r": [1.0, 2.0], "g": Column([1.0, 1.0], estimate=(sums, weights))}))
    assert line == "intervals of g in t: not converged (N_eff 3.0)"
