"""The directory of a run: what is written there, what stays, one run at a time, and what a killed one leaves."""

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
from support.commands import killed_at_touch
from support.sample_runs import Drawn, Failing, Plain, make_record

from himach.errors import HimachError, UsageError
from himach.output import directory
from himach.output.claim import FOLDER, prepare_out
from himach.output.directory import remove_listed, write_outcome
from himach.output.file_names import unique_names
from himach.output.outcome_files import TextFile
from himach.output.table import Table


def write_run(out, labels, analyses, outcomes, record, force=False):
    with prepare_out(out, labels, force) as claim:
        return directory.write_run(claim, [*zip(labels, analyses, outcomes, strict=True)], record)


def check_out(out, labels=()):
    prepare_out(out, labels).release()


def tree(directory):
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(Path(directory).rglob("*")) if p.is_file()}


def test_a_run_leaves_files_and_its_record(tmp_path):
    out = tmp_path / "deep" / "out"
    analysis = Drawn(cutoff=3.2)
    record = make_record(analysis)
    files = write_run(out, ["Drawn"], [analysis], [{"x": np.arange(3.0)}], record)
    assert files == ["x.npy", "Drawn.png"]
    run = json.loads((out / "run.json").read_bytes())
    assert list(run) == [*record, "files"]
    assert run == {**record, "files": files}
    assert run["analyses"] == [{"name": "Drawn", "parameters": {"cutoff": 3.2}}]
    assert (out / "Drawn.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_takes_no_place_of_a_text(tmp_path):
    outcome = {"Drawn": TextFile("P1", ".png"), "x": np.arange(3.0)}
    assert write_run(tmp_path, ["Drawn"], [Drawn()], [outcome], make_record(Drawn())) == [
        "Drawn.png",
        "x.npy",
        "Drawn-2.png",
    ]
    assert (tmp_path / "Drawn.png").read_bytes() == b"P1"


def test_equal_runs_leave_equal_bytes(tmp_path):
    outcome = {"x": np.arange(3.0), "t": Table({"a": [0.1, 0.2]}), "s": {"b", "a"}}
    for name in ("one", "two"):
        write_run(tmp_path / name, ["Drawn"], [Drawn()], [outcome], make_record(Drawn()))
        seconds = json.loads((tmp_path / name / "run.json").read_bytes())["seconds"]
        assert seconds["whole"] == seconds["total"] + seconds["write"] + seconds["draw"] > seconds["total"]
        (tmp_path / name / "run.json").unlink()  # it says how long writing took
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


def test_several_analyses_have_a_directory_each(tmp_path):
    labels = unique_names(["Plain", "Plain", "run.json"])
    assert labels == ["Plain", "Plain-2", "run.json"]
    analyses = [Plain(), Plain(), Plain()]
    files = write_run(tmp_path, labels, analyses, [{"x": 1}, {"x": 2}, [3]], make_record(*analyses))
    assert files == ["Plain/x.json", "Plain-2/x.json", "run.json-2/run.json.json"]
    # One analysis takes the place of the three: what they left goes, and their directories with it.
    before = tree(tmp_path)
    with pytest.raises(UsageError, match=r"Plain would replace what Plain, Plain-2, .* left there \(.*x.json.*--force"):
        check_out(tmp_path, ["Plain"])
    assert tree(tmp_path) == before
    with pytest.warns(UserWarning, match="Plain replaces what Plain, Plain-2"):
        written = write_run(tmp_path, ["Plain"], [Plain()], [{"y": 1}], make_record(Plain()), force=True)
    assert written == ["y.json"]
    assert sorted(tree(tmp_path)) == ["run.json", "y.json"]
    assert not (tmp_path / "Plain").exists()


def test_an_earlier_run_gives_way_and_the_users_files_stay(tmp_path):
    write_run(tmp_path, ["Plain"], [Plain()], [{"old": 1, "both": 1}], make_record(Plain()))
    (tmp_path / "notes.txt").write_text("mine")
    check_out(tmp_path)
    assert sorted(tree(tmp_path)) == ["both.json", "notes.txt", "old.json", "run.json"]
    write_run(tmp_path, ["Plain"], [Plain()], [{"both": 2}], make_record(Plain()))
    assert sorted(tree(tmp_path)) == ["both.json", "notes.txt", "run.json"]
    assert (tmp_path / "both.json").read_bytes() == b"2\n"


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"version": 1}', "[" * 100_000])
def test_other_directories_are_refused(tmp_path, content):
    (tmp_path / "run.json" if content is not None else tmp_path / "thesis.tex").write_text(content or "")
    before = tree(tmp_path)
    with pytest.raises(UsageError, match=r"neither empty nor an earlier run's.*name another directory"):
        check_out(tmp_path)
    assert tree(tmp_path) == before


def test_a_link_to_no_record_is_refused(tmp_path):
    (tmp_path / "run.json").symlink_to("elsewhere.json")
    with pytest.raises(UsageError, match="neither empty nor an earlier run's"):
        check_out(tmp_path)


def test_places_that_cannot_be_written_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        check_out(tmp_path / "file")
    with pytest.raises(UsageError, match="cannot be written"):
        check_out(tmp_path / "file" / "below")
    with pytest.raises(UsageError, match="cannot be written"):
        check_out("/proc/himach")


def test_an_empty_directory_is_made_and_stays_empty(tmp_path):
    check_out(tmp_path / "a" / "b")
    assert os.listdir(tmp_path / "a" / "b") == []
    check_out(tmp_path / "a" / "b")


def test_cleaning_never_leaves_the_directory(tmp_path):
    out, other = tmp_path / "out", tmp_path / "other"
    out.mkdir()
    other.mkdir()
    for place in (other / "precious.csv", out / "real.csv", out / "kept.csv"):
        place.write_text("x")
    (out / "link").symlink_to(other)
    (out / "link.csv").symlink_to(other / "precious.csv")
    (out / "folder").mkdir()
    listed = ["../other/precious.csv", str(other / "precious.csv"), "link/precious.csv", "link.csv", "folder", ".", ""]
    listed += ["a/../../other/precious.csv", "run.json", "\0", 5, None, ["kept.csv"], "missing.csv", "real.csv"]
    (out / "run.json").write_text(json.dumps({"himach": "0.1.0", "files": listed}))
    remove_listed(out, listed)
    assert (other / "precious.csv").read_text() == "x"
    assert sorted(os.listdir(out)) == ["folder", "kept.csv", "link", "link.csv", "run.json"]


def test_a_subdirectory_that_leads_elsewhere_is_refused(tmp_path):
    out, other = tmp_path / "out", tmp_path / "other"
    other.mkdir()
    write_run(out, ["Plain"], [Plain()], [{"x": 1}], make_record(Plain()))
    (out / "A").symlink_to(other)
    with pytest.raises(UsageError, match="'A' in it is no directory"):
        check_out(out, ["A", "B"])
    check_out(out, ["Plain"])


def test_a_log_that_came_during_the_run_loses_no_outcome(tmp_path):
    with prepare_out(tmp_path) as claim:
        (tmp_path / "slurm.log").write_text("")
        directory.write_run(claim, [("Plain", Plain(), {"x": 1})], make_record(Plain()))
    assert sorted(tree(tmp_path)) == ["run.json", "slurm.log", "x.json"]


def test_a_failed_plot_leaves_outcome_and_record(tmp_path):
    with pytest.warns(UserWarning, match=r"there is no Failing\.png: KeyError: 'no such column'"):
        write_run(tmp_path, ["Failing"], [Failing()], [{"x": 1}], make_record(Failing()))
    run = json.loads((tmp_path / "run.json").read_bytes())
    assert (run["files"], run["errors"]) == (["x.json"], [])


@pytest.mark.parametrize(
    ("full", "written", "message"),
    [
        (".png", ["x.npy"], "lacks Drawn.png"),
        (".npy", ["Drawn.png"], "lacks x.npy"),
        ("", [], "run.json cannot be written"),
    ],
)
def test_what_a_full_disk_has_room_for_is_written_and_the_rest_named(tmp_path, monkeypatch, full, written, message):
    def write(path, content):
        if path.name.endswith(full):
            raise HimachError(f"{path} cannot be written (No space left on device)")
        path.write_bytes(content if isinstance(content, bytes) else b"".join(content))

    record = make_record(Drawn())
    write_run(tmp_path, ["Drawn"], [Drawn()], [{"x": np.ones(2)}], make_record(Drawn()))
    monkeypatch.setattr("himach.output.directory.write_bytes", write)
    assert write_run(tmp_path, ["Drawn"], [Drawn()], [{"x": np.arange(3.0)}], record) == written
    *_, error = record["errors"]
    assert message in error and "(No space left on device); make room there, or name another directory" in error
    left = json.loads((tmp_path / "run.json").read_bytes())
    assert (left["files"], left["errors"]) == ((written, [error]) if written else (["x.npy", "Drawn.png"], []))


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "x.json").mkdir()
    with pytest.raises(HimachError, match=r"x\.json cannot be written"):
        write_outcome({"x": 1}, "mine", tmp_path)
    assert os.listdir(tmp_path) == ["x.json"]


OUTCOMES = {"old": {"both": 1, "gone": 1}, "new": {"both": 2, "more": 2}, "third": {"both": 3, "other": 3}}


def leave(out, which, labels=("Plain",)):
    analyses = [Plain() for _ in labels]
    outcomes = [{name: f"{which} {value}" for name, value in OUTCOMES[which].items()} for _ in labels]
    with prepare_out(out, labels, force=True) as claim:
        directory.write_run(claim, [*zip(labels, analyses, outcomes, strict=True)], make_record(*analyses))


def killed(out, which, at, labels=("Plain",)):
    """Let a process write to `out` and be killed at its touch of files number `at`; tell whether it was."""
    return killed_at_touch(out, at, lambda: leave(out, which, labels))


def contents(out):
    return {path.name: path.read_text() for path in out.glob("*.json")}


def is_whole_or_marked(out, *whiches):
    """There is no record, and himach's mark; or a record, and exactly the files of its run."""
    files = contents(out)
    record = files.pop("run.json", None)
    if record is None:
        return (out / FOLDER).is_dir() or not files
    listed = {name: f'"{next(w for w in whiches if f"{w} " in files[name])} ' for name in json.loads(record)["files"]}
    whole = [w for w in whiches if {f"{name}.json" for name in OUTCOMES[w]} == set(files)]
    return set(listed) == set(files) and len(whole) == 1 and all(f"{whole[0]} " in text for text in files.values())


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


def test_a_place_of_the_users_under_that_name_is_refused(tmp_path):
    (tmp_path / "run.json").write_text('{"himach": "0.1.0"}')
    (tmp_path / FOLDER).symlink_to("/")
    with pytest.raises(UsageError, match=r"'\.himach' in it is no directory"):
        prepare_out(tmp_path)
