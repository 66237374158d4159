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

from himach.benchmarks.harness.answers import DisagreementError, compare
from himach.benchmarks.harness.hosts import Hosts
from himach.benchmarks.harness.interleave import Contender, run_in_turn
from himach.benchmarks.runs import machine as measured
from himach.benchmarks.runs.accuracy import accuracy
from himach.benchmarks.runs.billion import main, write_dcd
from himach.benchmarks.runs.published import points
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


def test_a_process_that_fails_is_quoted():
    with pytest.raises(HimachError, match=r"(?s)^a ended with 3:.*no such thing"):
        run_in_turn([Contender("a", [sys.executable, "-c", "print('no such thing'); raise SystemExit(3)"])], 1)


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
    assert "loopback" in capsys.readouterr().out
