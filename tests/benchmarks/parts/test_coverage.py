"""The benchmark of intervals, with few series: cases whose figures do not depend on how many, and what it says."""

from __future__ import annotations

import click
import numpy as np
import pytest

from himach.benchmarks.parts import coverage

RUN = click.command()(coverage.main)


def lines(capsys, *words):
    RUN([*words, "--series", "100"], standalone_mode=False)
    return capsys.readouterr().out.splitlines()


def test_what_is_exact_is_in_its_bounds(capsys):
    head, *rows = lines(capsys, "--only", "events")
    assert head.startswith("100 series each")
    assert len(rows) == 4
    assert not any("MISSED" in row for row in rows)
    assert "0.95 to 1.00" in rows[0]


@pytest.mark.nightly
def test_all_parts_have_their_rows(capsys):
    _, *rows = lines(capsys)
    counts = {
        "mean: ": 12,
        "replicas: ": 3,
        "count: ": 1,
        "stays: ": 3,
        "msd: ": 2,
        "of_blocks: ": 4,
        "add_blocks: ": 1,
    }
    for start, count in counts.items():
        assert sum(row.startswith(start) for row in rows) == count
    assert sum(row.startswith("  decay of") for row in rows) == 3


def test_a_part_that_is_none_is_refused():
    with pytest.raises(click.BadParameter, match="no part means; there is mean, replicas"):
        RUN(["--only", "means"], standalone_mode=False)


def test_what_is_out_of_bounds_is_told():
    row = coverage.Row("case", np.array([0.95, 0.89]), (0.9, 1.0))
    assert "0.890 to 0.950" in str(row) and "MISSED" in str(row)
    assert "MISSED" not in str(row._replace(bounds=(0.88, 1.0)))
    assert "MISSED" in str(row._replace(bounds=(0.88, 1.0), well=False))


@pytest.mark.parametrize("n_eff", coverage.N_EFF)
@pytest.mark.parametrize("make", [coverage._first_order, coverage._second_order, coverage._log_normal(1.0)])
def test_processes_are_worth_what_they_should(make, n_eff):
    process = coverage._worth(make, n_eff)
    means = process.draw(np.random.default_rng(1), 150).mean(axis=1)
    expected = process.covariance[0] / n_eff
    assert np.var(means) == pytest.approx(expected, rel=0.5)
    assert abs(means.mean() - process.mean) < 5 * np.sqrt(expected / 150)
