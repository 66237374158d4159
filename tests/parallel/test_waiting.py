"""Ranks that wait for the first one."""

from pathlib import Path

import pytest
from support.ranks import run_under_mpiexec


@pytest.mark.nightly
def test_under_mpiexec():
    run_under_mpiexec(Path(__file__).with_name("ranks_waiting.py"), 3)
