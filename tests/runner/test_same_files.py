"""Files of a run: the same bytes on any ranks, tables in other formats."""

import json

import numpy as np
import pytest
from runner.passes import EACH_TIME, PASSES
from support.commands import DATA, himach, same_files

from himach.examples import BUILTINS


def test_every_built_in_takes_part():
    assert {word for name in EACH_TIME for word in PASSES[name]} >= set(BUILTINS)


@pytest.mark.slow
@pytest.mark.nightly(but=EACH_TIME)
@pytest.mark.parametrize("name", PASSES)
def test_built_ins_leave_the_same_bytes_on_one_rank_and_on_three(name, tmp_path):
    # Three ranks read the origin and keep what they read; one reads what was kept.
    for ranks in (3, 1):
        out = tmp_path / str(ranks)
        himach("run", *PASSES[name], "-n", ranks, "--out", out, "--quiet", code=0)
        record = json.loads((out / "run.json").read_text())
        assert record["ranks"] == ranks
        assert (record["assignment"]["residue"] == 0) == (ranks == 1), record["assignment"]
    same_files(tmp_path / "1", tmp_path / "3")


def test_a_run_leaves_its_tables_in_all_formats(tmp_path):
    pytest.importorskip("pyarrow")
    xarray = pytest.importorskip("xarray")
    himach("run", "rmsd", *DATA, "--cache", "off", "-n", 2, "--table", "parquet,nc,xvg", "--out", tmp_path, code=0)
    record = json.loads((tmp_path / "run.json").read_bytes())
    assert record["table"] == ["csv", "parquet", "nc", "xvg"]
    assert record["files"] == ["rmsd.csv", "rmsd.parquet", "rmsd.nc", "rmsd.xvg", "rmsd.png"]
    written = np.loadtxt(tmp_path / "rmsd.csv", delimiter=",", skiprows=1)[:, 1]
    dataset = xarray.load_dataset(tmp_path / "rmsd.nc")
    np.testing.assert_array_equal(dataset["rmsd"], written)
    assert {name: column.attrs["units"] for name, column in dataset.variables.items()} == record["units"]["rmsd"]
