"""Another version's figures beside this one's."""

from __future__ import annotations

import sys

import pytest

from himach.benchmarks.harness.contest import TWIN, Contest, Question
from himach.benchmarks.harness.figures import report
from himach.benchmarks.harness.interleave import run_in_turn
from himach.benchmarks.harness.versions import beside, numbers


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


@pytest.mark.nightly
def test_two_versions_tell_the_same_figures(capsys):
    beside(sys.executable, ["shuffle", "--pairs=2e4", "--ranks=1", "--repeats=1"], 1)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("with values  ") for line in lines)
    assert any(line.startswith("wall  ") for line in lines)


@pytest.mark.nightly
def test_a_run_has_a_twin_with_a_store_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    contest = Contest(tmp_path, {}, ranks=1, repeats=1, most=4, beside=sys.executable)
    data = contest.data(10)
    run = contest.himach("run", Question("rmsd", {"selection": "name CA"}), data, out="out")
    times = run_in_turn([run], 1)
    assert set(times) == {"run", "run" + TWIN}
    assert all(each["map"][0] > 0 for each in times.values())
    assert (tmp_path / "other" / "out" / "run.json").exists()
    assert (tmp_path / "other" / f"store-{data.trajectory.name}").exists()
