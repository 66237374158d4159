"""Ensembles of which members fail, that are refused, killed, end in time or grow; pairs that are kept of members."""

import os
import re
import signal
from functools import partial

import pytest
from runner.ensemble.simulations import FRAMES, MEMBERS, NAMES, members_in, record_in
from support.commands import himach, same_files, start_himach, wait_until, write_analysis
from support.ranks import run_under_mpiexec

import himach as package


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_member_that_fails_is_named_and_the_others_finish(folder, tmp_path, ranks):
    table = tmp_path / "table.csv"
    lines = [f"{name},{folder}/{name}.{kind},{folder}/top{n}.pdb,{group}" for name, group, n, _, _, kind in MEMBERS]
    lines[1] = f"r2,{tmp_path}/none.trr,{folder}/top214.pdb,wild type"
    lines[3] = f"m1,{folder}/m1.xtc,{folder}/top500.pdb,mutant"
    table.write_text("\n".join(["name,trajectory,topology,group", *lines]))
    words = ["run", f"{folder}/analyses.py:Gyration", "--ensemble", table, "--pairs", tmp_path / "pairs"]
    done = himach(*words, "--cache", "off", "-o", tmp_path / "out", "-n", ranks, code=1)
    assert "member r2 failed" in done.stderr and "none.trr" in done.stderr
    assert "member m1 failed" in done.stderr and "500 atoms" in done.stderr
    record = record_in(tmp_path / "out")
    assert [bool(item["error"]) for item in record["ensemble"]] == [False, True, False, True, False, False]
    assert len(record["errors"]) == 2 and record["frames"] == FRAMES - 51
    text = (tmp_path / "out" / "Gyration.csv").read_text()
    assert "r10," in text and "r2," not in text
    lines[1] = f"r2,{folder}/r2.trr,{folder}/top214.pdb,wild type"
    lines[3] = f"m1,{folder}/m1.xtc,{folder}/top214.pdb,mutant"
    table.write_text("\n".join(["name,trajectory,topology,group", *lines]))
    himach(*words, "--cache", "off", "-o", tmp_path / "out", "-n", ranks, code=0)
    record = record_in(tmp_path / "out")
    assert record["reused"]["frames"] == FRAMES - 51 and record["frames"] == FRAMES
    himach("run", *words[1:4], "--cache", "off", "-o", tmp_path / "alone", code=0)
    same_files(tmp_path / "out", tmp_path / "alone")


def test_what_all_members_lack_is_told_once(folder, tmp_path):
    done = himach("run", "rmsd", "-p", "selection=name NOSUCH", "--ensemble", folder / "ensemble.csv", "-n", 2, code=2)
    assert done.stderr.count("NOSUCH") == 1 and "r1" in done.stderr and "Traceback" not in done.stderr


def test_a_selection_that_one_member_lacks_is_named_with_it(folder):
    with pytest.warns(UserWarning, match="member (r1|r2|m1) failed: rmsd: .*index 300"):
        result = package.run(
            package.examples.load("rmsd")(selection="index 300"), ensemble=members_in(folder), cache="off"
        )
    assert list(result.members) == ["r10", "m2", "m3"]


def test_what_ensembles_cannot_is_refused_by_name(folder, ensemble_words, whole, tmp_path):
    for words, reason in (
        (["--follow"], "No such option '--follow': it is of 'himach follow ANALYSIS... -t SOURCE', which analyses"),
        (["--features"], "name a directory for them"),
        (["-t", folder / "r1.xtc"], "leave the other ones out"),
    ):
        done = himach("run", *ensemble_words, *words)
        assert done.returncode == 2 and reason in done.stderr, words
    done = himach(
        "run", "rmsd", "-t", folder / "r1.xtc", "-s", folder / "top214.pdb", "--features", "-o", tmp_path / "out"
    )
    assert done.returncode == 2 and "of an ensemble" in done.stderr


@pytest.mark.parametrize("members", [{"m2"}, set(NAMES)])
def test_a_map_that_keeps_something_is_found_also_behind_members_that_fail(folder, members):
    class Keeps(package.Analysis):
        def setup(self, universe):
            self.seen = []
            assert self.member in members

        def map(self, frame):
            self.seen.append(frame.number)
            yield package.Row(seen=len(self.seen))

    with pytest.raises(package.AnalysisError, match=r"Keeps.map.* changes self.seen"):
        package.run(Keeps(), ensemble=members_in(folder), cache="off")


@pytest.mark.nightly
def test_a_member_of_all_ranks_that_fails_while_one_is_busy(folder, tmp_path):
    """The rank that failed waits for the other, however long its frame takes; members that follow are run."""
    failed, released = tmp_path / "failed", tmp_path / "released"
    os.mkfifo(released)
    map_text = f"""
        if self.member == 'm3' and not frame.number:
            open({str(released)!r}).close()  # until the other rank opens it, too
        if self.member == 'm3' and frame.number > 25:
            open({str(failed)!r}, 'w').close()
            raise ValueError('no')
        yield himach.Row(number=frame.number)
    """
    write_analysis(tmp_path / "busy.py", map_text)
    (tmp_path / "ranks_busy.py").write_text(f"""
import os
import time
from types import SimpleNamespace

import himach
from himach.ranks import collective
from himach.runner.ensemble import member_run

looks = []

def monotonic():
    # To the rank that has failed each look at the clock is a second of waiting; after a hundred the other goes on.
    if os.path.exists({str(failed)!r}):
        looks.append(1)
        if len(looks) == 100:
            open({str(released)!r}, "w").close()
    return time.monotonic() + len(looks)

def test_busy(monkeypatch):
    monkeypatch.setattr(member_run, "WORTH", 0)
    monkeypatch.setattr(collective, "time", SimpleNamespace(sleep=time.sleep, monotonic=monotonic))
    folder = {str(folder)!r}
    result = himach.run({str(tmp_path / "busy.py")!r}, ensemble=folder + "/ensemble.csv", cache="off")
    assert len(result.record["errors"]) == 1 and "member m3 failed" in result.record["errors"][0]
    assert result.outcome is None or list(result.members) == {[name for name in NAMES if name != "m3"]!r}
""")
    run_under_mpiexec(tmp_path / "ranks_busy.py", 2)


@pytest.mark.nightly(but=1)
@pytest.mark.parametrize("ranks", [None, 2])
def test_the_first_members_may_fail_in_their_maps(folder, tmp_path, ranks):
    script = tmp_path / "fails.py"
    script.write_text(
        "import threading, himach\n"
        "class Fails(himach.Analysis):\n"
        "    how: str = 'raises'\n"
        "    def map(self, frame):\n"
        "        if self.how == 'raises' and self.member != 'm2':\n"
        "            raise ValueError('no')\n"
        "        yield himach.Row(number=frame.number)\n"
        "    def finish(self, table):\n"
        "        return threading.Lock() if self.how == 'locks' and self.member != 'm2' else table\n"
    )
    with pytest.warns(UserWarning, match="member r1 failed"):
        result = package.run(f"{script}:Fails", ensemble=folder / "ensemble.csv", cache="off", ranks=ranks)
    assert list(result.members) == ["m2"]
    words = ["run", f"{script}:Fails", "-p", "how=locks", "--ensemble", folder / "ensemble.csv"]
    done = himach(*words, "-n", 2, "--memory", "1.5MiB")
    assert done.returncode == 1 and "not 786432" not in done.stderr
    assert "member r1 failed: its outcome cannot be sent to the first rank" in done.stderr


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


def test_kept_pairs_of_all_members_are_described(folder, tmp_path):
    pairs = tmp_path / "pairs"
    words = ["run", "rmsd", f"{folder}/analyses.py:Gyration", "--cache", "off", "--pairs", pairs]
    words += ["--ensemble", folder / "ensemble.csv"]
    himach(*words, code=0)
    himach(*words, "-p", "rmsd.selection=name CA", code=0)
    part = next((pairs / "m2" / "Gyration").rglob("*.pairs"))
    part.write_bytes(part.read_bytes()[:-9])
    details = himach("info", pairs).stdout
    blocks = [dict(re.findall(r"^(\w+) +(.*)", block, re.MULTILINE)) for block in details.split("\n\n")[1:]]
    assert sorted((block["member"], block["analysis"]) for block in blocks) == sorted(
        (name, f"{analysis}, generation {number}")
        for name in NAMES
        for analysis, number in (("rmsd", 1), ("rmsd", 2), ("Gyration", 1))
    )
    damaged = next(block for block in blocks if "bad" in block)
    assert (damaged["member"], damaged["frames"]) == ("m2", "none") and "selection = 'name CA'" in details
    assert "\nmember" not in himach("info", pairs / "r1").stdout


def test_the_pairs_of_a_member_are_a_matter_of_its_name(folder, tmp_path):
    first = package.Member("a/b", folder / "r1.xtc", folder / "top214.pdb")
    two = package.Member("a_b", folder / "r2.trr", folder / "top214.pdb")
    script, pairs = f"{folder}/analyses.py:Gyration", tmp_path / "pairs"
    package.run(script, ensemble=[first], cache="off", pairs=pairs)
    result = package.run(script, ensemble=[first, two], cache="off", pairs=pairs)
    assert {each["name"]: each["reused"] for each in result.record["ensemble"]} == {"a/b": 31, "a_b": 0}
