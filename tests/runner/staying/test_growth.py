"""Many runs over the same ranks leave nothing behind that grows, whether they end well or not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from himach.benchmarks.runs.staying import Held


@pytest.mark.slow
def test_fifty_runs_leave_what_ten_leave():
    # In a process of its own: what other tests have left in this one may grow meanwhile.
    program = Path(__file__).with_name("growing.py")
    done = subprocess.run([sys.executable, "-P", program], stdout=subprocess.PIPE, text=True, check=True)
    before, after = (Held(*map(int, line.split())) for line in done.stdout.splitlines())
    assert after.descriptors == before.descriptors
    assert after.segments <= before.segments + 4, "others use it, too"
    assert after.memory < before.memory + 4e6
