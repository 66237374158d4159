"""The benchmark of the shuffle, at a small size."""

import pytest
from support.commands import himach


@pytest.mark.nightly
def test_the_benchmark_runs_at_a_small_size():
    done = himach("bench", "shuffle", "--pairs", "2e4", "--repeats", "1", timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("million pairs/s") == 4
