"""Many runs over one `himach.Ranks` leave nothing behind that grows, whether they end well or not."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from himach.benchmarks.runs.staying import Held

#: Of this process and two ranks together, of a run that ends well and one that fails.
BYTES_A_RUN = 16_000


@pytest.mark.nightly
def test_fifty_runs_leave_what_ten_leave():
    # In a process of its own: what other tests have left in this one may grow meanwhile.
    program = Path(__file__).with_name("growing.py")
    done = subprocess.run([sys.executable, "-P", program], stdout=subprocess.PIPE, text=True, check=True)
    held = [Held(*map(int, line.split())) for line in done.stdout.splitlines()]
    assert len({one.descriptors for one in held}) == 1
    assert held[-1].mappings < held[0].mappings + 15, "one a run would be 45"
    # /dev/shm is others', too.
    assert min(after.segments - before.segments for before, after in pairwise(held)) < 15
    # What a run leaves behind grows each time; what libraries keep for themselves, now and then.
    grown = min(after.memory - before.memory for before, after in pairwise(held))
    assert grown < 15 * BYTES_A_RUN
