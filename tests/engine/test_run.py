"""The shuffle through `himach.run`: in this process, and on 3 ranks."""

from pathlib import Path

from support.ranks import run_under_mpiexec

from .ranks_run import *  # noqa: F403  the test of that file, without MPI


def test_on_three_ranks():
    run_under_mpiexec(Path(__file__).with_name("ranks_run.py"), 3)
