"""What keeping pairs costs and saves: the benchmark, with few frames."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from himach.cli.bench import bench


@pytest.mark.nightly
def test_a_trial(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    words = ["pairs", "--frames", "100", "--repeats", "1", "--ranks", "1", "--only", "start", "--only", "grown"]
    done = CliRunner().invoke(bench, [*words, "--directory", str(tmp_path)], catch_exceptions=False)
    assert "10 frames: with --pairs, more than without" in done.output
    assert "C-alpha RMSD, 99 frames, now 100: map phase" in done.output
