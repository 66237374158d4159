"""The harness of benchmarks: answers, figures, turns, versions, and virtual hosts of which nothing is left."""

import math
import os
import sys

import numpy as np
import pytest

from himach.benchmarks.harness.answers import DisagreementError, compare, read_column
from himach.benchmarks.harness.contest import Contest
from himach.benchmarks.harness.figures import report
from himach.benchmarks.harness.hosts import Hosts
from himach.benchmarks.harness.interleave import Contender, on_cores, run_in_turn
from himach.benchmarks.harness.tools import Tool
from himach.benchmarks.harness.versions import numbers
from himach.benchmarks.runs import machine as measured
from himach.errors import HimachError, UsageError
from himach.planning.machine import read_machine


def test_answers_that_agree():
    result = compare("x", np.array([1.0, math.nan]), "peer", np.array([1.5, math.nan]), 0.5, "why")
    assert (result.difference, result.tolerance) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        ([1.0], [1.1], "number 0 is 1 and 1.1"),
        ([1.0, 2.0], [1.0], "himach has 2 numbers and peer 1"),
        ([1.0, 2.0], [1.0, math.nan], "number 1 is 2 and nan"),
        ([], [], "neither"),
    ],
)
def test_answers_that_do_not(ours, theirs, message):
    with pytest.raises(DisagreementError, match=message):
        compare("x", np.array(ours), "peer", np.array(theirs), 0.05, "why")


def test_an_empty_cell_is_no_number(tmp_path):
    (tmp_path / "table.csv").write_text("a,b\n1,2\n3,\n")
    np.testing.assert_equal(read_column(tmp_path / "table.csv", "b"), [2, math.nan])


def test_a_tool_that_is_missing_is_said():
    contest = Contest(None, {"gmx": Tool("gmx", None, "not installed: apt-get install gromacs")})
    assert contest.peer("gmx", "x.py") == []
    assert contest.missing("gmx") == ["gmx is not compared: not installed: apt-get install gromacs."]


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


def test_what_is_told_is_read_back(capsys):
    report("cold: direct", "1.5 GB/s", "92 %")
    report("rmsd, 2 ranks: map phase against --cache off", "8.8 times (0.022 s)", "5 times")
    report("small frames: memory (index; resident)", "26.4; 24 bytes", "40 bytes")
    print("with values: 87.1 million pairs/s on 2 ranks (61 to 90)")
    print("  of which nothing is read")
    assert numbers(capsys.readouterr().out) == {
        "cold: direct": 1.5,
        "rmsd, 2 ranks: map phase against --cache off": 8.8,
        "small frames: memory (index; resident) [1]": 26.4,
        "small frames: memory (index; resident) [2]": 24,
        "with values": 87.1,
    }


def test_who_is_not_root_is_told_so(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="need root"):
        Hosts(1, tmp_path)


def test_the_machine_is_measured_into_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(measured, "FILE", 1 << 24)
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / "frames").write_bytes(bytes(1 << 22))
    measured.main(tmp_path / "machine.toml", origin, tmp_path)
    result = read_machine(tmp_path / "machine.toml")
    assert result.cores == len(os.sched_getaffinity(0))
    for rate in (result.disk_read, result.disk_write, result.network, result.combine, result.origin):
        assert rate is not None
        assert rate > 1e5
    assert result.node_mtbf is None
    assert "loopback" in capsys.readouterr().out
