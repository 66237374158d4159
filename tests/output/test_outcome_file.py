"""Outcomes in one file: what is read back is what was saved."""

import csv
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import himach
from himach.output.formats import TextFile, table_content
from himach.output.outcome_file import save
from himach.output.table import Column, Table
from himach.output.table_files.data_frames import to_frame

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
    with np.load(path) as found:
        assert set(found) == {*named_arrays, *(f"the table/{name}" for name in table)}
        for name, array in named_arrays.items():
            assert found[name].dtype == array.dtype
            assert found[name].tobytes() == array.tobytes()
        for name, cells in table.items():
            again = found[f"the table/{name}"]
            assert again.tolist() == cells if isinstance(cells, list) else again.tobytes() == cells.tobytes()


def test_units_lie_beside_the_numbers(tmp_path):
    save({"rmsd": RMSD}, tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as found:
        assert json.loads(str(found["units"])) == {"rmsd/time_ps": "ps", "rmsd/rmsd": "Å"}
    save({"center": TextFile("END\n", ".pdb")}, tmp_path / "text.npz")
    with np.load(tmp_path / "text.npz") as found:
        assert str(found["center"]) == "END\n"
    save({"rmsd": RMSD}, tmp_path / "x.json")
    found = json.loads((tmp_path / "x.json").read_bytes())
    assert found["units"] == {"rmsd": {"time_ps": "ps", "rmsd": "Å"}}
    assert found["outcome"]["rmsd"] == {"time_ps": [0.0, 0.1], "rmsd": [0.0, 1 / 3], "state": ["open", "shut"]}


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
    ("parts", "name", "said"),
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
def test_what_has_no_form_is_named_and_leaves_no_file(tmp_path, parts, name, said):
    with pytest.raises(himach.UsageError, match=said):
        save(parts, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_frame_has_columns_and_units():
    frame = to_frame(RMSD)
    assert list(frame.columns) == ["time_ps", "rmsd", "state"]
    assert frame["rmsd"].tolist() == [0.0, 1 / 3]
    assert frame.attrs == {"units": {"time_ps": "ps", "rmsd": "Å"}}


def test_without_pandas_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(himach.UsageError, match=r"himach\[pandas\]"):
        to_frame(RMSD)
