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

UNCERTAINTY = {"level": 0.95, "blocks": 8, "n_eff": 64.0, "means": {}, "half_widths": {}}
UNCERTAINTY["method"] = "Student's t over blocks of frames"


def lines(place: Path, table: Table, uncertainty: dict | None, source: str) -> list[str]:
    """Return the lines of a run that left this table."""
    (place / "t.csv").write_bytes(content(table))
    record = {
        **make_record(),
        "analyses": [{"name": "mine", "source": source, "parameters": {}}],
        "units": {"t": table.units},
        "uncertainty": {} if uncertainty is None else {"t": {**UNCERTAINTY, **uncertainty}},
        "files": ["t.csv"],
    }
    (place / "run.json").write_text(json.dumps(record))
    folder = read_folder(place)
    return result_lines(folder, folder.analyses[0])


def with_limits(name: str, values, half: float = 0.02, **places) -> Table:
    values = np.asarray(values, float)
    return Table({**places, name: values, f"{name}_low": values - half, f"{name}_high": values + half})


def with_units(table: Table, **units: str) -> Table:
    table.units.update(units)
    return table


def g_of_r(r: np.ndarray) -> np.ndarray:
    """Return a g(r) with peaks at 2.75 and 4.5, and a spike of noise at 1.05."""
    g = np.where(r > 2.4, 1.0, 0.0) + 2 * np.exp(-(((r - 2.75) / 0.1) ** 2)) + 0.5 * np.exp(-(((r - 4.5) / 0.3) ** 2))
    g[np.argmin(abs(r - 1.05))] = 1.2
    return g


R = np.arange(0.05, 10, 0.1)
N = len(R)
G = g_of_r(R)
FEW_BLOCKS = "none: fewer than 8 independent blocks of frames"
CASES = {
    "the first peak of an rdf": (
        with_units(with_limits("g", G, r=R), r="Å"), {}, "rdf",
        ["g(r): first peak 3.00 [2.98, 3.02] at r 2.75 Å (95 %, 8 blocks)"],
    ),
    "a curve of a user: its largest value": (
        with_limits("g", G, r=R), {}, "mine.py:Mine", ["g: largest 3.00 [2.98, 3.02] at r 2.75 (95 %, 8 blocks)"],
    ),
    "a curve of a user: its ends": (
        with_limits("stay", np.exp(-np.arange(10) / 4), tau_ps=np.arange(10) * 0.5), {}, "mine.py:Mine",
        ["stay: 1 to 0.11 [0.09, 0.13], from tau 0 ps to tau 4.5 ps (95 %, 8 blocks)"],
    ),
    "rows with names: the largest": (
        with_limits("x", np.arange(20.0), residue=[f"LEU{i}" for i in range(20)], atom=["CA"] * 20), {}, "mine.py:Mine",
        ["x: largest 19.00 [18.98, 19.02] at LEU19, CA (95 %, 8 blocks)"],
    ),
    "a short table: a line for each row": (
        with_units(with_limits("events", [4.0, 3.0], 1.0, direction=["up", "down"]), events="1/ns"),
        {"blocks": 0, "method": "Garwood's limits"}, "mine.py:Mine",
        ["events, up: 4.0 1/ns [3.0, 5.0] (95 %, Garwood's limits)",
         "events, down: 3.0 1/ns [2.0, 4.0] (95 %, Garwood's limits)"],
    ),
    "an interval without the method of the least sure row": (
        Table({"row": ["a", "b"], "d": [0.8, 0.1], "d_low": [0.67, np.nan], "d_high": [0.89, np.nan]}),
        {"blocks": 0, "method": "none: fewer than 8 independent trials"}, "mine.py:Mine",
        ["d, a: 0.80 [0.67, 0.89] (95 %)", "d, b: 0.1 (no interval: fewer than 8 independent trials)"],
    ),
    "no interval, and why": (
        with_limits("d", [2.5], np.nan), {"blocks": 0, "method": FEW_BLOCKS}, "mine.py:Mine",
        ["d: 2.5 (no interval: fewer than 8 independent blocks of frames)"],
    ),
    "groups and their difference": (
        Table({
            "group": ["A", "B", "B - A"], "column": ["x"] * 3, "mean": [1.0, 2.0, 1.0], "low": [0.8, 1.8, 0.7],
            "high": [1.2, 2.2, 1.3], "n": [3, 3, 6], "p": [np.nan, np.nan, 0.0012],
        }), None, "mine.py:Mine",
        ["x, A: mean 1.0 [0.8, 1.2], 3 members", "x, B: mean 2.0 [1.8, 2.2], 3 members",
         "x, B - A: mean 1.0 [0.7, 1.3], 6 members, p = 0.0012"],
    ),
    "curves of groups": (
        Table({
            "group": ["A"] * N + ["B - A"] * N, "column": ["g"] * 2 * N, "r": np.tile(R, 2), "mean": np.tile(G, 2),
            "low": np.tile(G - 0.02, 2), "high": np.tile(G + 0.02, 2), "p": [np.nan] * N + [0.5] * N,
        }), None, "rdf",
        ["g(r), A: first peak 3.00 [2.98, 3.02] at r 2.75"],
    ),
    "a table without intervals": (
        Table({name: np.arange(3) for name in "abcdefgh"}), None, "mine.py:Mine",
        ["t: 3 rows of a, b, c, d, e, f, ..."],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("table", "uncertainty", "source", "expected"), CASES.values(), ids=CASES)
def test_lines_of_a_table(tmp_path, table, uncertainty, source, expected):
    assert lines(tmp_path, table, uncertainty, source) == expected


@pytest.mark.parametrize("values", [[np.nan] * 8, [np.inf] * 8, [1e300] * 8, [0.0] * 8])
def test_odd_values_are_no_error(tmp_path, values):
    assert len(lines(tmp_path, with_limits("g", values, r=np.arange(8.0)), {}, "rdf")) == 1
