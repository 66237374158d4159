"""``--table``: tables of a run in other formats too, in its record, with ``--again``, and refused before a run."""

from __future__ import annotations

import json

import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, PSF
from support.commands import DATA, himach, same_files

from himach import Member, UsageError, run

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")
xarray = pytest.importorskip("xarray")


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """Return the directory of a run on two ranks with tables in all formats."""
    out = tmp_path_factory.mktemp("run") / "out"
    done = himach("run", "rmsd", *DATA, "--cache", "off", "-n", 2, "--table", "parquet,nc,xvg", "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def test_the_tables_of_a_run_hold_the_same_in_all_formats(first):
    record = json.loads((first / "run.json").read_bytes())
    assert record["table"] == ["csv", "parquet", "nc", "xvg"]
    assert record["files"] == ["rmsd.csv", "rmsd.parquet", "rmsd.nc", "rmsd.xvg", "rmsd.png"]
    written = np.loadtxt(first / "rmsd.csv", delimiter=",", skiprows=1)[:, 1]
    assert len(written) == 98
    np.testing.assert_array_equal(pandas.read_parquet(first / "rmsd.parquet")["rmsd"], written)
    np.testing.assert_array_equal(xarray.load_dataset(first / "rmsd.nc")["rmsd"], written)
    np.testing.assert_array_equal(np.loadtxt(first / "rmsd.xvg", comments=["#", "@"])[:, 1], written)
    units = record["units"]["rmsd"]
    assert pandas.read_parquet(first / "rmsd.parquet").attrs["units"] == units
    assert {name: one.attrs["units"] for name, one in xarray.load_dataset(first / "rmsd.nc").variables.items()} == units


def test_a_run_that_is_repeated_leaves_the_same_files(first, tmp_path):
    done = himach("run", "--again", first, "--cache", "off", "-n", 1, "--out", tmp_path / "again")
    assert done.returncode == 0, done.stderr
    same_files(first, tmp_path / "again")
    done = himach("run", "--again", first, "--cache", "off", "-n", 1, "--table", "csv", "--out", tmp_path / "csv")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "csv").iterdir()) == ["rmsd.csv", "rmsd.png", "run.json"]


def test_an_ensemble_has_them_too(tmp_path):
    members = [Member("a", DCD, PSF), Member("b", DCD, PSF, stop=60)]
    result = run("rmsd", ensemble=members, cache="off", out=tmp_path, table=["nc", "parquet"])
    assert {"rmsd.nc", "rmsd.parquet"} <= set(result.record["files"])
    dataset = xarray.load_dataset(tmp_path / "rmsd.nc")
    assert dict(dataset["rmsd"].sizes) == {"member": 2, "time_ps": 98}
    np.testing.assert_array_equal(dataset["rmsd"].sel(member="a")[:60], dataset["rmsd"].sel(member="b")[:60])
    assert int(dataset["rmsd"].sel(member="b").isnull().sum()) == 38
    assert dataset.equals(result.to_xarray("rmsd"))


def test_what_is_missing_is_told_before_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr("himach.output.table_files.formats.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"table 'nc' needs xarray, .* pip install 'himach\[xarray\]'"):
        run("rmsd", DCD, PSF, cache="off", out=tmp_path / "out", table="nc")
    assert not (tmp_path / "out").exists()


def test_a_format_that_is_none_is_wrong_usage(tmp_path):
    done = himach("run", "rmsd", *DATA, "--table", "csv,hdf5", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "table 'hdf5': tables are csv, parquet, nc, xvg" in done.stderr
    assert not (tmp_path / "out").exists()
