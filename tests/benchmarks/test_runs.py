"""Benchmarks of whole runs with few frames, and their harness."""

import json
import math
import os
import sys
from pathlib import Path

import MDAnalysis as mda
import numpy as np
import pytest
from click.testing import CliRunner
from planning.made import record

from himach.benchmarks.harness.answers import DisagreementError, compare, read_column
from himach.benchmarks.harness.contest import Contest
from himach.benchmarks.harness.figures import report
from himach.benchmarks.harness.hosts import Hosts
from himach.benchmarks.harness.interleave import Contender, on_cores, run_in_turn
from himach.benchmarks.harness.tools import Tool
from himach.benchmarks.harness.versions import numbers
from himach.benchmarks.runs import machine as measured
from himach.benchmarks.runs import planned, virtual
from himach.benchmarks.runs.accuracy import accuracy
from himach.benchmarks.runs.billion import main, write_dcd
from himach.benchmarks.runs.published import points
from himach.benchmarks.runs.scaling import Sweep
from himach.benchmarks.runs.virtual import BLIND, CASES, FITTED, FRAMES, Lines
from himach.cli.plan import bench
from himach.errors import HimachError, UsageError
from himach.planning.machine import read_machine
from himach.planning.model import ACCURACY


def test_the_file_is_one_that_mdanalysis_reads(tmp_path):
    write_dcd(tmp_path / "a.dcd", 2500)
    universe = mda.Universe.empty(1, trajectory=True)
    universe.load_new(str(tmp_path / "a.dcd"))
    assert len(universe.trajectory) == 2500
    assert [universe.trajectory[number].positions[0, 0] for number in (0, 7, 2499)] == [0, 7, 499]
    assert np.isclose(universe.trajectory.dt, 1.0)


@pytest.mark.nightly
@pytest.mark.parametrize("only", ["dcd", "computed", "many"])
def test_runs_are_complete(tmp_path, only, capfd):
    main(20_000, (only,), 2, 2, tmp_path)
    output = capfd.readouterr().out
    assert output.count("(bar:") == 3
    (complete,) = [line for line in output.splitlines() if "complete" in line]
    assert complete.split()[1] == "yes"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_a_trial_of_pairs(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    words = ["pairs", "--frames", "100", "--repeats", "1", "--ranks", "1", "--only", "start", "--only", "grown"]
    done = CliRunner().invoke(bench, [*words, "--directory", str(tmp_path)], catch_exceptions=False)
    assert "10 frames: with --pairs, more than without" in done.output
    assert "C-alpha RMSD, 99 frames, now 100: map phase" in done.output


def test_published_points_are_met_within_five_percent_or_told_why_not():
    result = points()
    assert len(result) == 12
    for point in result:
        assert point.how in ("predicted", "formula", "fitted", "open")
        assert point.reason
        if point.how == "open":
            assert "not published" in point.reason
        else:
            assert abs(point.error) < 0.05, point
    assert [point.what for point in result if point.how == "predicted"] == ["FusionSim, 2 million nodes"]
    zazen = next(point for point in result if "1e9 frames" in point.what)
    assert zazen.found[0] < zazen.published < zazen.found[1]


def test_the_table_has_medians():
    seconds = {"map": [3.0, 1.0, 2.0], "shuffle": [0.5] * 3, "reduce": [0.25] * 3, "total": [4.0] * 3}
    page = Sweep("frames", "all else", [1000, 2000], {"1000": seconds, "2000": seconds}).markdown()
    assert "| 1,000 | 2.000 | 0.500 | 0.250 | 4.000 | 1.000 to 3.000 |" in page
    assert "to the power 0.00" in page.replace("-0.00", "0.00")


@pytest.fixture(autouse=True)
def private_data(tmp_path_factory, monkeypatch):
    """The trajectories of these tests, in a folder of their own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.getbasetemp()))


@pytest.mark.nightly
@pytest.mark.parametrize("names", [("residence",), ("rmsd", "rmsd-xtc", "start"), ("rdf-ions", "bonds", "nothing")])
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


def test_no_such_benchmark(tmp_path):
    for _ in range(2):  # in one process
        with pytest.raises(UsageError, match=r"there is no benchmark 'rmds'.*did you mean 'rmsd'"):
            CliRunner().invoke(bench, ["peers", "--only", "rmds", "--out", str(tmp_path)], catch_exceptions=False)


RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "plan.json"


def lines_of(path, turns=1):
    """Write what hosts would take whose ranks wait for nothing but 10 ms a frame, and an origin of 10 MB/s."""
    lines = Lines(path)
    for turn in range(turns):
        lines.add({"turn": turn, "machine": {"network": 1e8, "latency": 1e-4, "origin": 1e7, "origin_at_once": 0.0}})
        for hosts in (*FITTED, *BLIND):
            runs = {
                kind: record(
                    *(FRAMES * hosts, hosts, hosts),
                    cached=cached,
                    startup=0.1,
                    reduce=0.3 * hosts,
                    read=1e-4,
                    busy_part=0.01,
                )
                for kind, cached in (("first", False), ("second", True), ("lost", True))
            }
            result = {**runs, "stage": 0.1 + 0.1 * hosts}
            if hosts in FITTED:
                del result["lost"]
            lines.add({"turn": turn, "hosts": hosts, "found": dict.fromkeys(CASES, result)})
    lines.add({"rounds": 16, "machine": {"network": 1e6, "latency": 1e-4}, "seconds": [1.0, 1.1, 1.2]})
    return lines


def test_what_was_measured_is_predicted_from_and_not_measured_again(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(virtual, "Hosts", None)  # there is nothing to be measured
    lines_of(tmp_path / "records", turns=2)
    before = (tmp_path / "records").read_text()
    monkeypatch.setattr(virtual, "ROUNDS", (16,))
    planned.main(2, 2, (), False, 1, tmp_path / "records", tmp_path / "out", None)
    assert (tmp_path / "records").read_text() == before
    plan = json.loads((tmp_path / "out").read_text())
    kinds = {row["kind"] for row in plan["rows"]}
    assert kinds == {"first", "second", "stage", "lost", "shuffle", "rounds"}
    assert plan["about"]["origin"] == 1e7
    for row in plan["rows"]:
        assert row["blind"] == (row["nodes"] in BLIND)
        if row["kind"] in ("first", "second"):
            assert row["predicted"] == pytest.approx(row["measured"], rel=0.03), row
    printed = capsys.readouterr().out
    assert "HeavyReduce, second, 16 hosts" in printed
    assert "MISSED" in printed  # staging took what was made up


def test_a_line_that_was_not_written_to_its_end_is_left_out_and_what_is_missing_is_measured(tmp_path, monkeypatch):
    path = tmp_path / "records"
    lines_of(path)
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join(whole[:3]) + whole[3][:40])
    assert len(Lines(path).lines) == 3
    requested = []

    class Hosts:
        def __init__(self, count, *_):
            requested.append(count)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def call(self, ranks, function, names, *_):
            requested.append((ranks, tuple(names)))
            return {}

        def forget_disks(self):
            pass

    monkeypatch.setattr(virtual, "Hosts", Hosts)
    monkeypatch.setattr(virtual, "_trajectory", lambda place, topology, frames: place)
    virtual.measure(Lines(path), CASES, 1, 1, False, float("inf"), tmp_path)
    assert requested == [16, (4, CASES), (8, CASES), (16, CASES)]
    assert len(Lines(path).lines) == 6


def test_what_plans_say_of_their_error_is_what_was_measured():
    known = accuracy(RESULTS)
    for kind, observed in ACCURACY.items():
        assert str(observed) == str(known[kind])


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
