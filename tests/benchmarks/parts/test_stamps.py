"""The benchmark of many frames, at a small size."""

import subprocess
import sys

import pytest
from support.ranks import clean_environment


@pytest.mark.parametrize("more", [[], ["--uneven", "--memory", "4MB"]])
def test_the_benchmark_runs_at_a_small_size(more):
    done = subprocess.run(
        [sys.executable, "-P", "-m", "himach", "bench", "stamps", "--frames", "3e5", *more],
        capture_output=True,
        text=True,
        env=clean_environment(),
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "300,000 frames on 2 ranks" in done.stdout
    assert "bar: " in done.stdout
