"""Ranks that wait for the first one."""

from pathlib import Path

import pytest
from support.ranks import run_under_mpiexec


@pytest.mark.parametrize("n", [1, 2, 3])
def test_under_mpiexec(n):
    run_under_mpiexec(Path(__file__).with_name("ranks_waiting.py"), n)
