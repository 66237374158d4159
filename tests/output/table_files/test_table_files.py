"""Tables as CSV, Parquet, NetCDF and .xvg, read back by the programs that these are for."""

import csv
import io
import re
import subprocess
from typing import ClassVar

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
from himach.output.formats import content, table_content
from himach.output.table import Column, Table
from himach.output.table_files.formats import table_formats

from .table_formats import TableFormatTests

pyarrow = pytest.importorskip("pyarrow.parquet")
xarray = pytest.importorskip("xarray")

TIMES = np.arange(5) * 0.2


class TestCsv(TableFormatTests):
    types = None
    absent = ("", "", "", "")

    def write(self, table):
        return content(table)

    def read(self, content):
        header, *rows = csv.reader(io.StringIO(content.decode(), newline=""))
        truths = {"True": True, "False": False}
        cells = [[truths.get(cell, cell.removesuffix(" nanoseconds")) for cell in row] for row in rows]
        return {name: [row[i] for row in cells] for i, name in enumerate(header)}

    def read_units(self, table):
        """They are written on request, and where a name does not tell them."""
        assert content(table).startswith(b"time_ps,rmsd,n\n")
        header = content(table, units=True).decode().splitlines()[0]
        assert header == "time_ps,rmsd (Å),n"
        return {"time_ps": "ps", "rmsd": "Å"}


class TestParquet(TableFormatTests):
    kind = "parquet"
    types: ClassVar = {"g": "f8", ">f8": "f8"}

    def read(self, content):
        table = pyarrow.read_table(io.BytesIO(content))
        frame = table.to_pandas()
        return {
            name: frame[name].to_numpy() if table[name].null_count == 0 else table[name].to_pylist() for name in frame
        }

    def read_units(self, table):
        content = io.BytesIO(self.write(table))
        schema = pyarrow.read_schema(content)
        units = {name: schema.field(name).metadata for name in schema.names}
        assert pd.read_parquet(content).attrs["units"] == table.units
        return {name: unit[b"unit"].decode() for name, unit in units.items() if unit is not None}


class TestNetCdf(TableFormatTests):
    kind = "nc"
    types: ClassVar = {"u2": "i4", "i8": "i4", "u8": "i4", "f2": "f4", "g": "f8", ">f8": "f8"}
    absent = (np.float64("nan"), np.float64("nan"), "", "")

    def read(self, content):
        names = {"row_": "row"}  # a dimension has that name
        variables = xarray.load_dataset(io.BytesIO(content)).variables
        return {each.attrs.get("long_name", names.get(name, name)): each.to_numpy() for name, each in variables.items()}

    def read_units(self, table):
        with netcdf_file(io.BytesIO(self.write(table)), mmap=False) as file:
            assert not any(hasattr(variable, "_FillValue") for variable in file.variables.values())
            assert {variable.dimensions for variable in file.variables.values()} == {("time_ps",)}
            return {name: each.units.decode() for name, each in file.variables.items() if hasattr(each, "units")}


class TestXvg(TableFormatTests):
    kind = "xvg"
    has_texts = False
    types = None
    absent = (np.float64("nan"), np.float64("nan"))

    def read(self, content):
        lines = content.decode().splitlines()
        names = [re.search('"(.*)"', line)[1] for line in lines if "xaxis" in line or 'legend "' in line]
        rows = [line.split() for line in lines if line[0] != "@"]
        return {name: np.array([float(row[i]) for row in rows]) for i, name in enumerate(names)}

    def read_units(self, table):
        units = [re.fullmatch(r"(.*) \((.*)\)", name) for name in self.read(self.write(table))]
        assert [unit and unit[1] for unit in units] == ["time", "rmsd", None]
        return {"time_ps": units[0][2], "rmsd": units[1][2].replace("Angstrom", "Å")}


NUMBERS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))


@given(st.lists(st.tuples(NUMBERS, st.one_of(st.none(), st.booleans()), st.one_of(st.none(), st.text())), min_size=1))
@example([(-(2**63), None, None), (2**63 - 1, None, None)])
def test_what_is_absent_is_null_in_parquet(rows):
    integers, truths, texts = map(list, zip(*rows, strict=True))
    table = Table({"i": [*integers, None], "b": [*truths, None], "t": [*texts, None]})
    arrow = pyarrow.read_table(io.BytesIO(table_content(table, "table", "parquet")))
    assert arrow["i"].to_pylist() == [*integers, None] or set(integers) == {None}
    assert [None if cell is None else str(cell) for cell in arrow["b"].to_pylist()] == [
        None if cell is None else str(cell) for cell in [*truths, None]
    ]
    assert arrow["t"].to_pylist() == [
        None if text is None else text.encode(errors="backslashreplace").decode() for text in [*texts, None]
    ]


def read_netcdf(table):
    return xarray.load_dataset(io.BytesIO(table_content(table, "table", "nc")))


def test_names_that_netcdf_has_not_are_changed():
    names = ["a/b", "a_b", "1 - 2 ", ""]
    dataset = read_netcdf(Table({name: [number] for number, name in enumerate(names)}))
    assert {each.attrs.get("long_name", name): int(each[0]) for name, each in dataset.items()} == {
        name: number for number, name in enumerate(names)
    }
    assert "a_b" in dataset and "a_b_" in dataset


def test_times_and_frames_are_coordinates_of_netcdf():
    dataset = read_netcdf(Table({"time_ps": TIMES, "x": TIMES, "frame": np.arange(5)}))
    assert (dict(dataset.sizes), set(dataset.coords)) == ({"time_ps": 5}, {"time_ps", "frame"})


def test_integers_beyond_32_bits_are_floats_or_texts_in_netcdf():
    dataset = read_netcdf(Table({"a": [2**31 - 1], "b": [2**40], "c": [2**53 + 1]}))
    assert [dataset[name].to_numpy().tolist()[0] for name in "abc"] == [2**31 - 1, 2.0**40, str(2**53 + 1)]
    assert dataset["b"].dtype == np.float64


def ensemble_table(drop=0):
    times = [TIMES, TIMES[: len(TIMES) - drop] + 1e-9]
    member = [name for name, time in zip("ab", times, strict=True) for _ in time]
    values = np.arange(float(len(member)))
    group = ["x" if name == "a" else "y" for name in member]
    columns = {"member": member, "group": group, "time_ps": Column(np.concatenate(times), "ps")}
    return Table({**columns, "rmsd": Column(values, "Å"), "n": values.astype(int)})


def test_members_are_a_dimension_of_netcdf():
    dataset = read_netcdf(ensemble_table(drop=1))
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


def test_formats_are_names_that_there_are():
    assert table_formats("PARQUET, csv,xvg") == table_formats(["parquet", "xvg"]) == ("csv", "parquet", "xvg")
    for asked in ("hdf5", "", ["csv", 3]):
        with pytest.raises(UsageError, match=r"table .*: tables are csv, parquet, nc, xvg"):
            table_formats(asked)
