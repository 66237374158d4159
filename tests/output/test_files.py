"""What a run leaves in ``--out``."""

import csv
import dataclasses
import datetime
import io
import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sample_runs import Drawn, Failing, Plain, make_record

from himach.errors import HimachError, UsageError
from himach.output.files import clean_out, prepare_out, unique_labels, write_outcome, write_run
from himach.output.plain import to_json
from himach.output.table import Table


def tree(directory):
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(Path(directory).rglob("*")) if p.is_file()}


def read_csv(content):
    return list(csv.reader(io.StringIO(content.decode(), newline="")))


# -- outcomes ---------------------------------------------------------------------------------------------------------


def test_tables_arrays_and_the_rest(tmp_path):
    outcome = {
        "table": {"n": [1, 2], "x": [0.1, np.nan], "who": ["a,b", None]},
        "frame": pd.DataFrame({"y": [1.5]}),
        "array": np.arange(6.0).reshape(2, 3).T,
        "number": np.float32(0.1),
        "nested": {"a": (1, 2), "path": Path("/x")},
    }
    files = write_outcome(outcome, "mine", tmp_path)
    assert files == ["table.csv", "frame.csv", "array.npy", "number.json", "nested.json"]
    written = tree(tmp_path)
    assert sorted(written) == sorted(files)
    assert written["table.csv"] == b'n,x,who\n1,0.1,"a,b"\n2,nan,\n'
    assert written["frame.csv"] == b"y\n1.5\n"
    np.testing.assert_array_equal(np.load(tmp_path / "array.npy", allow_pickle=False), outcome["array"])
    assert written["number.json"] == b"0.1\n"
    assert json.loads(written["nested.json"]) == {"a": [1, 2], "path": "/x"}


@pytest.mark.parametrize(
    ("outcome", "file"),
    [
        (Table({"x": [1]}), "mine.csv"),
        (pd.DataFrame({"x": [1]}), "mine.csv"),
        (np.array([(1,)], dtype=[("x", "i4")]), "mine.csv"),
        (np.zeros((2, 2)), "mine.npy"),
        (np.zeros(2, dtype=[("x", "f4", 3)]), "mine.npy"),
        (np.array([None, 1]), "mine.json"),
        ([1, 2], "mine.json"),
        ("text", "mine.json"),
        (1.5, "mine.json"),
        ({1: 0.5, (1, 2): 1.5}, "mine.csv"),
        ({1: np.zeros(2)}, "1.npy"),
        ({"x": [1]}, "x.json"),
    ],
)
def test_an_outcome_that_is_one_thing_has_the_analysis_name(tmp_path, outcome, file):
    assert write_outcome(outcome, "mine", tmp_path) == [file]


def test_none_and_an_empty_dict_leave_nothing(tmp_path):
    assert write_outcome(None, "mine", tmp_path) == []
    assert write_outcome({}, "mine", tmp_path) == []


def test_what_cannot_be_written_is_named(tmp_path):
    with pytest.warns(UserWarning, match=r"mine: 'bad' of the outcome was not written: an object"):
        assert write_outcome({"bad": object(), "good": 1}, "mine", tmp_path) == ["good.json"]
    loop = []
    loop.append(loop)
    with pytest.warns(UserWarning, match="contains itself"):
        assert write_outcome({"loop": loop}, "mine", tmp_path) == []
    with pytest.warns(UserWarning, match="two keys"):
        assert write_outcome({"twice": {1: 0, "1": 0}}, "mine", tmp_path) == []


@pytest.mark.parametrize(
    ("names", "files"),
    [
        (["a/b", "a_b"], ["a_b-2.json", "a_b.json"]),
        (["..", ".", ""], ["_..json", "_.json", "_-2.json"]),
        ([".hidden", "-rf"], ["_hidden.json", "_rf.json"]),
        (["/etc/passwd", "a\0b", "a\nb"], ["_etc_passwd.json", "a_b.json", "a_b-2.json"]),
        (["run", "Å (nm)"], ["run-2.json", "Å (nm).json"]),
        (["x" * 400, "x" * 401], ["x" * 180 + ".json", "x" * 180 + "-2.json"]),
    ],
)
def test_names_are_safe_and_never_collide(tmp_path, names, files):
    assert write_outcome(dict.fromkeys(names, 0), "mine", tmp_path) == files
    assert sorted(tree(tmp_path)) == sorted(files)


NUMBERS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers())
CELLS = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.lists(st.tuples(NUMBERS, st.floats(), st.floats(width=32), CELLS)), CELLS)
def test_columns_read_back_exactly(rows, name):
    integers, doubles, singles, texts = (list(column) for column in zip(*rows, strict=True)) if rows else ([],) * 4
    outcome = {"t": Table({"i": integers, "d": doubles, "s": np.array(singles, dtype=np.float32), f"x{name}": texts})}
    with tempfile.TemporaryDirectory() as directory:
        (file,) = write_outcome(outcome, "mine", directory)
        header, *lines = read_csv((Path(directory) / file).read_bytes())
    assert header == ["i", "d", "s", f"x{name}"]
    assert [int(line[0]) for line in lines] == integers
    np.testing.assert_array_equal([float(line[1]) for line in lines], doubles)
    np.testing.assert_array_equal(np.array([line[2] for line in lines]).astype(np.float32), np.float32(singles))
    assert [line[3] for line in lines] == texts


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", "f4", "f8", "g", "c8", "c16", ">f8", "M8[s]", "U3"])
def test_every_type_of_column_can_be_written(tmp_path, dtype):
    column = np.array([0, 1]).astype(dtype)
    write_outcome(Table({"x": column}), "mine", tmp_path)
    texts = [line for (line,) in read_csv((tmp_path / "mine.csv").read_bytes())][1:]
    if column.dtype.kind != "b":
        np.testing.assert_array_equal(np.array(texts).astype(dtype), column)
    else:
        assert texts == ["False", "True"]


def test_object_cells_are_written_whole(tmp_path):
    cells = [np.arange(2000), (np.int64(1), "a"), {3, 1, 2}, b"x", np.float64(0.1)]
    write_outcome(Table({"x": cells}), "mine", tmp_path)
    texts = [line for (line,) in read_csv((tmp_path / "mine.csv").read_bytes())][1:]
    assert texts == [str(list(range(2000))), "(1, 'a')", "[1, 2, 3]", "b'x'", "0.1"]


def test_json_is_strict_and_sorted():
    @dataclasses.dataclass
    class Point:
        x: float

    value = {"nan": np.nan, "inf": [np.inf, -np.inf], "set": {"b", "a", 2, 1}, "point": Point(np.float32(0.1)), 5: True}
    assert json.loads(to_json(value), parse_constant=pytest.fail) == {
        "nan": None,
        "inf": ["Infinity", "-Infinity"],
        "set": [1, 2, "a", "b"],
        "point": {"x": 0.1},
        "5": True,
    }
    assert json.loads(
        to_json([np.array(["a"]), np.arange(2), datetime.date(2024, 1, 2), np.bool_(True), "\udc80"])
    ) == [
        ["a"],
        [0, 1],
        "2024-01-02",
        True,
        "\udc80",
    ]


def test_files_have_the_permissions_of_other_files(tmp_path):
    write_outcome({"x": 1}, "mine", tmp_path)
    (tmp_path / "other").write_text("")
    assert (tmp_path / "x.json").stat().st_mode == (tmp_path / "other").stat().st_mode


# -- directories ------------------------------------------------------------------------------------------------------


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


def test_equal_runs_leave_equal_bytes(tmp_path):
    outcome = {"x": np.arange(3.0), "t": Table({"a": [0.1, 0.2]}), "s": {"b", "a"}}
    for name in ("one", "two"):
        write_run(tmp_path / name, ["Drawn"], [Drawn()], [outcome], make_record(Drawn()))
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


def test_several_analyses_have_a_directory_each(tmp_path):
    labels = unique_labels(["Plain", "Plain", "run.json"])
    assert labels == ["Plain", "Plain-2", "run.json"]
    analyses = [Plain(), Plain(), Plain()]
    files = write_run(tmp_path, labels, analyses, [{"x": 1}, {"x": 2}, [3]], make_record(*analyses))
    assert files == ["Plain/x.json", "Plain-2/x.json", "run.json-2/run.json.json"]
    # One analysis takes the place of the three: what they left goes, and their directories with it.
    assert write_run(tmp_path, ["Plain"], [Plain()], [{"y": 1}], make_record(Plain())) == ["y.json"]
    assert sorted(tree(tmp_path)) == ["run.json", "y.json"]
    assert not (tmp_path / "Plain").exists()


def test_an_earlier_run_gives_way_and_the_users_files_stay(tmp_path):
    write_run(tmp_path, ["Plain"], [Plain()], [{"old": 1, "both": 1}], make_record(Plain()))
    (tmp_path / "notes.txt").write_text("mine")
    prepare_out(tmp_path)
    assert sorted(tree(tmp_path)) == ["both.json", "notes.txt", "old.json", "run.json"]
    write_run(tmp_path, ["Plain"], [Plain()], [{"both": 2}], make_record(Plain()))
    assert sorted(tree(tmp_path)) == ["both.json", "notes.txt", "run.json"]
    assert (tmp_path / "both.json").read_bytes() == b"2\n"


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"version": 1}', "[" * 100_000])
def test_other_directories_are_refused(tmp_path, content):
    (tmp_path / "run.json" if content is not None else tmp_path / "thesis.tex").write_text(content or "")
    before = tree(tmp_path)
    with pytest.raises(UsageError, match=r"neither empty nor an earlier run's.*name another directory"):
        prepare_out(tmp_path)
    assert tree(tmp_path) == before


def test_places_that_cannot_be_written_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        prepare_out(tmp_path / "file")
    with pytest.raises(UsageError, match="cannot be written"):
        prepare_out(tmp_path / "file" / "below")
    with pytest.raises(UsageError, match="cannot be written"):
        prepare_out("/proc/himach")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="cannot be written"):
        prepare_out(tmp_path)


def test_an_empty_directory_is_made_and_stays_empty(tmp_path):
    prepare_out(tmp_path / "a" / "b")
    assert os.listdir(tmp_path / "a" / "b") == []
    prepare_out(tmp_path / "a" / "b")


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
    clean_out(out)
    assert (other / "precious.csv").read_text() == "x"
    assert sorted(os.listdir(out)) == ["folder", "kept.csv", "link", "link.csv", "run.json"]


def test_a_subdirectory_that_leads_elsewhere_is_refused(tmp_path):
    out, other = tmp_path / "out", tmp_path / "other"
    other.mkdir()
    write_run(out, ["Plain"], [Plain()], [{"x": 1}], make_record(Plain()))
    (out / "A").symlink_to(other)
    with pytest.raises(UsageError, match="'A' in it is no directory"):
        prepare_out(out, ["A", "B"])
    prepare_out(out, ["A"])


def test_a_log_that_came_during_the_run_loses_no_outcome(tmp_path):
    prepare_out(tmp_path)
    (tmp_path / "slurm.log").write_text("")
    write_run(tmp_path, ["Plain"], [Plain()], [{"x": 1}], make_record(Plain()))
    assert sorted(tree(tmp_path)) == ["run.json", "slurm.log", "x.json"]


def test_a_failed_plot_leaves_outcome_and_record(tmp_path):
    with pytest.raises(KeyError):
        write_run(tmp_path, ["Failing"], [Failing()], [{"x": 1}], make_record(Failing()))
    run = json.loads((tmp_path / "run.json").read_bytes())
    assert run["files"] == ["x.json"]
    assert run["errors"] == ["KeyError: 'no such column'"]


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "x.json").mkdir()
    with pytest.raises(HimachError, match=r"x\.json cannot be written"):
        write_outcome({"x": 1}, "mine", tmp_path)
    assert os.listdir(tmp_path) == ["x.json"]
