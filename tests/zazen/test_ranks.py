"""Runs ``ranks_protocol.py`` on 1 to 4 ranks, as one node and as several."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.ranks import run_under_mpiexec


@pytest.mark.parametrize("n, nodes", [(3, "a,b"), (4, "d,c,b,a")])
def test_on_ranks(n, nodes, monkeypatch):
    monkeypatch.setenv("HIMACH_NODES", nodes)
    run_under_mpiexec(Path(__file__).with_name("ranks_protocol.py"), n)
