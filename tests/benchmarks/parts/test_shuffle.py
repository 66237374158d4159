"""The benchmark of the shuffle, at a small size."""

import subprocess
import sys

from support.ranks import clean_environment


def test_the_benchmark_runs_at_a_small_size():
    done = subprocess.run(
        [sys.executable, "-P", "-m", "himach", "bench", "shuffle", "--pairs", "2e4", "--repeats", "1"],
        capture_output=True,
        text=True,
        env=clean_environment(),
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("million pairs/s") == 4
