"""Zazen's situations on the stores of several nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.ranks import run_under_mpiexec


@pytest.mark.nightly
@pytest.mark.slow
def test_on_four_ranks():
    run_under_mpiexec(Path(__file__).with_name("ranks_situations.py"), 4, timeout=200)
