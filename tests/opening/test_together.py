"""Runs `ranks_together.py` on several ranks."""

from pathlib import Path

from support.ranks import run_under_mpiexec


def test_on_ranks():
    run_under_mpiexec(Path(__file__).with_name("ranks_together.py"), 3)
