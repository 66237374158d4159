"""The comparison with peers: with few frames and the tools of this environment; answers that differ are an error."""

from __future__ import annotations

import json
import math
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import himach.benchmarks
from himach.benchmarks.harness.answers import DisagreementError, agree, read_column
from himach.benchmarks.harness.contest import Contest
from himach.benchmarks.harness.figures import Figure, Row
from himach.benchmarks.harness.tools import Tool, here
from himach.benchmarks.harness.turns import Contender, on_cores, run_in_turn
from himach.benchmarks.runs import rows
from himach.cli.bench import bench
from himach.errors import HimachError, UsageError


@pytest.fixture(autouse=True)
def private_data(tmp_path_factory, monkeypatch):
    """The trajectories of these tests, in a folder of their own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.getbasetemp()))


@pytest.mark.slow
@pytest.mark.parametrize("names", [("residence",), ("rmsd", "start"), ("rdf-ions", "bonds", "nothing")])
def test_a_trial_of_each_benchmark(tmp_path, names):
    words = ["peers", "--installed", "--frames", "4", "--repeats", "1", "--ranks", "1", "--out", str(tmp_path / "out")]
    words += ["--directory", str(tmp_path)]
    for name in names:
        words += ["--only", name]
    done = CliRunner().invoke(bench, words, catch_exceptions=False)
    assert done.exit_code == 0
    saved = json.loads((tmp_path / "out" / "peers.json").read_text())
    assert set(saved["benchmarks"]) == set(names)
    assert all(each["figures"] for each in saved["benchmarks"].values())
    compared = {answer["peer"] for each in saved["benchmarks"].values() for answer in each["answers"]}
    assert compared >= {"waterdynamics"} if "residence" in names else {"MDAnalysis"}
    page = (tmp_path / "out" / "peers.md").read_text()
    assert "**A trial**" in page
    assert "page cache" in page
    assert not [path.name for path in tmp_path.iterdir() if path.name != "out"]


@pytest.mark.slow
def test_a_peer_with_another_answer_is_found_out(tmp_path, monkeypatch):
    peers = tmp_path / "peers"
    peers.mkdir()
    wrong = (himach.benchmarks.FOLDER / "peers" / "rmsd.py").read_text().replace("name CA", "name CB")
    (peers / "rmsd.py").write_text(wrong)
    monkeypatch.setattr("himach.benchmarks.harness.contest.PEERS", peers)
    contest = Contest(tmp_path, here(), ranks=1, repeats=1, most=4)
    with pytest.raises(DisagreementError, match=r"^RMSD: himach and MDAnalysis disagree: number \d is"):
        rows.rmsd(contest)


def test_answers_that_agree():
    found = agree("x", np.array([1.0, math.nan]), "peer", np.array([1.5, math.nan]), 0.5, "why")
    assert (found.difference, found.tolerance) == (0.5, 0.5)


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
        agree("x", np.array(ours), "peer", np.array(theirs), 0.05, "why")


def test_an_empty_cell_is_no_number(tmp_path):
    (tmp_path / "table.csv").write_text("a,b\n1,2\n3,\n")
    np.testing.assert_equal(read_column(tmp_path / "table.csv", "b"), [2, math.nan])


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


def test_ratios_are_those_of_the_same_turn():
    faster = Figure("map", [1, 2, 1], "peer", [10, 40, 15], "faster", 15)
    assert (faster.ratio, faster.met) == (15, True)
    assert Figure("wall", [3, 3, 3], "peer", [2, 2, 2], "times", 1.3).met is False
    row = Row("title", [faster], notes=["a note"])
    assert Row.from_dict(json.loads(json.dumps(row.as_dict()))).as_dict() == json.loads(json.dumps(row.as_dict()))


def test_a_tool_that_is_missing_is_said():
    contest = Contest(None, {"gmx": Tool("gmx", None, "not installed: apt-get install gromacs")})
    assert contest.peer("gmx", "x.py") == []
    assert contest.missing("gmx") == ["gmx is not compared: not installed: apt-get install gromacs."]


def test_no_such_benchmark(tmp_path):
    with pytest.raises(UsageError, match=r"there is no benchmark 'rmds'.*did you mean 'rmsd'"):
        CliRunner().invoke(bench, ["peers", "--only", "rmds", "--out", str(tmp_path)], catch_exceptions=False)
