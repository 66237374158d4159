"""What a run says of how sure its tables are: means in time, bands by blocks of frames, limits of counts."""

import math
from dataclasses import replace

import MDAnalysis
import numpy as np
import pytest
from MDAnalysis.lib.distances import distance_array
from scipy import stats

import himach as package
from himach import uncertainty
from himach.examples import load, sample
from himach.examples.interactions.ion_permeation import tabulate

VILLIN, NANOPORE = sample("villin"), sample("nanopore")


class Means(package.Analysis):
    """The mean of each key alone."""

    def map(self, frame):
        yield package.Pairs([0, 1], [math.sin(frame.number), math.cos(3.0 * frame.number)])

    def reduce(self, key, series):
        return series.mean()


def test_mean_of_a_column_in_time():
    result = package.run(load("rmsd")(), *VILLIN)
    told = result.record["uncertainty"]["rmsd"]
    expected = uncertainty.mean(result["rmsd"]["rmsd"])
    mean = told["means"]["rmsd"]
    assert (mean["mean"], mean["n_eff"], told["n_eff"]) == (expected.value, expected.n_eff, expected.n_eff)
    assert told["level"] == 0.95
    start = uncertainty.equilibration(result["rmsd"]["rmsd"])
    assert told["start_ps"] == result["rmsd"]["time_ps"][start]
    assert told["replicas"] is None
    assert f"mean of rmsd / Å: {expected}" in result.text()
    assert list(result["rmsd"]) == ["time_ps", "rmsd"]


def test_what_is_before_equilibration_is_cut_where_that_is_asked_for():
    values = package.run(load("rmsd")(), *VILLIN)["rmsd"]
    start = uncertainty.equilibration(values["rmsd"])
    auto = package.run(load("rmsd")(), *VILLIN, equilibration="auto", confidence=0.9)
    mean = auto.record["uncertainty"]["rmsd"]["means"]["rmsd"]
    expected = uncertainty.mean(values["rmsd"], 0.9, start=start)
    assert start > 0
    assert (mean["mean"], mean["low"], mean["high"], mean["cut"]) == (expected.value, expected.low, expected.high, True)
    assert f", from {mean['start_ps']:g} ps on" in auto.text()

    options = package.run(load("rmsd")(), *VILLIN, equilibration=50.0).record["uncertainty"]["rmsd"]
    late = values["rmsd"][values["time_ps"] > 49.9]  # 50 ps are 49.99999 in the file
    assert options["means"]["rmsd"]["mean"] == late.mean()
    assert options["start_ps"] == values["time_ps"][values["time_ps"] > 49.9][0]
    with pytest.warns(UserWarning, match="no estimate: start must be an index"):
        package.run(load("rmsd")(), *VILLIN, equilibration=1e6)


def test_means_that_reduce_gives_are_rows_with_their_intervals():
    table = package.run(Means(), *VILLIN)["Means"]
    expected = uncertainty.mean(np.sin(np.arange(250)))
    assert list(table) == ["key", "mean", "low", "high", "n_eff"]
    figures = [table[name][0] for name in ("mean", "low", "high", "n_eff")]
    np.testing.assert_allclose(figures, [expected.value, expected.low, expected.high, expected.n_eff], rtol=1e-9)


def test_band_of_an_rdf_beside_blocks_by_hand():
    pair = {"a": "name K", "b": "name O OH2", "r_max": 6.1, "bins": 29}  # no distance in the file is on an edge
    result = package.run(load("rdf")(**pair), *NANOPORE, confidence=0.9)
    table, numbers = result["rdf"], result["coordination"]
    universe = MDAnalysis.Universe(NANOPORE.topology, NANOPORE.trajectory)
    a, b = universe.select_atoms(pair["a"]), universe.select_atoms(pair["b"])
    edges = np.linspace(0, 6.1, 30)
    shells = 4 / 3 * np.pi * np.diff(edges**3)
    blocks, frames, pairs = np.zeros((38, 29)), np.zeros(38), np.zeros(29)  # of four frames each, the last of two
    within = np.zeros((38, 29))
    for ts in universe.trajectory:
        counts = np.histogram(distance_array(a, b, box=ts.dimensions), edges)[0]
        blocks[ts.frame // 4] += counts * ts.volume / (len(a) * len(b) * shells)
        within[ts.frame // 4] += np.cumsum(counts) / len(a)
        frames[ts.frame // 4] += 1
        pairs += counts
    expected = uncertainty.of_blocks(blocks, frames, 0.9)
    often = pairs >= 20
    np.testing.assert_allclose(table["g_low"][often], expected.low[often], rtol=1e-6)
    np.testing.assert_allclose(table["g_high"][often], expected.high[often], rtol=1e-6)
    expected, often = uncertainty.of_blocks(within, frames, 0.9), np.cumsum(pairs) >= 20
    np.testing.assert_allclose(numbers["n_low"][often], expected.low[often], rtol=1e-6)
    np.testing.assert_allclose(numbers["n_high"][often], expected.high[often], rtol=1e-6)
    none = pairs == 0
    volume = np.mean([ts.volume for ts in universe.trajectory])
    ideal = len(a) * len(b) * len(universe.trajectory) / volume * shells
    assert 0 < none.sum() < 20
    np.testing.assert_allclose(table["g_high"][none], -np.log(0.05) / ideal[none], rtol=1e-6)
    assert (table["g_low"][none] == 0).all()


def test_without_confidence_there_is_no_interval():
    result = package.run(load("rdf")(a="name K", b="name O OH2"), *NANOPORE, stop=20, confidence="off")
    assert list(result["rdf"]) == ["r", "g"]
    assert "uncertainty" not in result.record


def test_passages_in_bursts_have_limits_by_blocks():
    times = np.concatenate([start + np.linspace(0, 10, 12) for start in (100.0, 120.0, 700.0)])
    columns = tabulate([times, np.array([400.0])], (0.0, 1000.0))
    obtained = columns["events"].estimate(0.95)
    blocks = np.histogram(times, 10, (0, 1000))[0]
    half = stats.t.ppf(0.975, 9) * blocks.std(ddof=1) * np.sqrt(10)
    np.testing.assert_allclose([obtained.low[0], obtained.high[0]], [max(0, 36 - half), 36 + half], rtol=1e-10)
    np.testing.assert_allclose(obtained.high[1], stats.chi2.ppf(0.975, 4) / 2, rtol=1e-10)
    np.testing.assert_allclose(columns["rate_per_ns"].estimate(0.95).high, obtained.high, rtol=1e-12)


class ByFunction(package.Analysis):
    """Columns whose limits functions do not tell well."""

    way: str

    def map(self, frame):
        yield 0, 1

    def reduce(self, key, series):
        return len(series)

    def finish(self, results):
        def limits(level):
            if self.way == "fails":
                raise ZeroDivisionError("no frames")
            short = uncertainty.count(np.array([1]), level)
            return {"short": short, "uneven": replace(short, low=np.array([1.0, 2.0])), "none": None}[self.way]

        requested = (np.ones((4, 3)), np.ones(4)) if self.way == "wrong" else limits
        return {"n": package.Table({"n": package.Column([results[0], 2], estimate=requested)})}


@pytest.mark.parametrize(
    ("way", "told"),
    [
        ("fails", "raised ZeroDivisionError: no frames"),
        ("short", r"the shapes \(1,\)"),
        ("uneven", r"the shapes \(2,\), \(1,\)"),
        ("wrong", r"the shapes \(3,\)"),
        ("none", "returns a NoneType"),
    ],
)
def test_a_function_that_gives_no_limits_is_told_of(way, told):
    with pytest.warns(UserWarning, match=f"n.n has no estimate: .*{told}"):
        table = package.run(ByFunction(way=way), *VILLIN, stop=5)["n"]
    assert table["n"].tolist() == [5, 2]


class Shares(package.Analysis):
    """Shares that are near 0 and near 1, with and without a word of their limits."""

    def map(self, frame):
        yield 0, int(100 <= frame.number < 105)

    def reduce(self, key, series):
        return np.array(series.values)

    def finish(self, results):
        rare, block = results[0], np.arange(len(results[0])) // 16
        sums = np.bincount(block, rare)[:, None] * [1, 0.5] + np.outer(np.bincount(block), [0, 0.5])
        weights = np.bincount(block)
        tables = {}
        for name, within in (("shares", (0, 1)), ("any", None)):
            tables[f"{name}_in_time"] = package.Table({"y": package.Column(rare, estimate=True, within=within)})
            estimate = sums, np.column_stack([weights, weights])
            values = sums.sum(axis=0) / weights.sum()
            tables[name] = package.Table({"y": package.Column(values, estimate=estimate, within=within)})
        return tables


def test_intervals_of_shares_stay_within_0_and_1():
    result = package.run(Shares(), *VILLIN, cache="off", progress=False)
    limits = {name: result[name]["y_low"].min() for name in ("shares", "any")}
    limits |= {
        name: result.record["uncertainty"][name]["means"]["y"]["low"] for name in ("shares_in_time", "any_in_time")
    }
    assert limits["shares"] == limits["shares_in_time"] == 0
    assert limits["any"] < 0 and limits["any_in_time"] < 0


class Empty(package.Analysis):
    """Tables without rows."""

    def map(self, frame):
        yield 0, 1

    def reduce(self, key, series):
        return 0

    def finish(self, results):
        none = np.empty(0)
        return {
            "curve": package.Table({"x": package.Column(none, estimate=(np.zeros((4, 0)), np.ones(4)))}),
            "series": package.Table({"y": package.Column(none, estimate=True)}),
        }


def test_tables_without_rows_have_the_columns_of_others():
    result = package.run(Empty(), *VILLIN, stop=5)
    assert list(result["curve"]) == ["x", "x_low", "x_high"]
    assert list(result["series"]) == ["y"]
    assert result.record["uncertainty"]["curve"]["blocks"] == 0


def test_the_mean_is_drawn_with_its_interval():
    result = package.run(load("hydrogen-bonds")(), *VILLIN)
    in_time = next(axes for axes in result.plot().axes if axes.get_xlabel() == "time / ps")
    (words,) = (text.get_text() for text in in_time.get_legend().get_texts())
    obtained = uncertainty.mean(result["counts"]["bonds"])
    assert words == f"mean {obtained.value:.1f} [{obtained.low:.1f}, {obtained.high:.1f}] (95 %)"
    assert in_time.lines[-1].get_ydata()[0] == obtained.value
    (axes,) = package.run(load("rmsd")(), *VILLIN, stop=200).plot().axes
    assert axes.get_legend().get_texts()[0].get_text() == "mean 0.717 Å, not converged"


def test_an_estimate_is_of_numbers():
    with pytest.raises(package.UsageError, match="an estimate is of real numbers"):
        package.Column(["open", "shut"], estimate=True)


class Never(package.Analysis):
    """A state that never occurs."""

    def map(self, frame):
        yield package.Row(share=0.0)

    def finish(self, table):
        return {"state": {"time_ps": table["time_ps"], "share": package.Column(table["share"], estimate=True)}}


def test_the_share_of_a_state_that_never_occurred_has_no_interval():
    record = package.run(Never(), *sample("villin"), cache="off", progress=False).record
    mean = record["uncertainty"]["state"]["means"]["share"]
    assert mean["mean"] == 0 and math.isnan(mean["low"]) and math.isnan(mean["high"])
    assert mean["method"] == "none: all values are equal"
