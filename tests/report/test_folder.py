"""The folder of a run, read again as it was written; results in a line each; what speaks for and against a mean."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from jsonschema import Draft7Validator
from markupsafe import Markup
from MDAnalysisTests.datafiles import DCD, PSF
from support.sample_runs import Plain, make_record

import himach
from himach.errors import UsageError
from himach.examples import load
from himach.output.outcome_files import content
from himach.output.table import Column, Table
from himach.report.convergence import ENOUGH, HEIGHT, WIDTH, assess_convergence, small_plot
from himach.report.folder import SCHEMA, read_folder, read_table
from himach.report.page import Pieces
from himach.report.result_lines import result_lines
from himach.runner.options import RunOptions

PAGE = Path(__file__).parents[2] / "docs" / "run-json.md"


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> tuple[Path, himach.Result]:
    out = tmp_path_factory.mktemp("two") / "out"
    analyses = [load("rmsd")(), load("radius-of-gyration")()]
    return out, himach.run(analyses, DCD, PSF, stop=30, out=out)


def test_analyses_tables_and_figures_are_those_of_the_run(two):
    out, result = two
    folder = read_folder(out)
    rmsd, gyration = folder.analyses
    assert (rmsd.label, rmsd.tables, gyration.tables) == ("rmsd", ("rmsd/rmsd",), ("radius-of-gyration/rg",))
    assert rmsd.figures == ({".png": "rmsd/rmsd.png"},)
    assert rmsd.entry["parameters"]["selection"] == "protein and backbone"
    for name in folder.tables:
        table, was = folder.table(name), result[name]
        assert list(table) == list(was)
        for column in was:
            np.testing.assert_allclose(table[column], was[column], rtol=1e-6)
        assert (table.units, table.level, folder.uncertainty(name)["level"]) == (was.units, was.level, 0.95)


def test_files_that_are_gone_are_told_and_those_elsewhere_are_not_read(two, tmp_path):
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "link.csv").symlink_to(secret)
    names = ["../secret.csv", str(secret), "link.csv", "rmsd/rmsd.csv"]
    record = json.loads((two[0] / "run.json").read_text())
    (tmp_path / "out" / "run.json").write_text(json.dumps({**record, "files": names}))
    folder = read_folder(tmp_path / "out")
    assert (folder.files, folder.missing) == ({}, tuple(names))


def record_text(**changes) -> str:
    record = json.loads(json.dumps(make_record(Plain())))
    return json.dumps({**record, **changes})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no record .*/run.json; a run leaves one in its output directory"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        (record_text(frames=math.nan), "not JSON"),
        ("[]", "it must be object"),
        ('{"himach": "0.1"}', r"it must contain \['analyses'"),
        (record_text(analyses=[{"name": 3, "parameters": {}}]), r"analyses\[0\].name must be string"),
        (record_text(analyses=[]), "analyses must contain at least 1"),
        (record_text(frames=10**400), "frames must be smaller"),
        (record_text(system={"atoms": 1}), r"system must contain \['box'"),
        (record_text(uncertainty={"rmsd": {"means": 3}}), r"uncertainty.rmsd must contain \['blocks'"),
        (record_text(files=["a", 7]), r"files\[1\] must be string"),
    ],
)
def test_a_record_of_another_shape_is_refused_by_what_is_wrong(tmp_path, text, message):
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        read_folder(tmp_path)


def test_nan_and_infinities_are_floats_again(tmp_path):
    mean = {"mean": 1, "low": None, "high": "Infinity", "n_eff": 2.5, "blocks": 0, "method": "none", "cut": False}
    mean |= {"start_ps": None, "halves": [1, None, 2]}
    entry = {"method": "", "level": 0.9, "blocks": 0, "n_eff": None, "means": {"x": mean}, "half_widths": {"x": None}}
    (tmp_path / "run.json").write_text(record_text(uncertainty={"t": entry}))
    entry = read_folder(tmp_path).uncertainty("t")
    mean = entry["means"]["x"]
    assert (mean["mean"], mean["high"], mean["start_ps"], mean["halves"]) == (1, math.inf, None, None)
    assert all(map(math.isnan, (mean["low"], entry["n_eff"], entry["half_widths"]["x"])))


def test_the_shape_is_a_schema_that_names_the_fields_of_records_and_of_the_page(two):
    schema = json.loads(SCHEMA.read_bytes())
    Draft7Validator.check_schema(schema)
    fields = set(schema["properties"])
    named = re.findall(r"^\| (`.+?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for cell in named for name in re.findall("`(.+?)`", cell)} == fields
    assert {*RunOptions(["traj.xtc"]).recorded()} <= fields


def fields_of(shape: dict, values: list, place: str = "") -> Iterator[tuple[str, bool, bool]]:
    """Give each field that a schema names, or that values of its shape have, and whether either has it."""
    shape = {**shape, **DEFINITIONS.get(shape.get("$ref", "").rpartition("/")[2], {})}
    values = [item for value in values for item in (value if isinstance(value, list) and "items" in shape else [value])]
    shape = shape.get("items", shape)
    shape = {**shape, **DEFINITIONS.get(shape.get("$ref", "").rpartition("/")[2], {})}
    values = [value for value in values if isinstance(value, dict)]
    names = {name: [value[name] for value in values if name in value] for value in values for name in value}
    if "properties" in shape:
        for name in {**shape["properties"], **names}:
            yield f"{place}{name}", name in shape["properties"], name in names
            if name not in ("then", "planning"):
                yield from fields_of(shape["properties"].get(name, {}), names.get(name, []), f"{place}{name}.")
    elif isinstance(shape.get("additionalProperties"), dict):
        yield from fields_of(shape["additionalProperties"], [each for name in names for each in names[name]], place)


DEFINITIONS = json.loads(SCHEMA.read_bytes())["definitions"]


def test_runs_write_the_fields_of_the_schema_and_no_others(two, tmp_path):
    class Later(himach.Analysis):
        def reduce(self, key, series):
            return len(series)

    class Local(Later):
        then = Later

        def map(self, frame):
            yield 0, 1

        def reduce(self, key, series):
            yield 0, 1

    himach.run(Local, DCD, PSF, stop=3, out=tmp_path / "local")
    members = [himach.Member(name, DCD, PSF, start=at, stop=at + 30) for at, name in enumerate("ab")]
    himach.run("rmsd", ensemble=members, out=tmp_path / "many", progress=False)
    records = [json.loads((out / "run.json").read_text()) for out in (two[0], tmp_path / "local", tmp_path / "many")]
    fields = list(fields_of(json.loads(SCHEMA.read_bytes()), records))
    assert {"ensemble.system.dt_ps", "uncertainty.means.halves", "analyses.unrepeatable"} <= {
        name for name, *_ in fields
    }
    wrong = {
        name: "not written" if there else "not in the schema" for name, there, written in fields if there != written
    }
    assert wrong == {"live": "not written"}  # only of frames that still come


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
    again = read_table(tmp_path / "t.csv", table.units)
    assert (list(again), again.units, again["n"].dtype) == (list(table), table.units, np.int64)
    np.testing.assert_array_equal(again["d"], table["d"])
    np.testing.assert_array_equal(again["maybe"], [np.nan, 2.5])
    assert (again["who"], again["flag"]) == (['a,b\n"c"', None], ["True", "False"])
    for columns in ({"a": [], "b": []}, {"a": [None]}):
        (tmp_path / "t.csv").write_bytes(content(Table(columns)))
        again = read_table(tmp_path / "t.csv", {})
        assert (list(again), again.rows) == (list(columns), len(columns["a"]))
    (tmp_path / "t.csv").write_text("a,b\n1\n")
    with pytest.raises(UsageError, match="row 2 has not as many cells"):
        read_table(tmp_path / "t.csv", {})


UNCERTAINTY = {"level": 0.95, "blocks": 8, "n_eff": 64.0, "means": {}, "half_widths": {}}
UNCERTAINTY["method"] = "Student's t over blocks of frames"


def lines(place: Path, table: Table, uncertainty: dict | None, source: str) -> list[str]:
    """Return the lines of a run that left this table."""
    (place / "t.csv").write_bytes(content(table))
    record = {
        **make_record(),
        "analyses": [{"name": "mine", "source": source, "parameters": {}}],
        "units": {"t": table.units},
        "uncertainty": {} if uncertainty is None else {"t": {**UNCERTAINTY, **uncertainty}},
        "files": ["t.csv"],
    }
    (place / "run.json").write_text(json.dumps(record))
    folder = read_folder(place)
    return result_lines(folder, folder.analyses[0])


def with_limits(name: str, values, half: float = 0.02, **places) -> Table:
    values = np.asarray(values, float)
    return Table({**places, name: values, f"{name}_low": values - half, f"{name}_high": values + half})


def with_units(table: Table, **units: str) -> Table:
    table.units.update(units)
    return table


def g_of_r(r: np.ndarray) -> np.ndarray:
    """Return a g(r) with peaks at 2.75 and 4.5, and a spike of noise at 1.05."""
    g = np.where(r > 2.4, 1.0, 0.0) + 2 * np.exp(-(((r - 2.75) / 0.1) ** 2)) + 0.5 * np.exp(-(((r - 4.5) / 0.3) ** 2))
    g[np.argmin(abs(r - 1.05))] = 1.2
    return g


R = np.arange(0.05, 10, 0.1)
N = len(R)
G = g_of_r(R)
FEW_BLOCKS = "none: fewer than 8 independent blocks of frames"
CASES = {
    "the first peak of an rdf": (
        with_units(with_limits("g", G, r=R), r="Å"), {}, "rdf",
        ["g(r): first peak 3.00 [2.98, 3.02] at r 2.75 Å (95 %, 8 blocks)"],
    ),
    "a curve of a user: its largest value": (
        with_limits("g", G, r=R), {}, "mine.py:Mine", ["g: largest 3.00 [2.98, 3.02] at r 2.75 (95 %, 8 blocks)"],
    ),
    "a curve of a user: its ends": (
        with_limits("stay", np.exp(-np.arange(10) / 4), tau_ps=np.arange(10) * 0.5), {}, "mine.py:Mine",
        ["stay: 1 to 0.11 [0.09, 0.13], from tau 0 ps to tau 4.5 ps (95 %, 8 blocks)"],
    ),
    "rows with names: the largest": (
        with_limits("x", np.arange(20.0), residue=[f"LEU{i}" for i in range(20)], atom=["CA"] * 20), {}, "mine.py:Mine",
        ["x: largest 19.00 [18.98, 19.02] at LEU19, CA (95 %, 8 blocks)"],
    ),
    "a short table: a line for each row": (
        with_units(with_limits("events", [4.0, 3.0], 1.0, direction=["up", "down"]), events="1/ns"),
        {"blocks": 0, "method": "Garwood's limits"}, "mine.py:Mine",
        ["events, up: 4.0 1/ns [3.0, 5.0] (95 %, Garwood's limits)",
         "events, down: 3.0 1/ns [2.0, 4.0] (95 %, Garwood's limits)"],
    ),
    "an interval without the method of the least sure row": (
        Table({"row": ["a", "b"], "d": [0.8, 0.1], "d_low": [0.67, np.nan], "d_high": [0.89, np.nan]}),
        {"blocks": 0, "method": "none: fewer than 8 independent trials"}, "mine.py:Mine",
        ["d, a: 0.80 [0.67, 0.89] (95 %)", "d, b: 0.1 (no interval: fewer than 8 independent trials)"],
    ),
    "no interval, and why": (
        with_limits("d", [2.5], np.nan), {"blocks": 0, "method": FEW_BLOCKS}, "mine.py:Mine",
        ["d: 2.5 (no interval: fewer than 8 independent blocks of frames)"],
    ),
    "groups and their difference": (
        Table({
            "group": ["A", "B", "B - A"], "column": ["x"] * 3, "mean": [1.0, 2.0, 1.0], "low": [0.8, 1.8, 0.7],
            "high": [1.2, 2.2, 1.3], "n": [3, 3, 6], "p": [np.nan, np.nan, 0.0012],
        }), None, "mine.py:Mine",
        ["x, A: mean 1.0 [0.8, 1.2], 3 members", "x, B: mean 2.0 [1.8, 2.2], 3 members",
         "x, B - A: mean 1.0 [0.7, 1.3], 6 members, p = 0.0012"],
    ),
    "curves of groups": (
        Table({
            "group": ["A"] * N + ["B - A"] * N, "column": ["g"] * 2 * N, "r": np.tile(R, 2), "mean": np.tile(G, 2),
            "low": np.tile(G - 0.02, 2), "high": np.tile(G + 0.02, 2), "p": [np.nan] * N + [0.5] * N,
        }), None, "rdf",
        ["g(r), A: first peak 3.00 [2.98, 3.02] at r 2.75"],
    ),
    "a table without intervals": (
        Table({name: np.arange(3) for name in "abcdefgh"}), None, "mine.py:Mine",
        ["t: 3 rows of a, b, c, d, e, f, ..."],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("table", "uncertainty", "source", "expected"), CASES.values(), ids=CASES)
def test_lines_of_a_table(tmp_path, table, uncertainty, source, expected):
    assert lines(tmp_path, table, uncertainty, source) == expected


@pytest.mark.parametrize("values", [[np.nan] * 8, [np.inf] * 8, [1e300] * 8, [0.0] * 8])
def test_odd_values_are_no_error(tmp_path, values):
    assert len(lines(tmp_path, with_limits("g", values, r=np.arange(8.0)), {}, "rdf")) == 1


def noise(n: int = 2000, memory: float = 0.0, seed: int = 1) -> np.ndarray:
    """Return Gaussian noise of variance 1 about 5 that remembers this part of its last value."""
    made = np.random.default_rng(seed).normal(size=n)
    for i in range(1, n):
        made[i] = memory * made[i - 1] + np.sqrt(1 - memory**2) * made[i]
    return made + 5


def doubts(values, **options) -> list[str]:
    return [name for name, _ in assess_convergence(values, **options).doubts]


def test_nothing_speaks_against_independent_values():
    checks = assess_convergence(noise())
    assert (checks.doubts, set(checks.agrees.values())) == ([], {True})
    assert checks.estimate.n_eff > 1000
    np.testing.assert_allclose([each[-1] for each in checks.running], checks.estimate.value)


def test_running_means_are_those_of_more_and_more_values():
    values = noise(90)
    checks = assess_convergence(values)
    counts = np.round(checks.fractions * 90).astype(int)
    assert counts[0] == 3  # not of one value
    np.testing.assert_allclose(checks.running[0], [values[:n].mean() for n in counts])
    np.testing.assert_allclose(checks.running[1], [values[-n:].mean() for n in counts])
    assert checks.every_second == pytest.approx(values[::2].mean())


def test_errors_grow_with_blocks_as_long_as_values_remember():
    """For such a chain the standard error is known, at blocks much longer than it remembers."""
    memory, n = 0.9, 40_000
    checks = assess_convergence(noise(n, memory))
    truth = np.sqrt((1 + memory) / (1 - memory) / n)
    long = (checks.lengths > 300) & (checks.lengths < 1000)
    np.testing.assert_allclose(checks.errors[long], truth, rtol=0.3)
    assert checks.errors[0] == pytest.approx(1 / np.sqrt(n), rel=0.1)
    assert (np.diff(checks.lengths) > 0).all()


def test_what_is_wrong_with_a_series_is_doubted():
    late = noise(4000)
    late[:2500] += 4 * np.exp(-np.arange(2500) / 800)
    assert assess_convergence(late).start > 1000
    assert doubts(late)
    drift = assess_convergence(noise() + np.linspace(0, 3, 2000))
    assert not drift.estimate.converged or "halves" in [name for name, _ in drift.doubts]
    assert "stride" in doubts(noise() + np.where(np.arange(2000) % 2, 1.0, -1.0))
    assert doubts(np.zeros(100)) == ["constant"]
    few = assess_convergence(noise(300, 0.9, seed=3))
    assert 8 < few.estimate.n_eff < ENOUGH
    assert few.doubts[0] == ("few", {"n_eff": few.estimate.n_eff, "enough": ENOUGH})
    fewer = assess_convergence(noise(60, 0.95))
    assert fewer.doubts[0][0] == "fewer than 8 independent values"
    assert set(fewer.agrees.values()) == {None}


def test_what_is_cut_is_left_out():
    values = np.concatenate([np.full(100, 50.0), noise()])
    assert assess_convergence(values, first=100).estimate.value == pytest.approx(noise().mean())
    assert doubts(values, first=100) == []


@pytest.mark.parametrize("n", [1, 2, 3, 5, 9])
def test_short_series_are_no_error(n):
    checks = assess_convergence(noise(n))
    assert len(checks.lengths) == len(checks.errors)
    assert checks.fractions[-1] == 1


@pytest.mark.parametrize("values", [[1e308, -1e308, np.nan], [np.inf, 1, 2], [3, 3, 3], [5e-324, 0, 1e-310]])
def test_curves_stay_within_their_picture(values):
    drawn = small_plot("it", [0, 1, 2], values, band=(-1.0, 2.0), zero=True)
    places = [tuple(map(float, pair.split(","))) for pair in drawn["curves"][0]]
    assert len(places) == np.isfinite(values).sum()
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)
    assert small_plot("it", [0], [np.nan]) == {}


def test_pieces_that_fit_are_there_the_more_important_first():
    pieces = Pieces(60)
    parts = [
        pieces.add(rank, "-", lambda name=name: name * 20) for name, rank in zip("abcd", (1, 0, 2, 1), strict=True)
    ]
    page = Markup(" ").join(parts)
    assert pieces.fit(page) == f"{'a' * 20} {'b' * 20} - -"
    pieces.limit = 83
    assert pieces.fit(page) == " ".join(name * 20 for name in "abcd")
