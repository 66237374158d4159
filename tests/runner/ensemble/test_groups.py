"""Means over members by group and their differences, beside `himach.uncertainty` on the members' own tables."""

import itertools

import numpy as np
import pytest
from scipy import stats

from himach import Column, Member, Table, UsageError
from himach.runner.ensemble.groups import (
    Roles,
    column_roles,
    common_places,
    group_positions,
    group_table,
)
from himach.runner.ensemble.joint_outcome import join
from himach.uncertainty import difference, holm, mean, replicas

LEVEL = 0.9
DIGITS = {"rtol": 1e-12, "atol": 1e-12}
THREE = ["a", "b", "a", None, "c", "b", "a", "b", "c", "c"]


def members_of(groups) -> list[Member]:
    return [Member(f"r{i}", "traj.xtc", group=group) for i, group in enumerate(groups)]


def curves(n: int, keys=(0.5, 1.5, 2.5), seed: int = 1) -> list[Table]:
    random = np.random.default_rng(seed)
    return [
        Table({"r": Column(list(keys), "Å", role="x"), "g": Column(random.normal(1 + i % 3, 1, len(keys)), "nm")})
        for i in range(n)
    ]


def compared(groups, tables: list[Table], level: float = LEVEL) -> Table:
    result = group_table(members_of(groups), tables, column_roles(tables), level)
    assert result is not None
    return result


def rows_of(table: Table, *keys: str) -> dict[tuple, dict[str, float]]:
    """Return mean, low, high, n and p of each row, by group, column and the row's keys."""
    figures = [name for name in ("mean", "low", "high", "n", "p") if name in table]
    names = zip(*(list(table[name]) for name in ("group", "column", *keys)), strict=True)
    numbers = zip(*(table[name].tolist() for name in figures), strict=True)
    return {name: dict(zip(figures, row, strict=True)) for name, row in zip(names, numbers, strict=True)}


def check(row: dict[str, float], values: np.ndarray) -> None:
    """A group's row is what `replicas` says of the values that members have."""
    values = values[np.isfinite(values)]
    assert row["n"] == len(values)
    estimate = replicas(values, LEVEL) if len(values) else None
    expected = [np.nan] * 3 if estimate is None else [estimate.value, estimate.low, estimate.high]
    np.testing.assert_allclose([row["mean"], row["low"], row["high"]], expected, **DIGITS)


def check_all(groups, values: np.ndarray, table: Table, *keys: str) -> None:
    """Rows are those of values (members, rows), and of their differences; p is corrected over all pairs and rows."""
    rows, columns = list(rows_of(table, *keys).items()), range(values.shape[1])
    names = list(group_positions(members_of(groups)).items())
    cells = list(itertools.product(names, columns))
    pairs = list(itertools.product(itertools.combinations(names, 2), columns))
    for ((group, members), at), (name, row) in zip(cells, rows[: len(cells)], strict=True):
        assert name[0] == group
        check(row, values[members, at])
        assert "p" not in row or np.isnan(row["p"])
    expected = []
    for (sides, at), (name, row) in zip(pairs, rows[len(cells) :], strict=True):
        assert name[0] == " - ".join(group for group, _ in reversed(sides))
        first, second = (values[members, at][np.isfinite(values[members, at])] for _, members in sides)
        assert row["n"] == len(first) + len(second)
        result = difference(first, second, LEVEL) if len(first) and len(second) else None
        figures = [] if result is None else [result.value, result.low, result.high, result.p]
        expected.append(figures or [np.nan] * 4)
    if pairs:
        mean, low, high, p = np.transpose(expected)
        figures = {"mean": mean, "low": low, "high": high, "p": holm(p)}
        for name, numbers in figures.items():
            np.testing.assert_allclose([row[name] for _, row in rows[len(cells) :]], numbers, **DIGITS)


@pytest.mark.parametrize("groups", [[None] * 5, ["a"] * 4, ["a", "a", "a", "b", "b"], THREE])
def test_curves_are_those_of_replicas_and_differences(groups):
    tables = curves(len(groups))
    table = compared(groups, tables)
    check_all(groups, np.array([one["g"] for one in tables]), table, "r")
    assert list(table)[:7] == ["group", "column", "r", "mean", "low", "high", "n"]
    assert ("p" in table) == (len(group_positions(members_of(groups))) > 1)
    assert table.units == {"r": "Å", "mean": "nm", "low": "nm", "high": "nm"}
    assert table.level == LEVEL


def test_members_that_lack_rows_or_have_nan():
    groups = ["a"] * 4 + ["b"] * 4
    values = np.random.default_rng(3).normal(size=(8, 6))
    values[0, 0] = values[1, 1] = np.nan  # one is away
    values[:3, 2] = np.nan  # of one group a single one is left
    values[:4, 3] = np.nan  # of one group none is left
    values[:, 4] = np.nan
    values[5, 5] = np.inf  # no number to take a mean with
    lacking = [
        Table({"k": Column(np.arange(6.0)[np.isfinite(row)], role="label"), "x": row[np.isfinite(row)]})
        for row in values
    ]
    with_nan = [Table({"k": Column(np.arange(6.0), role="x"), "x": row}) for row in values]
    values[5, 5] = np.nan
    check_all(groups, values, compared(groups, with_nan), "k")
    check_all(groups, np.delete(values, 4, 1), compared(groups, lacking), "k")


def curve(*places) -> Table:
    return Table({"t": Column(list(places), role="x"), "x": np.arange(float(len(places)))})


def test_shorter_axes_have_the_beginning_of_the_longest():
    groups, sizes = ["a", "a", "b", "b"], (4, 2, 4, 3)
    tables = [curve(*range(size)) for size in sizes]
    values = np.full((4, 4), np.nan)
    random = np.random.default_rng(4)
    for row, of in zip(values, tables, strict=True):
        row[: of.rows] = of["x"] = random.normal(size=of.rows)
    check_all(groups, values, compared(groups, tables), "t")


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        (
            [curve(0, 1, 2), curve(0, 0.5, 1)],
            r"members' t differ \(3 from 0 to 2; 3 from 0 to 1\): give all .* the same",
        ),
        ([curve(0, 1, 2), curve(0, 2)], r"members' t differ \(3 from 0 to 2; 2 from 0 to 2\)"),
        ([curve(0.2), curve(0.4)], r"members' t differ \(1 from 0.2 to 0.2; 1 from 0.4 to 0.4\)"),
        (
            [Table({"x": [0.1, 0.2]}), Table({"x": [0.1]})],
            "members have different numbers of rows, and no column tells these apart",
        ),
        ([Table({"way": ["up", "up"], "x": [0.1, 0.2]})] * 2, "rows of a member have the same way: say role='label'"),
    ],
)
def test_members_whose_rows_differ_have_no_table_and_are_named(tables, why):
    with pytest.raises(UsageError, match=why):
        compared([None, None], tables)
    with pytest.warns(UserWarning, match=f"there is no part_groups: {why}"):
        outcome = join("label", members_of("ab"), [{"part": table} for table in tables], LEVEL)
    assert list(outcome) == ["part"]


def test_lags_that_files_round_are_one_row():
    lags = np.arange(200) * 0.2
    tables = [Table({"tau_ps": Column(lags * stretch, role="x"), "x": lags}) for stretch in (1, 1 + 3e-7, 1 - 3e-7)]
    assert list(compared([None] * 3, tables)["n"]) == [3] * 200
    assert list(tables[1]["tau_ps"]) == list(lags * (1 + 3e-7))  # the members' own are as they were
    apart = common_places([np.arange(3) * 0.12, np.arange(3) * 0.121])
    assert len(np.unique(np.concatenate(apart))) == 5
    assert [list(axis) for axis in common_places([[1.0], [1.0000001], [1.1]])] == [[1.0], [1.0], [1.1]]


def test_keys_that_are_texts_and_several():
    groups = ["a"] * 3 + ["b"] * 3
    random = np.random.default_rng(5)
    rows = [("shut", 2), ("shut", 1), ("open", 2)]
    tables = [
        Table(
            {"state": [s for s, _ in rows], "site": Column([i for _, i in rows], role="label"), "p": random.random(3)}
        )
        for _ in range(6)
    ]
    table = compared(groups, tables)
    check_all(groups, np.array([one["p"] for one in tables]), table, "state", "site")
    assert (table["state"][:3], list(table["site"][:3])) == (["shut", "shut", "open"], [2, 1, 2])
    rest = [Table({"state": [f"only {i}"], "site": [i], "p": [1.0]}) for i in range(2)]
    assert group_table(members_of("ab"), rest, Roles(False, ["state", "site"], ["p"]), LEVEL) is None


def test_keys_of_any_name():
    tables = [Table({"n": Column([1, 2], role="label"), "mean": ["x", "y"], "g": [0.1 * i, 0.2]}) for i in range(3)]
    table = compared([None] * 3, tables)
    assert list(table) == ["group", "column", "n_2", "mean_2", "mean", "low", "high", "n"]
    assert (list(table["n_2"]), table["mean_2"], list(table["n"])) == ([1, 2], ["x", "y"], [3, 3])


def test_rows_without_keys_go_by_their_number():
    tables = [Table({"x": Column(np.arange(n) + 0.5, "Å")}) for n in (3, 3, 3)]
    table = compared([None] * 3, tables)
    assert (list(table["row"]), list(table["n"])) == ([0, 1, 2], [3, 3, 3])


def test_tables_in_time_are_compared_by_their_means():
    groups = ["a", "a", "a", "b", "b", "b"]
    random = np.random.default_rng(6)
    series = [random.normal(size=40 + 5 * i) for i in range(6)]
    tables = [
        Table({"time_ps": Column(np.arange(len(one)), "ps"), "x": Column(one, "Å"), "n": np.arange(len(one))})
        for one in series
    ]
    tables[0]["x"][3] = np.nan
    table = compared(groups, tables)
    assert table["column"] == ["x"] * 3 + ["n"] * 3
    assert table.units == {}  # of two figures only one has a unit
    for name in ("x", "n"):
        own = {at: cells[table["column"].index(name) :][:3] for at, cells in table.items()}
        values = np.array([[np.nanmean(one[name])] for one in tables])
        check_all(groups, values, Table(own))


def test_means_that_tables_bring_count_as_they_are():
    series = [np.random.default_rng(i).normal(size=200) for i in range(4)]
    tables = [Table({"time_ps": np.arange(200.0), "x": one, "y": one}) for one in series]
    for one, values in zip(tables, series, strict=True):
        one.means["x"] = mean(values, start=100)  # the others were not equilibrated
    table = compared(["a", "a", "b", "b"], tables)
    assert set(table["column"]) == {"x"}
    check_all(["a", "a", "b", "b"], np.array([[one[100:].mean()] for one in series]), table)


def test_what_is_the_same_in_all_members_is_no_test():
    groups = ["a"] * 3 + ["b"] * 3
    x = [0.1, 0.2, 0.3, 1.1, 1.2, 1.3]
    tables = [Table({"r": Column([1.0, 2.0, 3.0], role="x"), "g": [0.0, 0.0, value]}) for value in x]
    row = rows_of(compared(groups, tables), "r")["b - a", "g", 3.0]
    assert row["p"] == pytest.approx(stats.ttest_ind(x[:3], x[3:], equal_var=False).pvalue)
    nothing = rows_of(compared(groups, tables), "r")["b - a", "g", 1.0]
    assert (nothing["mean"], nothing["low"], nothing["high"]) == (0, 0, 0)
    assert np.isnan(nothing["p"])


def test_members_of_no_group_have_no_part():
    tables = curves(5)
    tables[4] = Table({"r": [7.5, 8.5], "g": [1.0, 2.0]})
    with_one = compared(["a", "a", "b", "b", None], tables)
    assert repr(with_one) == repr(compared(["a", "a", "b", "b"], tables[:4]))
    assert 7.5 not in with_one["r"]


def test_limits_of_a_share_are_shares():
    tables = [Table({"part": Column([part], within=(0, 1)), "free": Column([part])}) for part in (0.05, 0.4, 1.0)]
    result = compared([None] * 3, tables)
    columns = (result[name] for name in ("column", "low", "high"))
    limits = {name: (low, high) for name, low, high in zip(*columns, strict=True)}
    assert limits["part"] == (0, 1)
    assert limits["free"][0] < 0 and limits["free"][1] > 1


@pytest.mark.parametrize("absent", [None, 0, 2.5])
def test_a_row_that_a_member_lacks_is_what_the_column_says(absent):
    tables = [
        Table({"bond": list(bonds), "part": Column(list(parts), absent=absent)})
        for bonds, parts in (("ab", [0.5, 0.25]), ("b", [0.75]), ("", np.empty(0)))
    ]
    result = rows_of(compared([None] * 3, tables), "bond")
    missing = [] if absent is None else [absent]
    check(result["all", "part", "a"], np.array([0.5, *missing, *missing]))
    check(result["all", "part", "b"], np.array([0.25, 0.75, *missing]))
