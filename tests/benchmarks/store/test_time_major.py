"""``himach bench layout`` on few frames: what both ways give is the same, and every figure is printed."""

from __future__ import annotations

import pytest
from support.commands import himach

pytest.importorskip("MDAnalysisTests")


@pytest.mark.nightly
def test_it_prints_its_figures(tmp_path):
    words = ["--frames", "30", "--repeats", "1", "--directory", tmp_path]
    done = himach("bench", "layout", *words, timeout=300, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("(bar: 10 times)") == done.stdout.count("(bar: 6 times)") == 2
