"""Outcomes of members as one: columns that some lack, of other types, by other names; values, arrays and the rest."""

from __future__ import annotations

import numpy as np
import pytest

from himach import Column, Member, Table
from himach.runner.ensemble.join import joined, own_columns


def members(n: int, groups=(None, None, None), metadata=({}, {}, {})) -> list[Member]:
    return [Member(f"r{i}", "traj.xtc", group=groups[i], metadata=metadata[i]) for i in range(n)]


def below(*tables, **options) -> Table:
    """Return the tables of members below one another, as the outcome has it."""
    return joined("label", members(len(tables), **options), tables, None)["label"]


def same(cells, expected) -> bool:
    return type(cells) is type(expected) and repr(cells) == repr(expected) and len(cells) == len(expected)


def test_the_member_is_the_first_column():
    table = below(Table({"r": [0.5, 1.5], "g": [1.0, 2.0]}), Table({"r": [0.5], "g": [3.0]}))
    assert list(table) == ["member", "r", "g"]
    assert table["member"] == ["r0", "r0", "r1"]
    assert list(table["g"]) == [1, 2, 3]


def test_groups_and_metadata_stand_behind_it():
    metadata = ({"T": 300, "seed": 7}, {"T": 310}, {"note": "x"})
    tables = [Table({"x": [float(i)]}) for i in range(3)]
    table = below(*tables, groups=("wt", None, "mut"), metadata=metadata)
    assert list(table) == ["member", "group", "T", "seed", "note", "x"]
    assert table["group"] == ["wt", None, "mut"]
    assert (table["T"], table["seed"], table["note"]) == ([300, 310, None], [7, None, None], [None, None, "x"])
    numbers = below(*tables, metadata=({"T": 300}, {"T": 310.5}, {"T": 320}))
    assert same(numbers["T"], np.array([300, 310.5, 320]))
    assert own_columns(members(2)) == []


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (([1.5], [2.5, 3.5]), np.array([1.5, 2.5, 3.5])),
        (([1], [2, 3]), np.array([1, 2, 3])),
        (([1], [2.5]), np.array([1, 2.5])),
        (([1.5], None), np.array([1.5, np.nan])),
        (([1], None, [2.5]), np.array([1, np.nan, 2.5])),
        (([1], None), [1, None]),  # whole numbers stay whole
        (([True], [False]), np.array([True, False])),
        (([True], [2]), [True, 2]),
        (([True], None), [True, None]),
        ((["a"], ["b"]), ["a", "b"]),
        ((["a"], [1.5]), ["a", 1.5]),
        ((["a"], None), ["a", None]),
        (([], [544]), np.array([544])),  # no rows are of no type: the ion is 544, not 544.0
        (([], [True]), np.array([True])),
        (([], ["up"]), ["up"]),
        (([], None, ["up"]), [None, "up"]),
        (([], []), np.empty(0)),
        (([1.5, None], [2.5]), [1.5, None, 2.5]),
        (([2**62 + 1], [0.5]), [2**62 + 1, 0.5]),  # no float holds it
        (([1 + 2j], [1.0]), [1 + 2j, 1.0]),
    ],
)
def test_columns_of_other_types_or_that_are_not_there(cells, expected):
    tables = [
        Table({"of": np.zeros(1 if own is None else len(own)), **({} if own is None else {"x": own})}) for own in cells
    ]
    found = below(*tables)["x"]
    if isinstance(expected, list) and isinstance(found, np.ndarray):
        expected = np.array(expected)
    assert same(found, expected)


def test_types_of_arrays():
    kinds = [np.float32, np.float64]
    found = below(*(Table({"x": np.ones(2, kind)}) for kind in kinds))
    assert found["x"].dtype == np.float64
    assert below(*(Table({"x": np.ones(2, np.float32)}) for _ in range(2)))["x"].dtype == np.float32
    times = below(*(Table({"x": np.array([f"2026-01-0{day}"], "M8[D]")}) for day in (1, 2)))["x"]
    assert times.dtype == "M8[D]"
    text = Table({"x": ["up"]})
    text["x"] = np.array(["up"])  # as an analysis may put it there
    assert below(text, Table({"x": ["down"]}))["x"] == ["up", "down"]


def test_a_table_has_columns_of_these_names_itself():
    own = {"member": Column([1.5], "Å"), "group": ["x"], "T": Column([3.5], "K"), "T_2": Column([4.5], "ns")}
    table = below(Table(own), Table(own), groups=("a", "b", None), metadata=({"T": 300}, {"T": 310}, {}))
    assert list(table) == ["member", "group", "member_T", "member_2", "group_2", "T", "T_2"]
    assert table["member"] == ["r0", "r1"]
    assert table["group_2"] == ["x", "x"]
    assert (list(table["member_T"]), list(table["T"]), list(table["T_2"])) == ([300, 310], [3.5, 3.5], [4.5, 4.5])
    assert table.units == {"member_2": "Å", "T": "K", "T_2": "ns"}
    assert list(below(Table({"group": ["x"]}))) == ["member", "group"]  # where members have none


def test_units_and_level():
    first, second = Table({"x": [1.0]}), Table({"x": Column([2.0], "Å"), "y": Column([3.0], "ps")})
    second.level = 0.9
    table = below(first, second)
    assert table.units == {"x": "Å", "y": "ps"}
    assert table.level == 0.9


def test_values_become_a_table():
    found = joined("label", members(3), [{"n": 3, "d": 1.5}, {"n": 5, "d": np.float64(2.5)}, {"n": 7}], 0.95)
    assert list(found) == ["n", "n_groups", "d", "d_groups"]
    assert (found["n"]["member"], list(found["n"]["n"])) == (["r0", "r1", "r2"], [3, 5, 7])
    assert (found["d"]["member"], list(found["d"]["d"])) == (["r0", "r1"], [1.5, 2.5])
    assert (list(found["n_groups"]["mean"]), list(found["d_groups"]["mean"])) == ([5], [2])
    words = joined("label", members(2), ["folded", "unfolded"], 0.95)
    assert list(words) == ["label"]
    assert words["label"]["label"] == ["folded", "unfolded"]


def test_arrays_and_other_things_are_each_members():
    grid, other = np.zeros((2, 2)), {"any": object()}
    found = joined("label", members(2), [{"grid": grid, "more": other, "t": Table({"x": [1.0]})}, {"grid": grid}], 0.95)
    assert list(found) == ["grid-r0", "grid-r1", "more-r0", "t", "t_groups"]
    assert found["grid-r1"] is grid
    assert found["more-r0"] is other
    mixed = joined("label", members(2), [{"x": 1.5}, {"x": np.zeros(3)}], 0.95)
    assert list(mixed) == ["x-r0", "x-r1"]


def test_members_without_an_outcome_have_no_rows():
    found = joined("label", members(3), [None, Table({"x": [1.0]}), {"label": Table({"x": [2.0]})}], 0.95)
    assert found["label"]["member"] == ["r1", "r2"]
    assert list(found["label_groups"]["n"]) == [2]
    assert joined("label", members(2), [None, None], 0.95) == {}


def test_beside_each_table_stands_that_of_groups():
    tables = [Table({"k": [1, 2], "x": [float(i), 1.0]}) for i in range(3)]
    found = joined("label", members(3, groups=("a", "b", "b")), tables, 0.9)
    assert list(found) == ["label", "label_groups"]
    assert found["label_groups"]["group"] == ["a"] * 2 + ["b"] * 2 + ["b - a"] * 2
    assert found["label_groups"].level == 0.9
    assert list(joined("label", members(3), tables, None)) == ["label"]
    taken = joined("label", members(2), [{"x": 1.0, "x_groups": 2.0}] * 2, 0.9)
    assert list(taken) == ["x", "x_groups_2", "x_groups", "x_groups_groups"]
    assert list(taken["x_groups"]["x_groups"]) == [2, 2]


def test_members_tables_stay_as_they_are():
    tables = [Table({"k": [0.1, 0.2], "x": [1.0, 2.0]}), Table({"k": [0.1000001, 0.2], "x": [1.0, 2.0]})]
    before = [repr(table) + repr({name: cells.tolist() for name, cells in table.items()}) for table in tables]
    joined("label", members(2), tables, 0.95)
    assert before == [repr(table) + repr({name: cells.tolist() for name, cells in table.items()}) for table in tables]
