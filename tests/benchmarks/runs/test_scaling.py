"""How time grows: the sweeps, with few frames."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from himach.benchmarks.runs.scaling import Sweep, power
from himach.cli.bench import bench


@pytest.mark.nightly
def test_a_trial(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    words = ["scaling", "--frames", "4", "--repeats", "1", "--ranks", "1", "--only", "frames", "--out", str(tmp_path)]
    done = CliRunner().invoke(bench, [*words, "--directory", str(tmp_path)], catch_exceptions=False)
    assert "### Time by frames" in done.output
    saved = json.loads((tmp_path / "scaling.json").read_text())
    assert saved["frames"]["points"] == [2, 4]
    assert saved["frames"]["times"]["4"]["map"][0] > 0


def test_powers():
    assert power([1, 10, 100], [0.5, 5, 50]) == pytest.approx(1)
    assert power([1, 10, 100], [3, 3, 3]) == pytest.approx(0)


def test_the_table_has_medians():
    seconds = {"map": [3.0, 1.0, 2.0], "shuffle": [0.5] * 3, "reduce": [0.25] * 3, "total": [4.0] * 3}
    page = Sweep("frames", "all else", [1000, 2000], {"1000": seconds, "2000": seconds}).markdown()
    assert "| 1,000 | 2.000 | 0.500 | 0.250 | 4.000 | 1.000 to 3.000 |" in page
    assert "to the power 0.00" in page.replace("-0.00", "0.00")
