"""Processes that are timed in turn."""

from __future__ import annotations

import sys

import pytest

from himach.benchmarks.harness.interleave import Contender, on_cores, run_in_turn
from himach.errors import HimachError


def test_processes_are_run_in_turn(tmp_path):
    log = tmp_path / "log"
    write = "import sys; open(sys.argv[1], 'a').write(sys.argv[2]); print(0.5)"
    sides = [
        Contender("a", [sys.executable, "-c", write, str(log), "a"], phases=lambda output: {"inside": float(output)}),
        Contender("b", [sys.executable, "-c", write, str(log), "b"], before=lambda: log.open("a").write("-")),
        Contender("c", [sys.executable, "-c", write, str(log), "c"], warm=False),
    ]
    times = run_in_turn(sides, 2)
    assert log.read_text() == "a-b" + "a-bc" * 2
    assert times["a"]["inside"] == [0.5, 0.5]
    assert len(times["b"]["wall"]) == 2


def test_a_process_that_fails_is_quoted():
    with pytest.raises(HimachError, match=r"(?s)^a ended with 3:.*no such thing"):
        run_in_turn([Contender("a", [sys.executable, "-c", "print('no such thing'); raise SystemExit(3)"])], 1)


def test_more_cores_than_there_are():
    with pytest.raises(HimachError, match="100000 cores"), on_cores(100_000):
        pass
