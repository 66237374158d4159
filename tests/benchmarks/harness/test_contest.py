"""Where a comparison takes place."""

from __future__ import annotations

from himach.benchmarks.harness.contest import Contest
from himach.benchmarks.harness.tools import Tool


def test_a_tool_that_is_missing_is_said():
    contest = Contest(None, {"gmx": Tool("gmx", None, "not installed: apt-get install gromacs")})
    assert contest.peer("gmx", "x.py") == []
    assert contest.missing("gmx") == ["gmx is not compared: not installed: apt-get install gromacs."]
