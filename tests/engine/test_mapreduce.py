"""The whole pass against its twin: in this process, and on 1 to 4 ranks of one node and of several."""

from pathlib import Path

import pytest
from support.ranks import run_under_mpiexec

from .ranks_pass import *  # noqa: F403  the tests of that file, without MPI

NODES = {1: "a", 2: "a", 3: "b,a,b", 4: "c,a,c,b"}


@pytest.mark.parametrize("sizes", [None], indirect=True)
@pytest.mark.parametrize(
    ("n", "theirs"), [(1, "small"), *((n, theirs) for n in (2, 3, 4) for theirs in ("large", "small", "spilled"))]
)
def test_on_ranks(n, theirs, sizes, monkeypatch):
    monkeypatch.setenv("HIMACH_NODES", NODES[n])
    run_under_mpiexec(Path(__file__).with_name("ranks_pass.py"), n, select=theirs)
