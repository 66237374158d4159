"""Results in a line each: what is said of values, curves, named rows and groups, by their tables."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.sample_runs import make_record

from himach.output.formats import content
from himach.output.table import Table
from himach.report.folder import read_folder
from himach.report.results import result_lines

TOLD = {"level": 0.95, "blocks": 8, "n_eff": 64.0, "method": "Student's t over blocks of frames", "half_widths": {}}


def lines(
    place: Path, table: Table, told: dict | None = TOLD, source: str = "mine.py:Mine", name: str = "t"
) -> list[str]:
    """Return the lines of a run that left this table."""
    (place / f"{name}.csv").write_bytes(content(table))
    record = {
        **make_record(),
        "analyses": [{"name": "mine", "source": source, "parameters": {}}],
        "units": {name: table.units},
        "uncertainty": {} if told is None else {name: {"means": {}, **told}},
        "files": [f"{name}.csv"],
    }
    (place / "run.json").write_text(json.dumps(record))
    folder = read_folder(place)
    return result_lines(folder, folder.analyses[0])


def with_limits(name: str, values, half: float = 0.02, **places) -> Table:
    values = np.asarray(values, float)
    return Table({**places, name: values, f"{name}_low": values - half, f"{name}_high": values + half})


def g_of_r(r: np.ndarray) -> np.ndarray:
    """Return a g(r) with peaks at 2.75 and 4.5, and a spike of noise at 1.05."""
    g = np.where(r > 2.4, 1.0, 0.0) + 2 * np.exp(-(((r - 2.75) / 0.1) ** 2)) + 0.5 * np.exp(-(((r - 4.5) / 0.3) ** 2))
    g[np.argmin(abs(r - 1.05))] = 1.2
    return g


def test_the_first_peak_of_an_rdf(tmp_path):
    r = np.arange(0.05, 10, 0.1)
    table = with_limits("g", g_of_r(r), r=r)
    table.units["r"] = "Å"
    said = lines(tmp_path, table, source="rdf", name="rdf")
    assert said == ["g(r): first peak 3.00 [2.98, 3.02] at r 2.75 Å (95 %, 8 blocks)"]


def test_a_curve_of_a_user_has_its_largest_value_or_its_ends(tmp_path):
    r = np.arange(0.05, 10, 0.1)
    assert lines(tmp_path, with_limits("g", g_of_r(r), r=r))[0].startswith("g: largest 3.00 [2.98, 3.02] at r 2.75")
    fall = with_limits("stay", np.exp(-np.arange(10) / 4), tau_ps=np.arange(10) * 0.5)
    assert lines(tmp_path, fall) == ["stay: 1 to 0.11 [0.09, 0.13], from tau 0 ps to tau 4.5 ps (95 %, 8 blocks)"]


def test_rows_with_names_tell_which_is_the_largest(tmp_path):
    names = [f"LEU{i}" for i in range(20)]
    said = lines(tmp_path, with_limits("x", np.arange(20.0), residue=names, atom=["CA"] * 20))
    assert said == ["x: largest 19.00 [18.98, 19.02] at LEU19, CA (95 %, 8 blocks)"]


def test_a_short_table_has_a_line_for_each_row(tmp_path):
    table = with_limits("events", [4.0, 3.0], 1.0, direction=["up", "down"])
    table.units["events"] = "1/ns"
    counted = {**TOLD, "blocks": 0, "method": "Garwood's limits"}
    assert lines(tmp_path, table, counted) == [
        "events, up: 4.0 1/ns [3.0, 5.0] (95 %, Garwood's limits)",
        "events, down: 3.0 1/ns [2.0, 4.0] (95 %, Garwood's limits)",
    ]


def test_an_interval_does_not_have_the_method_of_the_least_sure_row(tmp_path):
    table = Table({"row": ["a", "b"], "d": [0.8, 0.1], "d_low": [0.67, np.nan], "d_high": [0.89, np.nan]})
    none = {**TOLD, "blocks": 0, "method": "none: fewer than 8 independent trials"}
    assert lines(tmp_path, table, none) == [
        "d, a: 0.80 [0.67, 0.89] (95 %)",
        "d, b: 0.1 (no interval: fewer than 8 independent trials)",
    ]


def test_what_has_no_interval_says_why(tmp_path):
    table = with_limits("d", [2.5], np.nan)
    none = {**TOLD, "blocks": 0, "method": "none: fewer than 8 independent blocks of frames"}
    assert lines(tmp_path, table, none) == ["d: 2.5 (no interval: fewer than 8 independent blocks of frames)"]


def test_a_mean_in_time_is_told_as_on_the_terminal(tmp_path):
    mean = {
        "mean": 0.63, "low": 0.51, "high": 0.74, "n_eff": 8.2, "blocks": 4, "method": "t", "start_ps": 15.2,
        "cut": False, "halves": [0.1, -0.01, 0.2],
    }  # fmt: skip
    table = Table({"time_ps": np.arange(5.0), "rmsd": np.ones(5)})
    table.units["rmsd"] = "Å"
    assert lines(tmp_path, table, {**TOLD, "means": {"rmsd": mean}}) == [
        "mean of rmsd / Å: 0.63 [0.51, 0.74] (95 %, 4 blocks, N_eff 8.2), equilibrated from 15.2 ps; "
        "first and second half agree"
    ]


def test_groups_and_their_difference(tmp_path):
    table = Table(
        {
            "group": ["A", "B", "B - A"], "column": ["x"] * 3, "mean": [1.0, 2.0, 1.0], "low": [0.8, 1.8, 0.7],
            "high": [1.2, 2.2, 1.3], "n": [3, 3, 6], "p": [np.nan, np.nan, 0.0012],
        }
    )  # fmt: skip
    assert lines(tmp_path, table, None) == [
        "x, A: mean 1.0 [0.8, 1.2], 3 members",
        "x, B: mean 2.0 [1.8, 2.2], 3 members",
        "x, B - A: mean 1.0 [0.7, 1.3], 6 members, p = 0.0012",
    ]


def test_curves_of_groups(tmp_path):
    r = np.arange(0.05, 10, 0.1)
    n, g = len(r), g_of_r(r)
    table = Table(
        {
            "group": ["A"] * n + ["B - A"] * n, "column": ["g"] * 2 * n, "r": np.tile(r, 2), "mean": np.tile(g, 2),
            "low": np.tile(g - 0.02, 2), "high": np.tile(g + 0.02, 2), "p": [np.nan] * n + [0.5] * n,
        }
    )  # fmt: skip
    assert lines(tmp_path, table, None, source="rdf") == ["g(r), A: first peak 3.00 [2.98, 3.02] at r 2.75"]


@pytest.mark.parametrize("values", [[np.nan] * 8, [np.inf] * 8, [1e300] * 8, [0.0] * 8])
def test_odd_values_are_no_error(tmp_path, values):
    assert len(lines(tmp_path, with_limits("g", values, r=np.arange(8.0)), source="rdf")) == 1


def test_a_table_without_intervals_says_what_it_is(tmp_path):
    table = Table({name: np.arange(3) for name in "abcdefgh"})
    assert lines(tmp_path, table, None) == ["t: 3 rows of a, b, c, d, e, f, ..."]
