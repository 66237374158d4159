"""Tables: what counts as one, columns, how they look, and how sure they are."""

import pickle
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

import himach
from himach import uncertainty
from himach.engine import Results
from himach.output.record import Record
from himach.output.summary import certainty, mean_lines
from himach.output.table import Column, Table, as_table, default_outcome
from himach.output.text import table_html, table_text
from himach.runner.estimates import add_estimates


def test_numbers_become_arrays_and_objects_stay_lists():
    columns = {"i": [1, 2], "f": [1, 2.5], "b": [True, False], "s": ["a", "b"], "mixed": [1, None], "flag": [1, True]}
    table = Table(columns)
    types = {"i": np.int64, "f": np.float64, "b": np.bool_, "s": list, "mixed": list, "flag": list}
    assert {name: getattr(cells, "dtype", list) for name, cells in table.items()} == types
    assert (table.rows, len(table), isinstance(table, dict)) == (2, 6, True)


@pytest.mark.parametrize("cells", [[2**63, -1], [2**70], [2**60, 0.5]])
def test_integers_never_lose_digits(cells):
    assert list(Table({"n": cells})["n"]) == cells


def test_masked_cells_are_missing():
    table = Table({"f": np.ma.masked_equal([1.0, 2.0], 2.0), "i": np.ma.masked_equal([1, 2], 2)})
    assert np.isnan(table["f"][1])
    assert table["i"] == [1, None]


@pytest.mark.parametrize(
    ("columns", "word"),
    [
        ({"a": 5}, "'a'"),
        ({"a": "text"}, "'a'"),
        ({"a": np.zeros((2, 2))}, r"\(2, 2\)"),
        ({"a": [1], "b": [1, 2]}, "'b': 2"),
    ],
)
def test_what_is_no_table_is_refused_by_name(columns, word):
    with pytest.raises(himach.UsageError, match=word):
        Table(columns)


@pytest.mark.parametrize(
    "value",
    [
        {}, {"a": [1], "b": [1, 2]}, {"a": "text"}, {"a": [1], "b": 2}, {"a": [[1, 2], [3, 4]]},
        {"a": np.zeros((2, 2))}, {"a": {"b": [1]}}, np.zeros(3), np.zeros((2, 2), dtype=[("a", "f8")]),
        np.zeros(2, dtype=[("a", "f8", 3)]), [1, 2], "text", None,
    ],
)  # fmt: skip
def test_other_things_are_no_tables(value):
    assert as_table(value) is None


def test_dicts_structured_arrays_and_dataframes_are_tables():
    expected = {"n": [1, 2], "x": [0.5, 1.5], "s": ["a", "b"]}
    structured = np.array([(1, 0.5, b"a"), (2, 1.5, b"b")], dtype=[("n", "i4"), ("x", "f8"), ("s", "S4")])
    for value in (Table(expected), expected, structured, pd.DataFrame(expected), structured.view(np.recarray)):
        table = as_table(value)
        assert isinstance(table, Table)
        assert {name: list(cells) for name, cells in table.items()} == expected


def test_an_index_that_says_something_is_a_column():
    frame = pd.DataFrame({"ion": ["K", "K", "NA"], "x": [1.0, 2.0, 3.0]})
    assert list(as_table(frame)) == ["ion", "x"]
    grouped = as_table(frame.groupby("ion").agg(["mean", "max"]))
    assert list(grouped) == ["ion", "x mean", "x max"]
    assert as_table(frame.groupby("ion")["x"].mean())["x"].tolist() == [1.5, 3.0]


KEYS = {"uneven": [4, 7, 20], "even": [10, 20, 30], "from 1": [1, 2, 3], "texts": ["a", "b", "c"]}


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_keys_of_results_stay(keys):
    results = Results(zip(keys, [0.5, 1.5, 2.5], strict=True))
    records = Results(zip(keys, [{"x": 1, "y": 2.0}] * 3, strict=True))
    series, frame = pd.Series(results), pd.DataFrame.from_dict(records, orient="index")
    assert isinstance(results, dict) and pd.DataFrame({"n": results})["n"].tolist() == [0.5, 1.5, 2.5]
    for table, columns in [
        (as_table(series), {"index": keys, "value": [0.5, 1.5, 2.5]}),
        (as_table(series.rename("g")), {"index": keys, "g": [0.5, 1.5, 2.5]}),
        (as_table(series.rename_axis("ion")), {"ion": keys, "value": [0.5, 1.5, 2.5]}),
        (as_table(frame), {"index": keys, "x": [1, 1, 1], "y": [2.0] * 3}),
        (as_table(pd.DataFrame(records).T), {"index": keys, "x": [1, 1, 1], "y": [2.0] * 3}),
        (as_table(pd.DataFrame({"n": results})), {"index": keys, "n": [0.5, 1.5, 2.5]}),
        (Table({"n": series, "m": 2 * series}), {"index": keys, "n": [0.5, 1.5, 2.5], "m": [1.0, 3.0, 5.0]}),
        (as_table({"n": series, "m": [1, 2, 3]}), {"index": keys, "n": [0.5, 1.5, 2.5], "m": [1, 2, 3]}),
    ]:
        assert {name: list(cells) for name, cells in table.items()} == columns


def test_series_are_put_beside_one_another_by_their_keys():
    table = Table({"a": pd.Series({1: 0.5, 2: 1.5}), "b": pd.Series({2: 3.0, 5: 4.0})})
    assert table["index"].tolist() == [1, 2, 5]
    np.testing.assert_array_equal(table["a"], [0.5, 1.5, np.nan])
    np.testing.assert_array_equal(table["b"], [np.nan, 3, 4])
    with pytest.raises(himach.UsageError, match="cannot be put beside one another"):
        Table({"a": pd.Series({1: 0.5, 2: 1.5}), "b": [1, 2, 3]})


def test_row_numbers_without_a_name_go():
    for index in (None, [0, 1], pd.RangeIndex(2), np.array([0, 1], dtype=np.uint8)):
        assert list(as_table(pd.Series([5, 6], index=index))) == ["value"]
    for index in (pd.RangeIndex(5, 7), pd.RangeIndex(2, name="key"), [1, 0], [0.0, 1.0], [True, False]):
        assert len(as_table(pd.Series([5, 6], index=index))) == 2


def test_columns_of_one_name_are_both_kept():
    frame = pd.DataFrame([[1, 2]], columns=["a", "a"])
    assert {name: cells.tolist() for name, cells in as_table(frame).items()} == {"a": [1], "a_2": [2]}


def test_the_default_outcome_has_key_and_result():
    table = default_outcome({1: 0.5, 2: 1.5})
    assert table["key"].dtype == np.int64
    assert table["result"].dtype == np.float64
    mixed = default_outcome({"a": 1, (1, 2): [3]})
    assert mixed["key"] == ["a", (1, 2)]
    assert mixed["result"] == [1, [3]]
    assert default_outcome({}).rows == 0


def test_a_table_prints_itself():
    table = Table(
        {"time_ps": [0.0, 10.0, 20.0], "n": [5, 50, 500], "x": [1.0, 0.25, 0.125], "who": ["K", None, "NA\n"]}
    )
    assert repr(table).splitlines() == [
        "time_ps    n      x  who",
        "-------  ---  -----  ----",
        "    0.0    5  1.000  K",
        "   10.0   50  0.250",
        "   20.0  500  0.125  NA\\n",
        "[3 rows]",
    ]


@pytest.mark.parametrize(
    ("cells", "shown"),
    [
        ([1.0, np.nan], ["1.0", "nan"]),
        ([1e-9, 1.5], ["1.0e-09", "1.5"]),
        ([0.0, 2e-9, 1.5e-5], ["0.0e+00", "2.0e-09", "1.5e-05"]),
        ([1.0, 2.5e7], ["1.0e+00", "2.5e+07"]),
        ([1234567.0, 0.5], ["1234567.0", "0.5"]),
        ([1 / 3, 200.0], ["0.333333", "200.000000"]),
        ([-np.inf, 0.0], ["-inf", "0.0"]),
        ([np.nan], ["nan"]),
    ],
)
def test_floats_of_a_column_are_shown_in_one_precision(cells, shown):
    lines = table_text(Table({"x": cells})).splitlines()[2:-1]
    assert [line.strip() for line in lines] == shown
    assert len({len(line) for line in lines}) == 1


def test_long_and_wide_tables_are_shortened():
    lines = table_text(Table({f"column{i}": range(1000) for i in range(30)}), width=60).splitlines()
    assert len(lines) == 2 + 6 + 1 + 6 + 2
    assert max(map(len, lines[:-2])) <= 60
    assert lines[-2].startswith("and 24 columns: column6, column7")
    assert lines[-1] == "[1000 rows]"
    assert lines[8].split() == ["..."] * 6


def test_an_empty_table_prints_itself():
    assert repr(Table({"a": []})).splitlines() == ["a", "-", "[0 rows]"]
    assert repr(Table({})) == "[0 rows]"
    assert "0 rows" in Table({})._repr_html_()


def test_html_is_escaped_and_shortened():
    page = table_html(Table({"<b>": ["<script>"] * 100, "n": range(100)}), "a & b")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "a &amp; b" in page
    assert "100 rows" in page
    assert page.count("<tr>") == 1 + 6 + 1 + 6


class Hit(NamedTuple):
    time: float
    site: str | None


def test_fields_of_dicts_and_named_tuples_are_columns():
    rows = {3: {"n": 1, "mean": 0.5}, 7: {"mean": 1.5, "note": "far"}}
    table = default_outcome(rows)
    assert list(table) == ["key", "n", "mean", "note"]
    assert table["mean"].tolist() == [0.5, 1.5]
    assert (table["n"], table["note"]) == ([1, None], [None, "far"])
    hits = default_outcome({"a": Hit(1.0, None), "b": Hit(2.0, "S1")})
    columns = {"key": ["a", "b"], "time": [1.0, 2.0], "site": [None, "S1"]}
    assert {name: list(cells) for name, cells in hits.items()} == columns


@pytest.mark.parametrize("results", [{1: {"a": 1}, 2: 3}, {1: {}, 2: {}}, {1: {2: 3}}, {1: (1, 2)}])
def test_other_results_are_one_column(results):
    assert list(default_outcome(results)) == ["key", "result"]
    assert list(default_outcome(results)["result"]) == list(results.values())


def test_a_field_does_not_take_the_name_of_a_key():
    assert list(default_outcome({1: {"key": 2}})) == ["key", "key_2"]


@pytest.mark.parametrize(
    ("keys", "names", "columns"),
    [
        ([(1, "a"), (2, "b")], (), ["key_0", "key_1"]),
        ([(1, "a"), (2, "b")], ("ion", "site"), ["ion", "site"]),
        ([1, 2], ("ion",), ["ion"]),
        ([1, 2], "ion", ["ion"]),
        ([], ("ion", "site"), ["ion", "site"]),
        ([], (), ["key"]),
        ([(1,), (2, 3)], (), ["key"]),
        ([(1, 2), 3], (), ["key"]),
    ],
)
def test_parts_of_keys_are_columns(keys, names, columns):
    table = default_outcome(dict.fromkeys(keys, 0.5), names)
    assert list(table) == [*columns, "result"]
    assert table.rows == len(keys)
    if len(columns) == 2 and keys:
        assert list(zip(*(table[name] for name in columns), strict=True)) == keys


@pytest.mark.parametrize(
    ("keys", "names"), [([(1, 2)], ("ion",)), ([1], ("ion", "site")), ([(1,), (1, 2)], ("a", "b"))]
)
def test_key_names_that_do_not_fit_are_told_and_cost_no_outcome(keys, names):
    with pytest.warns(UserWarning, match="key_names are"):
        table = default_outcome(dict.fromkeys(keys, 1), names)
    assert table["result"].tolist() == [1] * len(keys)


def test_columns_have_units():
    table = Table({"time_ps": Column([0.0, 0.5], unit="ps"), "n": [1, 2], "free": Column([1, 2])})
    assert table.units == {"time_ps": "ps"}
    assert isinstance(table["time_ps"], np.ndarray)
    assert (table.label("time_ps"), table.label("time_ps", "time")) == ("time_ps / ps", "time / ps")
    assert table.label("n") == "n"
    assert Table(table).units == table.units
    assert pickle.loads(pickle.dumps(table)).units == table.units
    assert as_table({"a": Column([1, 2], "Å")}).units == {"a": "Å"}
    frame = pd.DataFrame({"a": [1]})
    frame.attrs["units"] = {"a": "Å", "b": "nm"}
    assert as_table(frame).units == {"a": "Å"}


def test_a_column_reads_as_its_cells():
    column = Column(range(4), "Å")
    assert (len(column), list(column), column[1]) == (4, [0, 1, 2, 3], 1)
    np.testing.assert_array_equal(np.asarray(column) * 2, [0, 2, 4, 6])
    assert repr(Column(["a"], "x")) == "Column(['a'], unit='x')"
    assert Column(column, "nm").unit == "nm"


@pytest.mark.parametrize(
    ("values", "unit"), [(5, "Å"), ("text", "Å"), (np.zeros((2, 2)), "Å"), ([1], None), ([1], "a\nb")]
)
def test_what_is_no_column_is_refused(values, unit):
    with pytest.raises(himach.UsageError, match="Column:"):
        Column(values, unit)


TIMES = np.arange(1000) * 2.0


def lines_of(table, level=0.95):
    """Return the lines of a table as a run makes them."""
    outcome = {"t": table}
    records = add_estimates(["Any"], [outcome], level, None)
    return certainty("t", outcome["t"], records["t"])


def in_time(values):
    return Table({"time_ps": Column(TIMES[: len(values)], "ps"), "d": Column(values, "Å", estimate=True)})


def test_a_mean_tells_its_interval_and_that_halves_agree():
    values = np.random.default_rng(1).normal(3, 1, 1000)
    (line,) = lines_of(in_time(values))
    start = 2 * uncertainty.equilibration(values)
    mean = uncertainty.mean(values)
    assert line == f"mean of d / Å: {mean}, equilibrated from {start} ps; first and second half agree"


def test_halves_that_differ_are_told_with_by_how_much():
    values = np.random.default_rng(1).normal(3, 1, 1000) + (TIMES >= 1000)
    between = uncertainty.halves(values, 0.9)
    (line,) = mean_lines(Table({}), _means(values, 0.9))
    assert line.endswith(f"; the second half differs from the first by {str(between).partition(' (')[0]}")
    assert between.low > 0


def _means(values, level):
    between, mean = uncertainty.halves(values, level), uncertainty.mean(values, level)
    record = {name: getattr(mean, name) for name in ("low", "high", "n_eff", "blocks", "method")}
    record |= {"mean": mean.value, "start_ps": None, "cut": False}
    record["halves"] = [between.value, between.low, between.high]
    return Record(level=level, means={"d": record})


def test_what_is_not_converged_says_nothing_of_halves():
    assert lines_of(in_time(np.arange(50.0))) == ["mean of d / Å: 24.5, not converged (N_eff 2.9)"]
    values = np.random.default_rng(3).normal(size=10)
    (line,) = lines_of(in_time(values))
    assert "half" not in line


@pytest.mark.parametrize("level", [0.95, 0.5])
def test_intervals_in_a_table_have_a_line(level):
    (line,) = lines_of(Table({"direction": ["up", "down"], "events": Column([3, 5], estimate="count")}), level)
    assert line == f"intervals of events in t: {100 * level:g} %, Garwood's limits"


def test_intervals_that_are_not_there_say_so():
    sums, weights = np.ones((3, 2)), np.ones((3, 2))
    (line,) = lines_of(Table({"r": [1.0, 2.0], "g": Column([1.0, 1.0], estimate=(sums, weights))}))
    assert line == "intervals of g in t: not converged (N_eff 3.0)"
