"""A directory is one run's at a time, and a run that is killed at any moment leaves one that is whole or marked."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys

import pytest
from support.sample_runs import Plain, make_record

from himach.errors import UsageError
from himach.output.claim import FOLDER
from himach.output.directory import prepare_out, write_run

#: What a run does to files, each at a moment at which it may be killed.
TOUCHING = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.listdir", "shutil.rmtree"}
OUTCOMES = {"old": {"both": 1, "gone": 1}, "new": {"both": 2, "more": 2}, "third": {"both": 3, "other": 3}}


def leave(out, which, labels=("Plain",)):
    analyses = [Plain() for _ in labels]
    outcomes = [{name: f"{which} {value}" for name, value in OUTCOMES[which].items()} for _ in labels]
    with prepare_out(out, labels, force=True) as claim:
        write_run(claim, labels, analyses, outcomes, make_record(*analyses))


def killed(out, which, at, labels=("Plain",)):
    """Let a process write to `out` and be killed at its touch of files number `at`; tell whether it was."""
    child = os.fork()
    if child == 0:
        seen = 0

        def count(event, arguments):
            nonlocal seen
            if event in TOUCHING:
                seen += 1
                if seen == at:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(count)
            leave(out, which, labels)
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL)
    return status != 0


def contents(out):
    return {path.name: path.read_text() for path in out.glob("*.json")}


def is_whole_or_marked(out, *whiches):
    """There is no record, and himach's mark; or a record, and exactly the files of its run."""
    found = contents(out)
    record = found.pop("run.json", None)
    if record is None:
        return (out / FOLDER).is_dir() or not found
    listed = {name: f'"{next(w for w in whiches if f"{w} " in found[name])} ' for name in json.loads(record)["files"]}
    whole = [w for w in whiches if {f"{name}.json" for name in OUTCOMES[w]} == set(found)]
    return set(listed) == set(found) and len(whole) == 1 and all(f"{whole[0]} " in text for text in found.values())


def test_a_run_that_is_killed_at_any_moment_leaves_no_mixture_and_can_be_repeated(tmp_path):
    at, moments = 0, True
    while moments:
        at += 1
        out = tmp_path / f"{at}"
        leave(out, "old")
        moments = killed(out, "new", at)
        assert is_whole_or_marked(out, "old", "new"), (at, contents(out))
        leave(out, "new")
        assert sorted(os.listdir(out)) == ["both.json", "more.json", "run.json"], at
    assert at > 20


@pytest.mark.nightly
@pytest.mark.slow
def test_runs_that_are_killed_one_after_the_other_leave_nothing_behind(tmp_path):
    rng = random.Random(4)
    for i in range(60):
        out = tmp_path / f"{i}"
        if rng.random() < 0.5:
            leave(out, "old")
        for _ in range(rng.randrange(1, 4)):
            killed(out, rng.choice(["new", "third"]), rng.randrange(1, 40))
            assert is_whole_or_marked(out, "old", "new", "third"), (i, contents(out))
            if rng.random() < 0.3:  # a run that fails before it writes
                prepare_out(out).release()
        leave(out, "third")
        assert sorted(os.listdir(out)) == ["both.json", "other.json", "run.json"]


@pytest.mark.filterwarnings("ignore:output directory")
def test_a_killed_run_of_several_analyses_can_be_repeated_by_one(tmp_path):
    for at in range(1, 60, 3):
        out = tmp_path / f"{at}"
        leave(out, "old", ("A", "B"))
        killed(out, "new", at, ("A", "B", "C"))
        leave(out, "third")
        assert sorted(os.listdir(out)) == ["both.json", "other.json", "run.json"]


def test_a_second_run_is_refused_by_name_until_the_first_ends(tmp_path):
    with prepare_out(tmp_path):
        with pytest.raises(UsageError, match=rf"another run writes there \(process {os.getpid()} on .* since"):
            prepare_out(tmp_path)
        (tmp_path / "slurm.log").write_text("")
    prepare_out(tmp_path).release()


def hold(out, held, end):
    with prepare_out(out):
        held.set()
        end.wait()


def test_a_dead_run_holds_no_lock(tmp_path):
    context = multiprocessing.get_context("fork")
    held, end = context.Event(), context.Event()
    process = context.Process(target=hold, args=(tmp_path, held, end))
    process.start()
    held.wait()
    with pytest.raises(UsageError, match="another run"):
        prepare_out(tmp_path)
    process.kill()
    process.join()
    assert os.listdir(tmp_path) == [FOLDER]
    prepare_out(tmp_path).release()
    assert os.listdir(tmp_path) == []


def test_of_many_runs_at_once_each_finds_the_directory_whole(tmp_path):
    """Claims that are given back just when others take them."""
    leave(tmp_path, "old")
    children = []
    for _ in range(4):
        child = os.fork()
        children.append(child)
        if child == 0:
            status = 1
            try:
                done = 0
                while done < 20:
                    try:
                        leave(tmp_path, random.choice(["new", "third"]))
                        done += 1
                    except UsageError as error:
                        assert "another run" in str(error)
                status = 0
            finally:
                os._exit(status)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert is_whole_or_marked(tmp_path, "new", "third")
    assert not (tmp_path / FOLDER).exists()


def test_a_run_that_ends_while_another_looks_is_no_foreigner(tmp_path, monkeypatch):
    """The directory is looked at when its record is being replaced, and again when that is done."""
    leave(tmp_path, "old")
    record, seen = (tmp_path / "run.json").read_bytes(), []
    claim = prepare_out(tmp_path)
    (tmp_path / "run.json").unlink()
    listing = os.listdir

    def ends(place):
        inside = listing(place)
        if not seen:
            seen.append(inside)
            (tmp_path / "run.json").write_bytes(record)
            claim.release()
        return inside

    monkeypatch.setattr(os, "listdir", ends)
    prepare_out(tmp_path).release()
    assert FOLDER in seen[0]
    assert FOLDER not in listing(tmp_path)


def test_a_folder_that_goes_while_another_makes_it_is_made_again(tmp_path, monkeypatch):
    leave(tmp_path, "old")
    first, making = prepare_out(tmp_path), os.mkdir

    def goes(path, *mode):
        try:
            making(path, *mode)
        finally:
            if os.fspath(path).endswith(FOLDER):
                first.release()

    monkeypatch.setattr(os, "mkdir", goes)
    with prepare_out(tmp_path) as claim:
        assert claim.folder.is_dir()


def test_a_place_of_the_users_under_that_name_is_refused(tmp_path):
    (tmp_path / "run.json").write_text('{"himach": "0.1.0"}')
    (tmp_path / FOLDER).symlink_to("/")
    with pytest.raises(UsageError, match=r"'\.himach' in it is no directory"):
        prepare_out(tmp_path)
