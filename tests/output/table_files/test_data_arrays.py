"""Tables as datasets of xarray: dimensions, coordinates, units, and the members of an ensemble."""

import sys

import numpy as np
import pytest
from support.sample_runs import Drawn, make_record

from himach.errors import UsageError
from himach.output.table import Column, Table
from himach.output.table_files.data_arrays import to_xarray
from himach.result import Result

xarray = pytest.importorskip("xarray")

TIMES = np.array([0.0, 10.0, 20.0, 30.0])


def members(times, names="ab", **columns):
    """Return a table of members, each with its times."""
    whose = [name for name, time in zip(names, times, strict=True) for _ in time]
    return Table(
        {"member": whose, **columns, "time_ps": Column(np.concatenate(times), "ps"), "x": np.arange(len(whose))}
    )


def test_the_first_column_is_the_dimension_if_it_ascends():
    curve = Table({"r": Column([0.1, 0.2], "Å"), "g": [1.0, 2.0], "g_low": [0.5, 1.5], "g_high": [1.5, 2.5]})
    curve.level = 0.9
    dataset = to_xarray(curve)
    assert dataset["g"].dims == dataset["g_low"].dims == ("r",)
    assert dataset["g"].sel(r=0.2) == 2.0
    assert dataset["r"].attrs == {"units": "Å"}
    assert dataset["g"].attrs == {}
    assert dataset.attrs == {"level": 0.9}
    assert list(dataset.data_vars) == ["g", "g_low", "g_high"]


@pytest.mark.parametrize(
    ("columns", "dims"),
    [
        ({"time_ps": TIMES, "x": TIMES}, {"time_ps": 4}),
        ({"time_ps": TIMES[::-1], "x": TIMES}, {"time_ps": 4}),
        ({"time_ps": TIMES[:1], "x": [1]}, {"time_ps": 1}),
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
    dataset = to_xarray(Table(columns))
    assert dict(dataset.sizes) == dims
    for name, cells in columns.items():
        np.testing.assert_array_equal(dataset[name].isnull(), [cell is None or cell != cell for cell in cells])
        if "row" not in dims or name in ("time_ps", "frame"):
            assert (name in dataset.coords) == (name == "time_ps")


def test_members_are_a_dimension_and_what_they_lack_is_nan():
    table = members([TIMES, TIMES[:3] + 1e-6], group=["u"] * 4 + ["v"] * 3, kelvin=[300.0] * 4 + [310.0] * 3)
    dataset = to_xarray(table)
    assert dict(dataset.sizes) == {"member": 2, "time_ps": 4}
    np.testing.assert_array_equal(dataset["time_ps"], TIMES)
    np.testing.assert_array_equal(dataset["x"], [[0, 1, 2, 3], [4, 5, 6, np.nan]])
    assert dataset["x"].mean("member").sel(time_ps=20) == 4
    assert dataset["group"].dims == dataset["kelvin"].dims == ("member",)
    assert dataset["kelvin"].sel(member="b") == 310
    assert {"member", "group", "kelvin", "time_ps"} == set(dataset.coords)


def test_members_on_one_grid_keep_their_types():
    dataset = to_xarray(members([TIMES, TIMES]))
    assert dataset["x"].dtype == np.int64
    np.testing.assert_array_equal(dataset["x"], np.arange(8).reshape(2, 4))
    backwards = to_xarray(members([TIMES[::-1], TIMES[::-1]]))
    np.testing.assert_array_equal(backwards["time_ps"], TIMES[::-1])
    np.testing.assert_array_equal(backwards["x"], np.arange(8).reshape(2, 4))


def test_members_with_little_in_common_are_a_coordinate_of_rows():
    dataset = to_xarray(members([TIMES, TIMES + 3, TIMES + 5], "abc"))
    assert dict(dataset.sizes) == {"row": 12}
    assert {"member", "time_ps"} == set(dataset.coords)
    assert list(dataset["member"].to_numpy()) == [*"aaaabbbbcccc"]


def test_one_row_a_member_is_of_members_alone():
    dataset = to_xarray(Table({"member": ["a", "b"], "group": ["u", "v"], "d": Column([1.0, 2.0], "cm²/s")}))
    assert dict(dataset.sizes) == {"member": 2}
    assert dataset["d"].sel(member="b") == 2
    assert set(dataset.coords) == {"member", "group"}


def test_events_of_members_are_rows():
    table = Table({"member": ["a", "a", "b"], "ion": [3, 1, 3], "entered_ps": [1.0, 2.0, 1.0]})
    assert dict(to_xarray(table).sizes) == {"row": 3}


def test_a_result_is_a_dataset_by_the_name_of_a_table():
    outcome = {"x": Table({"time_ps": Column(TIMES, "ps"), "x": TIMES}), "t": {"a": [1.5]}, "n": 3}
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
        to_xarray(Table({"x": [1]}))
