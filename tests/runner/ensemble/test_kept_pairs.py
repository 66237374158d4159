"""Ensembles that are killed, end in time or grow, and the pairs that are kept of their members."""

import json
import signal
from functools import partial

import pytest
from runner.ensemble.simulations import FRAMES, MEMBERS, NAMES, record_in, write_table
from support.commands import himach, processes_with, same_files, start_himach, wait_until

import himach as package


def test_a_new_member_and_a_longer_one_cost_only_themselves(folder, tmp_path):
    table = write_table(folder / "fewer.csv", MEMBERS[:5])
    words = ["run", f"{folder}/analyses.py:Gyration", "--cache", "off", "--pairs", tmp_path / "pairs"]
    shorter = [*words, "--ensemble", table, "--stop", 10, "-o", tmp_path / "out"]
    himach(*shorter, code=0)
    himach(*words, "--ensemble", folder / "ensemble.csv", "-o", tmp_path / "out", "-n", 2, code=0)
    record = record_in(tmp_path / "out")
    assert {item["name"]: item["reused"] for item in record["ensemble"]} == {**dict.fromkeys(NAMES, 10), "m3": 0}
    himach(*words[:4], "--ensemble", folder / "ensemble.csv", "-o", tmp_path / "anew", code=0)
    same_files(tmp_path / "out", tmp_path / "anew")


def kept_parts(place):
    return list((place / "pairs").rglob("*.pairs"))


def has_kept_more(run, place, before):
    return len(kept_parts(place)) > before or run.poll() is not None


@pytest.mark.nightly(but=1)
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_killed_at_any_moment_it_goes_on(folder, tmp_path, ranks):
    words = ["run", f"{folder}/analyses.py:Gyration", "--ensemble", folder / "ensemble.csv", "--cache", "off"]
    himach(*words, "-o", tmp_path / "whole", code=0)
    slow = [*words, "-p", "pause=0.01", "--pairs", tmp_path / "pairs", "-o", tmp_path / "out", "-n", ranks]
    killed = 0
    for turn in range(5):
        begun = len(kept_parts(tmp_path))
        run = start_himach(*slow)
        assert wait_until(partial(has_kept_more, run, tmp_path, begun))
        killed += run.poll() is None
        run.send_signal(signal.SIGKILL if turn % 2 else signal.SIGTERM)
        run.communicate(timeout=60)
        if run.returncode == 0:
            break
    himach(*words, "-p", "pause=0.01", "--pairs", tmp_path / "pairs", "-o", tmp_path / "out", "-n", ranks, code=0)
    same_files(tmp_path / "whole", tmp_path / "out")
    assert not (tmp_path / "out" / ".himach").exists()
    assert killed >= 3 and record_in(tmp_path / "out")["reused"]["frames"] > 0


@pytest.mark.nightly
def test_time_that_is_up_loses_nothing(folder, tmp_path):
    words = ["run", f"{folder}/analyses.py:Gyration", "--ensemble", folder / "ensemble.csv", "--cache", "off"]
    slow = [*words, "-p", "pause=0.1", "-o", tmp_path / "out", "-n", 2]
    done = himach(*slow, "--max-time", 6)
    assert done.returncode == 75 and "6 members are done" in done.stderr
    himach(*slow, code=0)
    assert record_in(tmp_path / "out")["reused"]["frames"] > 5
    himach(*words, "-o", tmp_path / "whole", code=0)
    same_files(tmp_path / "whole", tmp_path / "out")
    assert not (tmp_path / "out" / ".himach").exists()


def test_kept_pairs_of_all_members_are_listed_and_evicted(folder, tmp_path):
    pairs = tmp_path / "pairs"
    words = ["run", "rmsd", f"{folder}/analyses.py:Gyration", "--cache", "off", "--pairs", pairs]
    words += ["--ensemble", folder / "ensemble.csv"]
    himach(*words, code=0)
    himach(*words, "-p", "rmsd.selection=name CA", code=0)
    done = himach("pairs", "list", pairs, "--json")
    kept = json.loads(done.stdout)["kept"]
    assert {(item["member"], item["analysis"], item["generation"]) for item in kept} == {
        (name, *of) for name in NAMES for of in (("rmsd", 1), ("rmsd", 2), ("Gyration", 1))
    }
    assert sum(item["frames"] for item in kept if item["analysis"] == "Gyration") == FRAMES
    lines = himach("pairs", "list", pairs, "--verify").stdout.splitlines()
    assert lines[0].split()[:2] == ["member", "analysis"] and len(lines) == 1 + len(kept)
    part = next((pairs / "m2" / "Gyration").rglob("*.pairs"))
    part.write_bytes(part.read_bytes()[:-9])
    done = himach("pairs", "list", pairs, "--verify")
    assert done.returncode == 1 and "member m2: Gyration, generation 1: bad: " in done.stdout
    details = himach("info", pairs).stdout
    assert f"frames     {FRAMES - 12} of {FRAMES}" in details and "bad        parts of m2" in details
    assert f"frames     {FRAMES} of {FRAMES}" in details and "parameter  selection = 'name CA'" in details
    assert [line.split()[0] for line in details.splitlines()[-len(kept) :]] == [line.split()[0] for line in lines[1:]]
    assert details.count("members    6") == 2
    assert "generations: 6" in himach("pairs", "evict", pairs, "--older").stdout
    assert "generations: 6" in himach("pairs", "evict", pairs, "Gyration").stdout
    assert himach("pairs", "list", pairs / "r1").stdout.splitlines()[1].split()[:2] == ["rmsd", "2"]
    assert "generations: 6" in himach("pairs", "evict", pairs, "--all").stdout
    assert "no pairs are kept" in himach("pairs", "list", pairs).stdout and not any(pairs.iterdir())
    himach(*words, code=0)
    (pairs / "notes.txt").write_text("of somebody else")
    assert "no pairs are kept" in himach("pairs", "list", pairs).stdout


def test_the_pairs_of_a_member_are_a_matter_of_its_name(folder, tmp_path):
    first = package.Member("a/b", folder / "r1.xtc", folder / "top214.pdb")
    two = package.Member("a_b", folder / "r2.trr", folder / "top214.pdb")
    script, pairs = f"{folder}/analyses.py:Gyration", tmp_path / "pairs"
    package.run(script, ensemble=[first], cache="off", pairs=pairs)
    result = package.run(script, ensemble=[first, two], cache="off", pairs=pairs)
    assert {each["name"]: each["reused"] for each in result.record["ensemble"]} == {"a/b": 31, "a_b": 0}


def test_nothing_of_it_stays(folder, ensemble_words, tmp_path, monkeypatch):
    monkeypatch.setenv("HIMACH_TEST_MARK", str(tmp_path))
    words = ["run", *ensemble_words, "-p", "Gyration.pause=0.02", "--cache", "off", "--pairs", tmp_path / "pairs"]
    run = start_himach(*words, "-o", tmp_path / "out", "-n", 3)
    assert wait_until(partial(has_kept_more, run, tmp_path, 0))  # members are being run
    run.send_signal(signal.SIGINT)
    _, message = run.communicate(timeout=60)
    assert run.returncode not in (0, 1) and "Traceback" not in message
    assert processes_with(str(tmp_path)) == []
