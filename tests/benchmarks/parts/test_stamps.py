"""The benchmark of many frames, at a small size."""

import pytest
from support.commands import himach


@pytest.mark.nightly
@pytest.mark.parametrize("more", [[], ["--uneven", "--memory", "4MB"]])
def test_the_benchmark_runs_at_a_small_size(more):
    done = himach("bench", "stamps", "--frames", "3e5", *more, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "300,000 frames on 2 ranks" in done.stdout
    assert "bar: " in done.stdout
