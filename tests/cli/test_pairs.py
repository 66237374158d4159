"""``himach info`` of kept pairs, and what a run that keeps them says."""

import importlib
import json
import shutil
import textwrap

import pytest
from click.testing import CliRunner
from support.commands import himach, start_himach, wait_until

from himach.checkpoint.listing import entries, find_kept_frames
from himach.examples import sample

root = importlib.import_module("himach.cli").himach

TRAJECTORY, TOPOLOGY = sample("villin")
DATA = ["-t", TRAJECTORY, "-s", TOPOLOGY, "--cache", "off"]
SCRIPT = textwrap.dedent("""
    import time
    import himach

    class Mean(himach.Analysis):
        factor: float = 1.0
        wait: float = 0.0
        def map(self, frame):
            time.sleep(self.wait)
            yield "x", float(frame.positions[0, 0]) * self.factor
        def reduce(self, key, series):
            return sum(series.values) / len(series)
""")


def output_of(*words: object) -> str:
    """Return what a command prints, in this process."""
    done = CliRunner().invoke(root, [*map(str, words)])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with a script, and kept pairs of two generations."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "mean.py").write_text(SCRIPT)
    for words in (["--stop", 10], ["-p", "factor=2", "--stop", 20]):
        himach("run", "mean.py", *DATA, "--pairs", "kept", *words, cwd=folder, code=0)
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_info(folder):
    text = output_of("info", "kept")
    assert "analysis    Mean, generation 2\nframes      0-19 of" in text
    assert "parameter   factor = 2.0\n" in text
    assert "since then  factor 1.0 is now 2.0" in text
    assert f"trajectory  {TRAJECTORY}" in text


def summary_of(*words, **options):
    done = himach("run", "mean.py", *DATA, *words, **options, code=0)
    return done.stderr


def test_a_run_says_what_was_mapped_before_and_why_not_more(folder):
    where = folder / "kept"
    summary = summary_of("--pairs", "kept", "--stop", 15, cwd=folder)
    assert f"himach: 10 of 15 frames were mapped before (pairs in {where}); mapping 5\n" in summary
    assert f"\n10 of 15 frames were mapped before (pairs in {where}), 5 now\n" in summary
    summary = summary_of("--pairs", "kept", "--stop", 15, cwd=folder)
    assert summary.count("mapped before") == 1
    assert f"\nall 15 frames were mapped before (pairs in {where})\n" in summary
    summary = summary_of("--pairs", "kept", "--stop", 15, "-p", "factor=3", cwd=folder)
    assert "himach: mapping all 15 frames again: factor 2.0 is now 3.0\n" in summary
    assert "\nall 15 frames were mapped again: factor 2.0 is now 3.0\n" in summary
    quiet = ["--pairs", "kept", "--stop", 15, "-q", "-n", 2, "-p"]
    assert summary_of(*quiet, "factor=4", cwd=folder) == ""


@pytest.mark.slow
def test_a_run_into_out_goes_on_where_a_killed_one_was_and_says_so(folder):
    """The loop of a user whose job was killed: nothing was asked for but --out."""
    words = ["run", folder / "mean.py", *DATA, "--out", folder / "out", "--stop", 40, "-p", "wait=0.25"]
    killed = start_himach(*words, HIMACH_KEEP_EVERY="0.1")

    def kept() -> int:
        place = find_kept_frames(folder / "out")
        return sum(len(entry.covered) for entry in entries(place.path)) if place else 0

    try:
        assert wait_until(lambda: kept() > 3, 40)
        assert f"process {killed.pid} on " in output_of("info", folder / "out")
    finally:
        killed.kill()
        killed.communicate()
    there = kept()
    assert "a run did not end; the same command goes on from what is here" in output_of("info", folder / "out")
    done = himach(*words)
    assert (
        f"himach: {there} of 40 frames were mapped before (by a run into {folder}/out that did not end); "
        in done.stderr
    )
    assert f"\n{there} of 40 frames were mapped before (by a run that did not end), {40 - there} now\n" in done.stderr
    record = json.loads((folder / "out" / "run.json").read_text())
    assert (record["frames"], record["reused"]) == (40, {"frames": there, "reason": ""})
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["Mean.csv", "run.json"]


def test_a_record_is_repeated_with_its_pairs(folder):
    summary_of("--pairs", "kept", "--stop", 20, "-p", "factor=2", "--out", "out", cwd=folder)
    elsewhere = himach("run", "--rerun", folder / "out", "--out", folder / "again", cwd="/")
    assert f"all 20 frames were mapped before (pairs in {folder / 'kept'})\n" in elsewhere.stderr
    assert (folder / "out" / "Mean.csv").read_bytes() == (folder / "again" / "Mean.csv").read_bytes()
    anew = himach("run", "--rerun", "out", "--reuse", "never", "--out", "anew", cwd=folder)
    assert "all 20 frames were mapped again: reuse is 'never'\n" in anew.stderr
    record = json.loads((folder / "anew" / "run.json").read_text())
    assert record["reused"] == {"frames": 0, "reason": "reuse is 'never'"}
    assert record["pairs_directory"] == str(folder / "kept")


def test_a_directory_that_others_can_write_to_is_refused_by_name(folder):
    (folder / "open").mkdir()
    (folder / "open").chmod(0o770)
    done = himach("run", "mean.py", *DATA, "--stop", 3, "--pairs", "open", cwd=folder, code=2)
    assert f"pairs {folder / 'open'}: others can write there" in done.stderr
    assert f"chmod go-w {folder / 'open'}" in done.stderr
    (folder / "open").chmod(0o700)
    summary_of("--stop", 3, "--pairs", "open", cwd=folder)
    assert "all 3 frames were mapped before" in summary_of("--stop", 3, "--pairs", "open", cwd=folder)
