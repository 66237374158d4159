"""Parts of an outcome as files: their names, CSV, .npy and JSON; an outcome in one file."""

import csv
import dataclasses
import datetime
import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import himach
from himach.errors import UsageError
from himach.output.directory import write_outcome
from himach.output.outcome_files import TextFile, content, save, to_json
from himach.output.parts import parts_text
from himach.output.table import Column, Table
from himach.output.table_files import table_content


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
    written = {file: (tmp_path / file).read_bytes() for file in os.listdir(tmp_path)}
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


def test_a_text_is_a_file_as_it_is(tmp_path):
    outcome = {"ion": TextFile("K  0 Å\r\nEND", ".pdb"), "ion.x": TextFile(""), "run": TextFile("{}", ".json")}
    assert write_outcome(outcome, "mine", tmp_path) == ["ion.pdb", "ion.x.txt", "run-2.json"]
    assert (tmp_path / "ion.pdb").read_bytes() == "K  0 Å\r\nEND".encode()
    assert (tmp_path / "ion.x.txt").read_bytes() == b""
    assert write_outcome(outcome["ion"], "mine", tmp_path) == ["mine.pdb"]
    assert repr(outcome["ion"]) == "TextFile(.pdb, 2 lines)"
    assert parts_text(list(outcome.items())[:1]) == "ion: TextFile(.pdb, 2 lines)"
    assert json.loads(to_json(outcome))["ion"] == {"text": "K  0 Å\r\nEND", "suffix": ".pdb"}


@pytest.mark.parametrize("suffix", ["pdb", "", ".", "../x", ".a/b", ".a\n", None])
def test_a_suffix_is_one(suffix):
    with pytest.raises(UsageError, match=r"TextFile: suffix must be one such as '\.pdb', not "):
        TextFile("", suffix)


def test_a_text_is_text():
    with pytest.raises(UsageError, match="TextFile: text must be a str, not bytes"):
        TextFile(b"")


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
    assert sorted(os.listdir(tmp_path)) == sorted(files)


def test_json_is_strict_and_sorted():
    @dataclasses.dataclass
    class Point:
        x: float

    value = {"nan": np.nan, "inf": [np.inf, -np.inf], "set": {"b", "a", 2, 1}, "point": Point(np.float32(0.1)), 5: True}
    expected = {"nan": None, "inf": ["Infinity", "-Infinity"], "set": [1, 2, "a", "b"], "point": {"x": 0.1}, "5": True}
    assert json.loads(to_json(value), parse_constant=pytest.fail) == expected
    values = [np.array(["a"]), np.arange(2), datetime.date(2024, 1, 2), np.bool_(True), "\udc80"]
    assert json.loads(to_json(values)) == [["a"], [0, 1], "2024-01-02", True, "\udc80"]


def test_files_have_the_permissions_of_other_files(tmp_path):
    write_outcome({"x": 1}, "mine", tmp_path)
    (tmp_path / "other").write_text("")
    assert (tmp_path / "x.json").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_times_are_written_as_people_write_them():
    steps = np.arange(200_000)
    single = (steps * np.float32(0.1)).astype(np.float32)
    assert content(Table({"time_ps": np.array([np.float64(np.float32(0.1))])})) == b"time_ps\n0.1\n"
    written = np.array(content(Table({"time_ps": single.astype(np.float64)})).split()[1:], dtype=np.float64)
    assert np.array_equal(written.astype(np.float32), single)  # nothing is lost that the trajectory held
    product = steps * 0.002
    lines = content(Table({"tau_ps": product})).decode().split()[1:]
    assert max(map(len, lines)) <= len("399.998")
    assert np.allclose(np.array(lines, dtype=float), product, rtol=1e-15, atol=0)


@pytest.mark.parametrize(
    "time",
    [1 / 3, 0.9999999119200186, 2.9999997357600558, 1e300, 123456792.0, 1e-9, 1000000.0625, -0.1, 1e22, 16777217.0],
)
def test_other_times_and_other_columns_keep_every_digit(time):
    assert float(content(Table({"entered_ps": np.array([time])})).split()[1]) == time
    assert content(Table({"rmsd": np.array([0.1 + 0.2])})) == b"rmsd\n0.30000000000000004\n"
    assert content(Table({"time": np.array([np.nan, np.inf])})) == b"time\nnan\ninf\n"


RMSD = Table({"time_ps": Column([0.0, 0.1], "ps"), "rmsd": Column([0.0, 1 / 3], "Å"), "state": ["open", "shut"]})

numbers = st.one_of(hnp.integer_dtypes(endianness="="), hnp.floating_dtypes(endianness="=", sizes=(16, 32, 64)))
arrays = hnp.arrays(numbers, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
names = st.text("abc_ /Åß.", min_size=1, max_size=6)
texts = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), min_size=2, max_size=2)
columns = st.one_of(hnp.arrays(numbers, (2,)), texts)
tables = st.dictionaries(names, columns, min_size=1, max_size=3).map(Table)


@given(named_arrays=st.dictionaries(names, arrays, max_size=3), table=tables)
def test_an_npz_has_every_array_and_column_to_the_last_bit(tmp_path_factory, named_arrays, table):
    path = tmp_path_factory.mktemp("npz") / "x.npz"
    try:
        save({**named_arrays, "the table": table}, path)
    except himach.UsageError as error:  # a text with a zero at its end has no form in an array
        assert "holds objects" in str(error)
        assert any(cell.endswith("\0") for cells in table.values() if isinstance(cells, list) for cell in cells)
        return
    with np.load(path) as archive:
        assert set(archive) == {*named_arrays, *(f"the table/{name}" for name in table)}
        for name, array in named_arrays.items():
            assert archive[name].dtype == array.dtype
            assert archive[name].tobytes() == array.tobytes()
        for name, cells in table.items():
            again = archive[f"the table/{name}"]
            assert again.tolist() == cells if isinstance(cells, list) else again.tobytes() == cells.tobytes()


def test_units_lie_beside_the_numbers(tmp_path):
    save({"rmsd": RMSD}, tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as content:
        assert json.loads(str(content["units"])) == {"rmsd/time_ps": "ps", "rmsd/rmsd": "Å"}
    save({"center": TextFile("END\n", ".pdb")}, tmp_path / "text.npz")
    with np.load(tmp_path / "text.npz") as content:
        assert str(content["center"]) == "END\n"
    save({"rmsd": RMSD}, tmp_path / "x.json")
    content = json.loads((tmp_path / "x.json").read_bytes())
    assert content["units"] == {"rmsd": {"time_ps": "ps", "rmsd": "Å"}}
    assert content["outcome"]["rmsd"] == {"time_ps": [0.0, 0.1], "rmsd": [0.0, 1 / 3], "state": ["open", "shut"]}


def test_a_csv_is_one_table_and_its_units(tmp_path):
    path = tmp_path / "x.csv"
    assert save({"rmsd": RMSD}, path) == [path, tmp_path / "x.units.json"]
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["rmsd"]) for row in rows] == [0.0, 1 / 3]
    assert json.loads((tmp_path / "x.units.json").read_bytes()) == {"time_ps": "ps", "rmsd": "Å"}
    assert save({"t": Table({"a": [1]})}, path) == [path]
    assert [file.name for file in tmp_path.iterdir()] == ["x.csv"], "units of another table stayed"


@pytest.mark.parametrize("kind", ["parquet", "nc", "xvg"])
def test_one_table_is_saved_as_a_run_writes_it(tmp_path, kind):
    pytest.importorskip({"parquet": "pyarrow", "nc": "xarray"}.get(kind, "numpy"))
    path = tmp_path / f"x.{kind}"
    assert save({"rmsd": RMSD}, path) == [path]
    assert path.read_bytes() == table_content(RMSD, "rmsd", kind)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("parts", "name", "message"),
    [
        ({"rmsd": RMSD}, "x.hdf5", r"\.npz, \.json, \.csv, \.parquet, \.nc, \.xvg, not as \.hdf5"),
        ({"rmsd": RMSD}, "x", r"\.npz, \.json, \.csv"),
        ({"a": RMSD, "b": RMSD}, "x.csv", "one table, and the outcome is a, b"),
        ({"a": np.arange(3)}, "x.csv", "one table"),
        ({}, "x.csv", "nothing"),
        ({"a": RMSD, "b": RMSD}, "x.nc", r"a \.nc holds one table, and the outcome is a, b"),
        ({"t": Table({"a": ["x"]})}, "x.xvg", "the first column, 'a', is none of numbers; save .csv"),
        ({"t": Table({"a": ["x", None]})}, "x.npz", "t/a holds objects"),
        ({"a": {"b": 1}}, "x.npz", r"a \(dict\) has no form in .npz"),
        ({"a": np.ma.masked_array([1, 2], [0, 1])}, "x.npz", "a is a masked array"),
        ({"rmsd": RMSD, "units": np.arange(3)}, "x.npz", "units"),
        ({"a": object()}, "x.json", "no form in JSON"),
    ],
)
def test_what_has_no_form_is_named_and_leaves_no_file(tmp_path, parts, name, message):
    with pytest.raises(himach.UsageError, match=message):
        save(parts, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_frame_has_columns_and_units():
    frame = RMSD.to_frame()
    assert list(frame.columns) == ["time_ps", "rmsd", "state"]
    assert frame["rmsd"].tolist() == [0.0, 1 / 3]
    assert frame.attrs == {"units": {"time_ps": "ps", "rmsd": "Å"}}


def test_without_pandas_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(himach.UsageError, match=r"himach\[pandas\]"):
        RMSD.to_frame()
