"""The whole pass against its twin: in this process, and on 3 ranks."""

from pathlib import Path

import pytest
from support.ranks import run_under_mpiexec

from .ranks_pass import *  # noqa: F403  the tests of this file, without MPI
from .ranks_pass import SIZES


@pytest.mark.nightly(but=["small-None"])
@pytest.mark.parametrize("sizes", [None], indirect=True)
@pytest.mark.parametrize("size", SIZES)
def test_a_pass_on_three_ranks(size, sizes, monkeypatch):
    monkeypatch.setenv("HIMACH_NODES", "b,a,b")
    run_under_mpiexec(Path(__file__).with_name("ranks_pass.py"), 3, select=size)
