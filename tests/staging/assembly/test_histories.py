"""Histories of all who push to a store, a few steps; `python tests/staging/assembly/histories.py` does 10,000."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_or_hidden():
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("histories.py")), "--steps", "150", "--seed", "1"],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for what in ("push", "push_slices", "put_together", "drop", "evict", "restart"):
        assert f"'{what}'" in done.stdout
