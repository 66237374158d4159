"""The whole pass against its twin, and the shuffle through `himach.run`: in this process, and on 3 ranks."""

from pathlib import Path

import pytest
from support.ranks import run_under_mpiexec

from .ranks_pass import *  # noqa: F403  the tests of these files, without MPI
from .ranks_pass import SIZES
from .ranks_run import *  # noqa: F403


@pytest.mark.nightly(but=["small-None"])
@pytest.mark.parametrize("sizes", [None], indirect=True)
@pytest.mark.parametrize("size", SIZES)
def test_a_pass_on_three_ranks(size, sizes, monkeypatch):
    monkeypatch.setenv("HIMACH_NODES", "b,a,b")
    run_under_mpiexec(Path(__file__).with_name("ranks_pass.py"), 3, select=size)


def test_runs_on_three_ranks():
    run_under_mpiexec(Path(__file__).with_name("ranks_run.py"), 3)
