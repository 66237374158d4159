"""The comparison with peers: with few frames and the tools of this environment; answers that differ are an error."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import himach.benchmarks
from himach.benchmarks.harness.answers import DisagreementError
from himach.benchmarks.harness.contest import Contest
from himach.benchmarks.harness.tools import here
from himach.benchmarks.runs import rows
from himach.cli.bench import bench
from himach.errors import UsageError


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


@pytest.mark.nightly
def test_a_peer_with_another_answer_is_found_out(tmp_path, monkeypatch):
    peers = tmp_path / "peers"
    peers.mkdir()
    wrong = (himach.benchmarks.FOLDER / "peers" / "rmsd.py").read_text().replace("name CA", "name CB")
    (peers / "rmsd.py").write_text(wrong)
    monkeypatch.setattr("himach.benchmarks.harness.contest.PEERS", peers)
    contest = Contest(tmp_path, here(), ranks=1, repeats=1, most=4)
    with pytest.raises(DisagreementError, match=r"^RMSD: himach and MDAnalysis disagree: number \d is"):
        rows.rmsd(contest)


def test_no_such_benchmark(tmp_path):
    for _ in range(2):  # in one process
        with pytest.raises(UsageError, match=r"there is no benchmark 'rmds'.*did you mean 'rmsd'"):
            CliRunner().invoke(bench, ["peers", "--only", "rmds", "--out", str(tmp_path)], catch_exceptions=False)
