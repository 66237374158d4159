"""The folder of a run, read again: what was written is what is read, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, PSF

import himach
from himach.errors import UsageError
from himach.examples import load
from himach.output.formats import content
from himach.output.table import Column, Table
from himach.report.csv_table import read_table
from himach.report.run_folder import read_folder


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> tuple[Path, himach.Result]:
    out = tmp_path_factory.mktemp("two") / "out"
    analyses = [load("rmsd")(), load("radius-of-gyration")()]
    return out, himach.run(analyses, DCD, PSF, stop=30, out=out)


def test_tables_are_those_of_the_result_with_units_and_level(two):
    out, result = two
    folder = read_folder(out)
    assert [analysis.label for analysis in folder.analyses] == ["rmsd", "radius-of-gyration"]
    assert set(folder.tables) == {name for name in result if isinstance(result[name], Table)}
    for name in folder.tables:
        read, was = folder.table(name), result[name]
        assert list(read) == list(was)
        for column in was:
            np.testing.assert_allclose(read[column], was[column], rtol=1e-6)
        assert (read.units, read.level) == (was.units, was.level)
        assert folder.uncertainty(name)["level"] == 0.95


def test_figures_and_tables_are_of_their_analyses(two):
    out, _ = two
    rmsd, gyration = read_folder(out).analyses
    assert (rmsd.tables, gyration.tables) == (("rmsd/rmsd",), ("radius-of-gyration/rg",))
    assert rmsd.figures == ({".png": "rmsd/rmsd.png"},)
    assert rmsd.entry["parameters"]["selection"] == "protein and backbone"


def test_files_that_are_gone_are_told_and_those_elsewhere_are_not_read(two, tmp_path):
    out, _ = two
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "link.csv").symlink_to(secret)
    record = json.loads((out / "run.json").read_text())
    record["files"] = ["../secret.csv", str(secret), "link.csv", "rmsd/rmsd.csv", 7]
    (folder / "run.json").write_text(json.dumps(record))
    read = read_folder(folder)
    assert read.files == {}
    assert read.missing == ("../secret.csv", str(secret), "link.csv", "rmsd/rmsd.csv", "7")


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (None, "no folder of a run: there is no run.json"),
        ("{", "not JSON"),
        ("[]", "names no analyses"),
        ('{"himach": "0.1", "analyses": [{"name": 3}]}', "names no analyses"),
    ],
)
def test_what_is_no_folder_of_a_run_is_refused(tmp_path, record, said):
    if record is not None:
        (tmp_path / "run.json").write_text(record)
    with pytest.raises(UsageError, match=said):
        read_folder(tmp_path)


def test_a_table_reads_as_it_was_written(tmp_path):
    table = Table(
        {
            "time_ps": Column([0.1, 0.30000000000000004], "ps"),
            "d": Column([np.nan, -1e-300], "Å"),
            "n": [1, 2],
            "who": ['a,b\n"c"', None],
            "maybe": [None, 2.5],
            "flag": [True, False],
        }
    )
    (tmp_path / "t.csv").write_bytes(content(table, units=True))
    read = read_table(tmp_path / "t.csv", table.units)
    assert list(read) == list(table)
    assert read.units == table.units
    assert read["n"].dtype == np.int64
    np.testing.assert_array_equal(read["d"], table["d"])
    np.testing.assert_array_equal(read["maybe"], [np.nan, 2.5])
    assert (read["who"], read["flag"]) == (['a,b\n"c"', None], ["True", "False"])


def test_a_table_without_rows_and_one_of_one_empty_cell(tmp_path):
    for columns in ({"a": [], "b": []}, {"a": [None]}):
        (tmp_path / "t.csv").write_bytes(content(Table(columns)))
        read = read_table(tmp_path / "t.csv")
        assert (list(read), read.rows) == (list(columns), len(columns["a"]))


def test_what_is_no_table_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1\n")
    with pytest.raises(UsageError, match="row 2 has not as many cells"):
        read_table(tmp_path / "t.csv")
