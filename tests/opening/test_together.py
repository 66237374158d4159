"""Runs `ranks_together.py` on several ranks."""

from pathlib import Path

import pytest
from support.ranks import run_under_mpiexec


@pytest.mark.parametrize("n", [1, 2, 4])
def test_on_ranks(n):
    run_under_mpiexec(Path(__file__).with_name("ranks_together.py"), n)
