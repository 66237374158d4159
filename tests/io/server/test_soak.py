"""The soak, shortly; `python tests/io/server/soak.py` kills 300 times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_killing_everybody():
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("soak.py")), "--kills", "20", "--seed", "5"],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "'frames checked'" in done.stdout
