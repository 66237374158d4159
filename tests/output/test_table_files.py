"""Tables in other formats: `TableFormatTests`, which the tests of each inherit, and datasets of xarray."""

import csv
import datetime
import io
import re
import subprocess
import sys
from typing import Any, ClassVar

import MDAnalysis as mda
import numpy as np
import pandas as pd
import pytest
from scipy.io import netcdf_file
from support import needs
from support.sample_runs import Drawn, make_record

from himach.errors import UsageError
from himach.output.directory import write_outcome
from himach.output.file_names import table_formats
from himach.output.outcome_files import content
from himach.output.table import Column, Table
from himach.output.table_files import table_content
from himach.result import Result

NUMBER_TYPES = ["?", "i1", "i2", "u2", "i8", "u8", "f2", "f4", "f8", "g", ">f8"]
OTHERS = ["c8", "c16", "M8[s]", "M8[D]", "m8[ns]", "U3"]


class TableFormatTests:
    """Columns come back as they were, or as texts; what a format has not is left out or refused."""

    kind = ""
    #: Whether columns that are no numbers are written.
    has_texts = True
    #: Types in which numbers are read, where they are not those of the table; None: all are texts, or of one type.
    types: ClassVar[dict[str, str] | None] = {}
    #: What is read of None in columns of floats, integers, truths and texts.
    absent: tuple[Any, ...] = (None, None, None, None)

    def write(self, table: Table) -> bytes:
        return table_content(table, "table", self.kind)

    def read(self, content: bytes) -> dict[str, Any]:
        """Return the cells of each column."""
        raise NotImplementedError

    def read_units(self, table: Table) -> dict[str, str]:
        """Return the units that the file of a table tells."""
        raise NotImplementedError

    def check_texts(self, column: Any, texts: list[str]) -> None:
        """A column is read as these texts, or left out."""
        columns = self.read(self.write(Table({"x": np.arange(len(texts)), "t": column})))
        assert set(columns) == ({"x", "t"} if self.has_texts else {"x"})
        assert not self.has_texts or list(columns["t"]) == texts

    @pytest.mark.parametrize("dtype", NUMBER_TYPES)
    def test_numbers_of_every_type_come_back(self, dtype):
        column = np.array([0, 1]).astype(dtype)
        cells = np.array(self.read(self.write(Table({"n": [4, 5], "x": column})))["x"])
        np.testing.assert_array_equal(cells.astype(dtype), column)
        assert self.types is None or cells.dtype == self.types.get(dtype, dtype)

    @pytest.mark.parametrize("dtype", OTHERS)
    def test_columns_of_other_types_come_back_or_are_left_out(self, dtype):
        column = np.array([0, 1]).astype(dtype)
        if column.dtype.kind == "c" and self.types is not None:
            self.check_texts(column, ["0j", "(1+0j)"])
            return
        columns = self.read(self.write(Table({"x": [0.0, 1.0], "t": column})))
        assert ("t" in columns) == self.has_texts
        if self.has_texts:
            np.testing.assert_array_equal(np.array(columns["t"]).astype(dtype), column)

    def test_every_digit_of_a_number_comes_back(self):
        numbers = [0.1 + 0.2, 1e-300, -1 / 3, np.nan, np.inf, -np.inf, 2.0**53 + 2]
        columns = self.read(self.write(Table({"x": np.arange(7), "number": numbers})))
        np.testing.assert_array_equal(np.array(columns["number"]).astype(float), numbers)

    def test_texts_come_back(self):
        texts = ["é", "", "b,c", 'd"', "e\r\nf", "None", "3"]
        self.check_texts(texts, texts)
        self.check_texts(["no utf-8 \udc80", "b"], [r"no utf-8 \udc80", "b"])

    def test_what_is_absent_is_told(self):
        columns = {"f": [0.5, None], "i": [1, None], "b": [True, None], "t": ["a", None]}
        cells = self.read(self.write(Table({"x": [0, 1], **columns})))
        assert [repr(cells[name][1]) for name in columns if name in cells] == list(map(repr, self.absent))

    def test_objects_are_texts(self):
        date = datetime.date(2024, 1, 2)
        cells = [(np.int64(1), "a"), {3, 1, 2}, 2**70, date, b"x", np.arange(2000), np.float64(0.1)]
        texts = ["(1, 'a')", "[1, 2, 3]", str(2**70), "2024-01-02", "b'x'", str(list(range(2000))), "0.1"]
        self.check_texts(cells, texts)
        self.check_texts([2**70, 1], [str(2**70), "1"])

    def test_names_of_columns_come_back(self):
        names = ["a/b", "a_b", "%", "float", "1 - 2", "row", "é", "b,c", "x (1)"]
        columns = self.read(self.write(Table({name: [number] for number, name in enumerate(names)})))
        assert [(name, int(cells[0])) for name, cells in columns.items()] == [
            *zip(names, range(len(names)), strict=True)
        ]

    def test_a_table_without_rows_has_its_columns(self):
        columns = self.read(self.write(Table({"x": np.empty(0), "n": np.empty(0, np.int64)})))
        assert {name: list(cells) for name, cells in columns.items()} == {"x": [], "n": []}

    def test_units_are_told(self):
        table = Table({"time_ps": Column([0.0, 0.5], "ps"), "rmsd": Column([1, 2], "Å"), "n": [1, 2]})
        assert self.read_units(table) == {"time_ps": "ps", "rmsd": "Å"}

    def test_equal_tables_are_equal_bytes(self):
        table, equal, other = (Table({"x": [1.0, 2.0], "y": Column([3, last], "nm")}) for last in (4, 4, 5))
        assert self.write(table) == self.write(equal) != self.write(other)
        assert str(datetime.date.today().year).encode() not in self.write(table)


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


def test_integers_of_64_bits_and_what_is_absent_come_back_from_parquet():
    columns = {"i": [-(2**63), 2**63 - 1, None], "b": [True, None, None], "t": [None, None, None]}
    arrow = pyarrow.read_table(io.BytesIO(table_content(Table(columns), "table", "parquet")))
    assert arrow.to_pydict() == columns
    assert list(map(str, arrow.schema.types)) == ["int64", "bool", "string"]  # of whole columns, so that files fit


def read_netcdf(table):
    return xarray.load_dataset(io.BytesIO(table_content(table, "table", "nc")))


def test_integers_beyond_32_bits_are_floats_or_texts_in_netcdf():
    dataset = read_netcdf(Table({"a": [2**31 - 1], "b": [2**40], "c": [2**53 + 1]}))
    assert [dataset[name].to_numpy().tolist()[0] for name in "abc"] == [2**31 - 1, 2.0**40, str(2**53 + 1)]
    assert dataset["b"].dtype == np.float64


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
    table = Table({"r": Column([0.1], "Å"), "g": Column([1.0], "nm"), "g_low": Column([0.5], "nm")})
    lines = table_content(table, "rdf", "xvg").decode().splitlines()
    assert '@    yaxis  label "(nm)"' in lines
    assert '@ s1 legend "g_low"' in lines


def test_an_xvg_of_residues_is_over_their_numbers(tmp_path):
    table = Table({"residue": ["ALA3", "GLY4"], "rmsf": Column([0.5, 1.5], "Å"), "resid": [3, 4], "resname": [*"ab"]})
    text = written_xvg(tmp_path, table).read_text()
    assert '@    xaxis  label "resid"' in text
    assert text.splitlines()[-2:] == ["3 0.5", "4 1.5"]


@pytest.mark.parametrize(
    "table",
    [
        Table({"residue": ["ALA 1"], "n": [1.0]}),
        Table({"member": ["a", "b"], "d": [1.0, 2.0]}),
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
    for requested in ("hdf5", "", ["csv", 3]):
        with pytest.raises(UsageError, match=r"table .*: tables are csv, parquet, nc, xvg"):
            table_formats(requested)


TENS = np.array([0.0, 10.0, 20.0, 30.0])


def test_the_first_column_is_the_dimension_if_it_ascends():
    curve = Table({"r": Column([0.1, 0.2], "Å"), "g": [1.0, 2.0], "g_low": [0.5, 1.5], "g_high": [1.5, 2.5]})
    curve.level = 0.9
    dataset = curve.to_xarray()
    assert dataset["g"].dims == dataset["g_low"].dims == ("r",)
    assert dataset["g"].sel(r=0.2) == 2.0
    assert dataset["r"].attrs == {"units": "Å"}
    assert dataset["g"].attrs == {}
    assert dataset.attrs == {"level": 0.9}
    assert list(dataset.data_vars) == ["g", "g_low", "g_high"]


@pytest.mark.parametrize(
    ("columns", "dims"),
    [
        ({"time_ps": TENS, "x": TENS}, {"time_ps": 4}),
        ({"time_ps": TENS[::-1], "x": TENS}, {"time_ps": 4}),
        ({"time_ps": TENS[:1], "x": [1]}, {"time_ps": 1}),
        ({"time_ps": np.empty(0), "x": np.empty(0)}, {"time_ps": 0}),
        ({"time_ps": [0.0, 0.0, 1.0], "x": [1, 2, 3]}, {"row": 3}),
        ({"time_ps": [0.0, 1.0, 0.5], "x": [1, 2, 3]}, {"row": 3}),
        ({"r": [0.0, np.nan, 1.0], "x": [1, 2, 3]}, {"row": 3}),
        ({"bottom": [-1.0], "top": [1.0]}, {"row": 1}),
        ({"ion": [1, 2, 3], "x": [1, 2, 3]}, {"row": 3}),
        ({"residue": ["ALA 1", None], "x": [1, 2]}, {"row": 2}),
        ({}, {}),
    ],
)
def test_what_does_not_ascend_is_counted_in_rows(columns, dims):
    dataset = Table(columns).to_xarray()
    assert dict(dataset.sizes) == dims
    for name, cells in columns.items():
        np.testing.assert_array_equal(dataset[name].isnull(), [cell is None or cell != cell for cell in cells])
        if "row" not in dims or name in ("time_ps", "frame"):
            assert (name in dataset.coords) == (name == "time_ps")


def test_members_are_coordinates_of_rows_and_become_a_dimension():
    table = Table({"member": [*"aaab"], "group": [*"uuuv"], "time_ps": [0.0, 10.0, 20.0, 10.0], "x": np.arange(4)})
    dataset = table.to_xarray()
    assert dict(dataset.sizes) == {"row": 4}
    assert set(dataset.coords) == {"member", "group", "time_ps"}
    grid = dataset.set_index(row=["member", "time_ps"]).unstack("row")
    np.testing.assert_array_equal(grid["x"], [[0, 1, 2], [np.nan, 3, np.nan]])


def test_a_result_is_a_dataset_by_the_name_of_a_table():
    outcome = {"x": Table({"time_ps": Column(TENS, "ps"), "x": TENS}), "t": {"a": [1.5]}, "n": 3}
    result = Result([Drawn()], [outcome], make_record(Drawn()))
    assert dict(result.to_xarray("x").sizes) == {"time_ps": 4}
    assert result.to_xarray("x")["time_ps"].attrs == {"units": "ps"}
    with pytest.raises(UsageError, match="to_xarray: the outcome has no one table; its tables are 'x', 't'"):
        result.to_xarray()
    with pytest.raises(UsageError, match="to_xarray: there is no table 'n' in the outcome"):
        result.to_xarray("n")


def test_without_xarray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(UsageError, match=r"to_xarray\(\) needs xarray, .*: pip install 'himach\[xarray\]'"):
        Table({"x": [1]}).to_xarray()
