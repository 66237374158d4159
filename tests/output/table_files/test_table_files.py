"""Tables as Parquet, NetCDF and .xvg, read back by the programs that these are for."""

import datetime
import re
import subprocess

import MDAnalysis as mda
import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.io import netcdf_file
from support import needs

from himach.errors import UsageError
from himach.output.directory import write_outcome
from himach.output.formats import table_content
from himach.output.table import Column, Table
from himach.output.table_files.formats import table_formats

pyarrow = pytest.importorskip("pyarrow.parquet")
xarray = pytest.importorskip("xarray")

TIMES = np.arange(5) * 0.2


def rmsd_table():
    return Table(
        {
            "time_ps": Column(TIMES, "ps"),
            "rmsd": Column([0.1 + 0.2, 1.5, np.nan, 2.0, 1e-300], "Å"),
            "n": np.arange(5, dtype=np.int16),
            "open": [True, False, True, True, False],
            "state": ["é", None, "", "b,c", 'd"'],
            "frame": np.arange(5),
        }
    )


def read_parquet(tmp_path, table):
    path = tmp_path / "table.parquet"
    path.write_bytes(table_content(table, "table", "parquet"))
    return pd.read_parquet(path), pyarrow.read_table(path)


def read_netcdf(tmp_path, table):
    path = tmp_path / "table.nc"
    path.write_bytes(table_content(table, "table", "nc"))
    return xarray.load_dataset(path), path


def test_pandas_and_arrow_read_values_types_and_units(tmp_path):
    table = rmsd_table()
    frame, arrow = read_parquet(tmp_path, table)
    for name in ("time_ps", "rmsd", "n", "open", "frame"):
        np.testing.assert_array_equal(frame[name].to_numpy(), np.asarray(table[name]))
        assert frame[name].dtype == np.asarray(table[name]).dtype
    assert arrow["state"].to_pylist() == table["state"]
    assert frame.attrs["units"] == table.units == {"time_ps": "ps", "rmsd": "Å"}
    assert arrow.schema.field("rmsd").metadata == {b"unit": "Å".encode()}
    assert arrow.schema.field("n").metadata is None
    assert list(arrow.column_names) == list(table)


NUMBERS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))


@given(st.lists(st.tuples(NUMBERS, st.one_of(st.none(), st.booleans()), st.one_of(st.none(), st.text())), min_size=1))
@example([(-(2**63), None, None), (2**63 - 1, None, None)])
def test_what_is_absent_is_null_in_parquet(tmp_path_factory, rows):
    integers, truths, texts = map(list, zip(*rows, strict=True))
    table = Table({"i": [*integers, None], "b": [*truths, None], "t": [*texts, None]})
    _, arrow = read_parquet(tmp_path_factory.mktemp("parquet"), table)
    assert arrow["i"].to_pylist() == [*integers, None] or set(integers) == {None}
    assert [None if cell is None else str(cell) for cell in arrow["b"].to_pylist()] == [
        None if cell is None else str(cell) for cell in [*truths, None]
    ]
    assert arrow["t"].to_pylist() == [
        None if text is None else text.encode(errors="backslashreplace").decode() for text in [*texts, None]
    ]


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", "f4", "f8", "g", "c16", ">f8", "M8[s]", "M8[D]", "m8[ns]"])
@pytest.mark.parametrize("kind", ["parquet", "nc"])
def test_every_type_of_column_has_a_form(tmp_path, dtype, kind):
    column = np.array([0, 1]).astype(dtype)
    read = read_parquet if kind == "parquet" else read_netcdf
    found = read(tmp_path, Table({"key": ["a", "b"], "x": column}))[0]["x"].to_numpy()
    if dtype == "c16":
        assert list(found) == ["0j", "(1+0j)"]
    else:
        np.testing.assert_array_equal(found.astype(column.dtype), column)


def test_other_objects_are_texts_as_in_a_csv(tmp_path):
    cells = [(1, "a"), {3, 1}, 2**70, datetime.date(2024, 1, 2), None]
    table = Table({"x": cells})
    texts = ["(1, 'a')", "[1, 3]", str(2**70), "2024-01-02"]
    assert read_parquet(tmp_path, table)[1]["x"].to_pylist() == [*texts, None]
    assert list(read_netcdf(tmp_path, table)[0]["x"].to_numpy()) == [*texts, ""]
    odd = Table({"large": [2**70, None], "no utf-8": ["a\udc80", None]})
    for column, text in (("large", str(2**70)), ("no utf-8", r"a\udc80")):
        assert read_parquet(tmp_path, odd)[1][column].to_pylist() == [text, None]
        assert list(read_netcdf(tmp_path, odd)[0][column].to_numpy()) == [text, ""]


def test_xarray_and_scipy_read_values_and_units(tmp_path):
    table = rmsd_table()
    dataset, path = read_netcdf(tmp_path, table)
    assert dict(dataset.sizes) == {"time_ps": 5}
    for name in ("time_ps", "rmsd", "n", "open", "frame"):
        np.testing.assert_array_equal(dataset[name].to_numpy(), np.asarray(table[name]))
    assert [dataset[name].dtype.str for name in ("rmsd", "n", "open", "frame")] == ["<f8", "<i2", "|b1", "<i4"]
    assert list(dataset["state"].to_numpy()) == ["é", "", "", "b,c", 'd"']
    assert set(dataset.coords) == {"time_ps", "frame"}
    with netcdf_file(path, mmap=False) as file:
        assert file.variables["rmsd"].units.decode() == "Å"
        assert file.variables["rmsd"].dimensions == ("time_ps",)
        assert not hasattr(file.variables["rmsd"], "_FillValue")


def test_integers_beyond_32_bits_are_floats_or_texts_in_netcdf(tmp_path):
    dataset, _ = read_netcdf(tmp_path, Table({"a": [2**31 - 1], "b": [2**40], "c": [2**53 + 1]}))
    assert [dataset[name].to_numpy().tolist()[0] for name in "abc"] == [2**31 - 1, 2.0**40, str(2**53 + 1)]
    assert dataset["b"].dtype == np.float64


def test_names_that_netcdf_has_not_are_changed_and_told(tmp_path):
    names = ["a/b", "a_b", "%", "float", "1 - 2 ", "row", "", "é"]
    dataset, _ = read_netcdf(tmp_path, Table({name: [i] for i, name in enumerate(names)}))
    found = {variable.attrs.get("long_name", name): int(variable[0]) for name, variable in dataset.data_vars.items()}
    assert found == {("row_" if name == "row" else name): i for i, name in enumerate(names)}
    assert "a_b" in dataset and "a_b_" in dataset


def ensemble_table(drop=0):
    times = [TIMES, TIMES[: len(TIMES) - drop] + 1e-9]
    member = [name for name, time in zip("ab", times, strict=True) for _ in time]
    values = np.arange(float(len(member)))
    group = ["x" if name == "a" else "y" for name in member]
    columns = {"member": member, "group": group, "time_ps": Column(np.concatenate(times), "ps")}
    return Table({**columns, "rmsd": Column(values, "Å"), "n": values.astype(int)})


def test_members_are_a_dimension_of_netcdf(tmp_path):
    dataset, _ = read_netcdf(tmp_path, ensemble_table(drop=1))
    assert dataset["rmsd"].dims == ("member", "time_ps")
    assert dataset.sel(member="b")["rmsd"].to_numpy().tolist()[:4] == [5, 6, 7, 8]
    assert np.isnan(dataset.sel(member="b")["rmsd"][-1])
    assert dataset["group"].dims == ("member",)
    assert list(dataset["group"].to_numpy()) == ["x", "y"]


def gmx_means(path):
    gmx = needs.program("gmx", of="GROMACS")
    done = subprocess.run(
        [gmx, "analyze", "-f", path.name], cwd=path.parent, capture_output=True, text=True, check=True
    )
    return [float(mean) for mean in re.findall(r"^SS\d+ +(\S+)", done.stdout, re.MULTILINE)]


def written_xvg(tmp_path, table):
    assert write_outcome({"table": table}, "mine", tmp_path, tables=("csv", "xvg")) == ["table.csv", "table.xvg"]
    return tmp_path / "table.xvg"


def test_gromacs_and_mdanalysis_read_xvg(tmp_path):
    table = Table({"time_ps": Column(TIMES, "ps"), "rmsd": Column([0.3, 1.5, 2, 2.5, 3], "Å"), "n": [1, 2, 3, 4, 6]})
    path = written_xvg(tmp_path, table)
    aux = mda.auxiliary.auxreader(str(path))
    read = np.array([step.data for step in aux])
    np.testing.assert_array_equal(read[:, 1:], np.array([table["rmsd"], table["n"]]).T)
    np.testing.assert_allclose(read[:, 0], TIMES, rtol=1e-15)  # as a CSV, an .xvg has 0.6, not 0.6000000000000001
    np.testing.assert_allclose(gmx_means(path), [np.mean(table["rmsd"]), np.mean(table["n"])])


def test_an_xvg_names_title_axes_units_and_legends(tmp_path):
    units = {"x": "Å²", "y": "cm⁻¹", "z_ps": "ps", 'q"': ""}
    table = Table({name: Column([1.5, 2.5], unit) for name, unit in units.items()})
    text = written_xvg(tmp_path, Table({**table, "who": ["a", "b"]})).read_text()
    assert "who" not in text
    lines = table_content(table, 'a "b"', "xvg").decode().splitlines()
    assert "@    title \"a 'b'\"" in lines
    assert r'@    xaxis  label "x (Angstrom\S2\N)"' in lines
    assert [line for line in lines if "legend \"" in line] == [
        r'@ s0 legend "y (cm\S-1\N)"', '@ s1 legend "z (ps)"', "@ s2 legend \"q'\""
    ]  # fmt: skip
    one = Table({"r": Column([0.1], "Å"), "g": Column([1.0], "nm"), "g_low": Column([0.5], "nm")})
    lines = table_content(one, "rdf", "xvg").decode().splitlines()
    assert '@    yaxis  label "(nm)"' in lines
    assert '@ s1 legend "g_low"' in lines


def test_an_xvg_of_an_ensemble_has_a_column_for_each_member(tmp_path):
    path = written_xvg(tmp_path, ensemble_table())
    legends = re.findall(r'legend "(.*)"', path.read_text())
    assert legends == ["a rmsd (Angstrom)", "a n", "b rmsd (Angstrom)", "b n"]
    np.testing.assert_allclose(gmx_means(path), [2, 2, 7, 7])


@pytest.mark.parametrize(
    "table",
    [
        Table({"residue": ["ALA 1"], "n": [1.0]}),
        Table({"member": ["a", "b"], "d": [1.0, 2.0]}),
        Table({"member": ["a", "a", "b", "b"], "ion": [3, 1, 1, 2]}),
        Table({}),
    ],
)
def test_what_has_no_form_as_xvg_is_told(tmp_path, table):
    with pytest.warns(
        UserWarning, match=r"mine: 'mine' of the outcome was not written as mine.xvg: an .xvg has numbers"
    ):
        assert write_outcome(table, "mine", tmp_path, tables=("csv", "xvg")) == ["mine.csv"]


def test_files_of_one_table_have_one_name_and_no_file_is_lost(tmp_path):
    outcome = {"a/b": Table({"x": [1.0, 2.0]}), "a_b": Table({"x": [1.0, 3.0]}), "other": np.arange(3)}
    names = write_outcome(outcome, "mine", tmp_path, tables=("csv", "parquet", "nc", "xvg"))
    stems = ["a_b", "a_b-2"]
    kinds = ["csv", "parquet", "nc", "xvg"]
    assert sorted(names) == sorted([f"{stem}.{kind}" for stem in stems for kind in kinds] + ["other.npy"])
    assert xarray.load_dataset(tmp_path / "a_b.nc")["x"].to_numpy().tolist() == [1, 3]


@pytest.mark.parametrize("kind", ["parquet", "nc", "xvg"])
def test_equal_tables_are_equal_bytes(kind):
    assert table_content(rmsd_table(), "t", kind) == table_content(rmsd_table(), "t", kind)
    assert table_content(rmsd_table(), "t", kind) != table_content(ensemble_table(), "t", kind)
    assert b"2026" not in table_content(rmsd_table(), "t", kind)


def test_formats_are_names_that_there_are():
    assert table_formats("PARQUET, csv,xvg") == table_formats(["parquet", "xvg"]) == ("csv", "parquet", "xvg")
    for asked in ("hdf5", "", ["csv", 3]):
        with pytest.raises(UsageError, match=r"table .*: tables are csv, parquet, nc, xvg"):
            table_formats(asked)
