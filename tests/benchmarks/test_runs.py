"""The benchmarks of whole runs, with few frames: complete, and told beside their bars or their peers."""

import json

import MDAnalysis as mda
import numpy as np
import pytest
from click.testing import CliRunner

from himach.benchmarks.runs.billion import main, write_dcd
from himach.benchmarks.runs.published import points
from himach.benchmarks.runs.scaling import Sweep
from himach.cli.bench import bench
from himach.errors import UsageError


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
    said = capfd.readouterr().out
    assert said.count("(bar:") == 3
    (complete,) = [line for line in said.splitlines() if "complete" in line]
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
    found = points()
    assert len(found) == 12
    for point in found:
        assert point.how in ("predicted", "formula", "fitted", "open")
        assert point.reason
        if point.how == "open":
            assert "not published" in point.reason
        else:
            assert abs(point.error) < 0.05, point
    assert [point.what for point in found if point.how == "predicted"] == ["FusionSim, 2 million nodes"]
    zazen = next(point for point in found if "1e9 frames" in point.what)
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
